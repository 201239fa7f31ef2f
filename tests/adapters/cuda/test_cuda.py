"""The CUDA target: tiles, dot products, profiles, figures, and what is said where tools or devices are missing."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cuvil
from cuvil_hw import api, ops
from cuvil_hw.adapters.cuda import gpu, nvrtc
from cuvil_hw.adapters.cuda.adapter import CudaAdapter
from cuvil_hw.adapters.cuda.form import Tiled
from cuvil_hw.adapters.cuda.measure import measure, parse
from cuvil_hw.contract.device import DeviceProgram
from cuvil_hw.errors import ArtifactError, CuvilError, DoesNotFit, ProfileError, ToolNotFound
from cuvil_hw.ir.program import Builder, Program
from cuvil_hw.schedule.measured import Measured, corrected
from cuvil_hw.target.profile import load_profile
from cuvil_hw.types import TensorType as T
from tests.support.cuda_runner import PROFILE, check, choice_of, form, graph_of, loaded, plan_of
from tests.support.device_runner import opened

CXX = pytest.mark.needs("g++", "nm")


def draw(*shape: int, seed: int = 0, dtype: Any = np.int8) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    if np.issubdtype(dtype, np.floating):
        return rng.normal(size=shape).astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, np.int64, endpoint=True).astype(dtype)


def conv(dtype: str = "i8", x_zp: int = -128, w_dtype: str = "i8", w_zp: Sequence[int] = (0,)) -> Program:
    """Padded, strided, with bias and rescale; no size is a multiple of a tile's."""
    container = {"i": np.int8, "u": np.uint8, "f": np.float32}
    b = Builder([("x", T((1, 10, 9, 11), dtype))])
    w = b.const(draw(20, 10, 3, 3, seed=1, dtype=container[w_dtype[0]]))
    if dtype[0] == "f":
        return b.finish([("y", b.op(ops.Conv((2, 1), (1, 1, 0, 1), (1, 1)), b.input(0), w))])
    bias = b.const(draw(20, seed=2, dtype=np.int16).astype(np.int32), "i32")
    op = ops.Conv((2, 1), (1, 1, 0, 1), (1, 1), 1, x_zp, tuple(w_zp), "i32")
    scaled = ops.Rescale(tuple(range(10**6, 10**6 + 20)), (31,), "i8", output_zp=3)
    return b.finish([("y", b.op(scaled, b.op(op, b.input(0), w, bias)))])


def dense(rows: int, k: int, columns: int, dtype: str = "f32") -> Program:
    b = Builder([("x", T((rows, k), dtype))])
    if dtype == "f32":
        return b.finish([("y", b.op(ops.Linear(), b.input(0), b.const(draw(columns, k, seed=1, dtype=np.float32))))])
    y = b.op(ops.Linear(x_zp=5, acc="i32"), b.input(0), b.const(draw(columns, k, seed=1)))
    return b.finish([("y", y)])


# -- schedules -------------------------------------------------------------------------------------------------------


@CXX
@pytest.mark.parametrize("interface", ["sim", "sim-check"])
@pytest.mark.parametrize(
    ("program", "dot4", "x"),
    [
        (conv(), True, draw(1, 10, 9, 11)),
        (conv("u8", 255), True, draw(1, 10, 9, 11, dtype=np.uint8)),
        (conv("u8", 0), True, draw(1, 10, 9, 11, dtype=np.uint8)),
        (conv("i8", 0, "u8", (128,)), True, draw(1, 10, 9, 11)),
        (conv("i8", 3, "i8", tuple(range(20))), False, draw(1, 10, 9, 11)),
        (conv("f32", w_dtype="f32"), False, draw(1, 10, 9, 11, dtype=np.float32)),
    ],
    ids=["i8", "u8", "u8 zero point 0", "u8 weights", "zero point per channel", "f32"],
)
def test_tiles(program: Program, dot4: bool, x: np.ndarray[Any, Any], interface: str) -> None:
    source = plan_of(graph_of(program), form("tile", dot4=dot4)).files["model.cu"].decode()
    assert "__syncthreads();" in source
    assert ("__dp4a(" in source) == dot4
    check(program, x, prefer=form("tile"), interface=interface, rtol=1e-5)


@CXX
def test_tiles_of_many_sizes_compute_the_same() -> None:
    x = draw(70, 50, dtype=np.float32)
    (offered,) = CudaAdapter().offer(graph_of(dense(70, 50, 90)), PROFILE).forms
    tiles = [f for f in offered if isinstance(f, Tiled)]
    assert len(tiles) > 3
    for tile in tiles[::2]:
        check(dense(70, 50, 90), x, prefer=lambda s, tile=tile: s != tile)  # type: ignore[misc]


@CXX
@pytest.mark.parametrize("interface", ["sim", "sim-check"])
def test_a_product_of_two_activations_is_a_batch_of_tiles(interface: str) -> None:
    b = Builder([("a", T((3, 17, 20), "f32")), ("b", T((3, 20, 33), "f32"))])
    program = b.finish([("y", b.op(ops.MatMul(), b.input(0), b.input(1)))])
    arrays = draw(3, 17, 20, dtype=np.float32), draw(3, 20, 33, seed=1, dtype=np.float32)
    check(program, *arrays, prefer=form("tile"), interface=interface)


@CXX
def test_a_warp_reads_words_where_bytes_are_neighbours() -> None:
    source = plan_of(graph_of(dense(3, 160, 7, "i8")), form("warp", dot4=True)).files["model.cu"].decode()
    assert "__dp4a(" in source
    assert "__shfl_xor_sync(" in source
    check(dense(3, 160, 7, "i8"), draw(3, 160), prefer=form("warp", dot4=True), interface="sim-check")
    odd = plan_of(graph_of(dense(3, 162, 7, "i8")), form("warp")).files["model.cu"].decode()
    assert "__dp4a(" not in odd  # 162 bytes: not every row begins at a word


@CXX
def test_padding_of_a_convolution_adds_nothing_to_infinite_weights() -> None:
    b = Builder([("x", T((1, 16, 6, 6), "f32"))])
    w = draw(16, 16, 3, 3, dtype=np.float32)
    w[:, :, 0, 0] = np.inf
    program = b.finish([("y", b.op(ops.Conv((1, 1), (1, 1, 1, 1), (1, 1)), b.input(0), b.const(w)))])
    check(program, np.abs(draw(1, 16, 6, 6, dtype=np.float32)), prefer=form("tile"))


def test_one_dimension_of_the_grid_holds_all_blocks() -> None:
    b = Builder([("x", T((65536, 1), "f32"))])
    (launch,) = plan_of(graph_of(b.finish([("y", b.op(ops.Exp(), b.input(0)))]))).info["launches"]  # type: ignore[misc]
    assert (launch["rows"], launch["times"]) == (65536, 1)
    assert "blockIdx.y" not in plan_of(graph_of(dense(70, 50, 90))).files["model.cu"].decode()


@CXX
@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0,)])
def test_empty_tensors(shape: tuple[int, ...]) -> None:
    b = Builder([("x", T(shape, "f32"))])
    outputs = [("y", b.op(ops.Exp(), b.input(0))), ("z", b.op(ops.ReduceSum((0,), False), b.input(0)))]
    check(b.finish(outputs), np.zeros(shape, np.float32), interface="sim-check")


@CXX
def test_batches_of_any_size_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x = draw(5, 1, 10, 9, 11)
    with loaded(conv(), form("tile")) as run:
        alone = np.concatenate([run.run([x[i : i + 1]])[0][0] for i in range(5)])
        np.testing.assert_array_equal(run.run([x])[0][0], alone)
        monkeypatch.setattr("cuvil_hw.adapters.cuda.program.BATCH_BYTES", 4000)
        np.testing.assert_array_equal(run.run([x])[0][0], alone)
        np.testing.assert_array_equal(run.run([x[:2]])[0][0], alone[:2])
    assert alone.std() > 0


# -- profiles --------------------------------------------------------------------------------------------------------


def test_profiles() -> None:
    known = {"a100": ("sm_80", 163), "h100": ("sm_90", 227), "h200": ("sm_90", 227), "orin": ("sm_87", 163),
             "cuda:sm_75": ("sm_75", 64), "cuda:sm_86": ("sm_86", 99)}  # fmt: skip
    for name, (part, shared) in known.items():
        profile = load_profile(name)
        assert (profile.adapter, profile.part, profile.axis("shared").limit) == ("cuda", part, shared << 10)
    assert load_profile("h200").axis("hbm").limit > load_profile("h100").axis("hbm").limit
    with pytest.raises(ProfileError, match="cuda:sm_20: target: unknown compute capability; known: sm_75"):
        load_profile("cuda:sm_20")
    with pytest.raises(ProfileError, match="unknown target"):
        load_profile("tpu:v4")


def test_half_the_shared_memory_changes_the_schedule(tmp_path: Path) -> None:
    chosen = []
    kernel = graph_of(dense(512, 512, 512)).kernels
    for limit in (24 << 10, 12 << 10):
        file = tmp_path / "mine.yaml"
        file.write_text(
            f"schema: cuvil-profile/1\nname: mine\nextends: orin\nresources:\n  shared: {{limit: {limit}}}\n"
        )
        profile = load_profile(file)
        graph = dataclasses.replace(graph_of(dense(512, 512, 512)), kernels=kernel)
        choice = api.choose(api.propose(graph, CudaAdapter(), profile), profile)
        chosen.append(choice.candidate(kernel[0].name))
        assert 0 < chosen[-1].estimate.use["shared"] <= limit
    assert chosen[0].form != chosen[1].form
    none = dataclasses.replace(PROFILE, axes=tuple(dataclasses.replace(a, limit=0) for a in PROFILE.axes))
    with pytest.raises(DoesNotFit, match="where 0 may be used"):
        api.choose(api.propose(graph, CudaAdapter(), none), none)


def test_more_elements_than_an_int_can_number_are_refused() -> None:
    big = T((1 << 16, 1 << 15), "i8")
    reason = CudaAdapter().refuses(ops.Relu(), [big], [big], PROFILE)
    assert reason is not None
    assert "2,147,483,648 elements" in reason


# -- NVIDIA's tools --------------------------------------------------------------------------------------------------

REPORT = """\
ptxas info    : Compiling entry function 'a' for 'sm_75'
ptxas info    : Function properties for a
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 1088 bytes smem, 372 bytes cmem[0]
ptxas info    : Compiling entry function 'b' for 'sm_75'
ptxas info    : Function properties for b
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 14 registers, 372 bytes cmem[0]
"""


def test_the_report_of_ptxas() -> None:
    a, b = parse(REPORT).values()
    assert (a.registers, a.shared_bytes, a.spill_bytes, a.stack_bytes) == (40, 1088, 20, 16)
    assert (b.registers, b.shared_bytes, b.spill_bytes, b.stack_bytes) == (14, 0, 0, 0)


@pytest.mark.must_run
@pytest.mark.needs("ptxas", "cuda")
@pytest.mark.parametrize("program", [conv(), conv("f32", w_dtype="f32")], ids=["i8", "f32"])
def test_figures_of_every_schedule(program: Program) -> None:
    """Shared memory is what was estimated, registers stay within a thread's, and where ptxas spills the choice made
    again is one that doesn't."""
    graph = graph_of(program)
    proposals, choice, fits = api.propose(graph, CudaAdapter(), PROFILE), choice_of(graph), False
    for candidate in proposals.kernels[0].candidates:
        plan = plan_of(graph, lambda f, one=candidate.form: f != one)  # type: ignore[misc]
        (figures,) = measure(plan.files["model.cu"], PROFILE.part).values()
        assert figures.shared_bytes == candidate.estimate.use["shared"]
        assert 0 < figures.registers <= PROFILE.axis("registers").limit
    while not fits:
        choice = api.choose(proposals, PROFILE)
        plan = plan_of(graph, lambda f, one=choice.picked[0][1].form: f != one)  # type: ignore[misc]
        measured = CudaAdapter().measure(plan, PROFILE)
        proposals, choice, fits = corrected(proposals, choice, measured, PROFILE.axes)
    assert choice.use["spills"] == 0
    assert choice.use["registers"] == choice.picked[0][1].estimate.use["registers"]


def test_a_schedule_that_spills_gives_way_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    rejected: list[str] = []

    def spilling(self: CudaAdapter, plan: Any, profile: Any) -> Measured:
        bad = "tile" if "__syncthreads" in plan.files["model.cu"].decode() else ""
        rejected.append(bad)
        return Measured({plan.info["launches"][0]["kernel"]: {"spills": 16.0 if bad else 0.0}}, ("measured",))

    monkeypatch.setattr(CudaAdapter, "measure", spilling)
    pytest.importorskip("torch")
    import torch

    model = torch.nn.Linear(256, 256)
    made = cuvil.compile(model, "h100", torch.zeros(256, 256))
    assert rejected[0] == "tile"
    assert rejected[-1] == ""
    assert "form=tile" not in made.report["layers"][0]["schedule"]
    assert "measured" in made.report["notes"]


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = plan_of(graph_of(dense(3, 4, 5))).files["model.cu"]
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "which", lambda name, path=None: None)
        needed = pytest.raises(ToolNotFound, match=r"g\+\+ not found, needed to simulate CUDA kernels; install g\+\+")
        with needed, loaded(dense(3, 4, 6)):
            pass
    with monkeypatch.context() as patch:
        patch.setitem(__import__("sys").modules, "cuda.bindings", None)
        with pytest.raises(ToolNotFound, match=r"Python package cuda-python not found.*pip install .*\[cuda\]"):
            nvrtc.compile_source(source, "sm_90", machine_code=True)
        with pytest.raises(ToolNotFound, match="Python package cuda-python not found, needed to run on a GPU"):
            gpu.open_gpu("h100")
        plan = plan_of(graph_of(dense(3, 4, 5)))
        (note,) = api.measure(CudaAdapter(), plan, PROFILE).notes
        assert "not measured, estimates stay: Python package cuda-python" in note
    with pytest.raises(CuvilError, match="no interface 'usb'; it has hw, sim, sim-check, null"):
        opened(PROFILE, "usb")
    (tmp_path / "model.cu").write_bytes(source)
    plan = plan_of(graph_of(dense(3, 4, 5)))
    described = DeviceProgram("dense", tmp_path, (), (), plan.info, {})
    if shutil.which("g++"):
        with pytest.raises(ArtifactError, match=r"constant [0-9a-f]+ is missing"):
            opened(PROFILE, "sim").load(described)


@pytest.mark.needs("ptxas", "cuda")
def test_without_ptxas_nothing_is_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    with pytest.raises(ToolNotFound, match="ptxas not found, needed to measure registers and spills"):
        measure(plan_of(graph_of(dense(3, 4, 5))).files["model.cu"], "sm_75")


def test_choices_are_repeatable() -> None:
    texts = {plan_of(graph_of(conv())).digest() for _ in range(2)}
    assert len(texts) == 1
    assert choice_of(graph_of(conv())) == choice_of(graph_of(conv()))


# -- whole models ----------------------------------------------------------------------------------------------------


@pytest.mark.must_run
@CXX
def test_keyword_spotting_is_the_reference(models: Path) -> None:
    """`cuvil.compile(...)(x)`, a batch with saturating values: equal to what level1 means."""
    from cuvil_hw.frontend import load
    from cuvil_hw.ir.program import evaluate

    program = load(models / "kws_ref_model.onnx")
    (_, kind) = program.inputs[0]
    x = np.random.default_rng(0).normal(size=(4, *kind.shape[1:])).astype(np.float32) * np.float32(60)
    with cuvil.compile(models / "kws_ref_model.onnx", "h100") as kws:
        got = kws(x)
    want = np.concatenate([evaluate(program, [x[i : i + 1]])[0] for i in range(4)])
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(got.argmax(1), want.argmax(1))


@pytest.mark.must_run
@pytest.mark.needs("ptxas", "cuda")
@pytest.mark.parametrize("name", ["kws_ref_model", "mnist_conv"])
def test_models_compile_without_spills(models: Path, name: str) -> None:
    made = cuvil.compile(models / f"{name}.onnx", "cuda:sm_75")
    source = made.sources["model.cu"].encode()
    for architecture in ("sm_75", "sm_80", "sm_90"):
        figures = measure(source, architecture)
        assert len(figures) == len(made.artifact.manifest.info["launches"])
        assert [n for n, f in figures.items() if f.spill_bytes] == []
    assert all(layer["use"]["registers"] > 0 and layer["use"]["spills"] == 0 for layer in made.report["layers"])
