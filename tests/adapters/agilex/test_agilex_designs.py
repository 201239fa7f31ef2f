"""Whole models compiled for Agilex: the same bits on its devices, and what limits and cost do to the schedules."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.func import FuncOp

from cuvil_hw import api, ops
from cuvil_hw.adapters.agilex.adapter import AgilexAdapter
from cuvil_hw.adapters.agilex.device import open_device
from cuvil_hw.adapters.agilex.fabric import AGILEX7
from cuvil_hw.adapters.agilex.host import host_files
from cuvil_hw.adapters.base import Golden
from cuvil_hw.adapters.streaming.analysis.fabric import (
    Use,
    block_rams,
    distributed_units,
    fifo_use,
    memory,
    multiplier_blocks,
)
from cuvil_hw.compile import numbers
from cuvil_hw.compile.precision import choose_precision
from cuvil_hw.contract.device import Port
from cuvil_hw.errors import CuvilError, DoesNotFit
from cuvil_hw.ir.program import Builder, Program, evaluate
from cuvil_hw.runtime import artifact as container
from cuvil_hw.runtime.executable import Executable
from cuvil_hw.target.profile import load_profile
from cuvil_hw.types import TensorType
from tests.support.device_runner import design_of
from tests.support.fpga_runner import graph_of

PROFILE = load_profile("agilex")
ROOT = Path(__file__).resolve().parents[3]


def program_of(model: Any, example: Any, calibration: Any, precision: str | None) -> Program:
    """The integer program that `compile` makes, apart from it."""
    program = api.import_model(model, example, None, None)
    numbers.simplify(program)
    chosen = choose_precision(program, precision, calibration is not None, PROFILE)
    program = numbers.quantize(program, chosen, calibration)
    numbers.make_integer(program, chosen)
    return program


def check(
    model: Any, x: np.ndarray, example: Any = None, calibration: Any = None, precision: str | None = None
) -> None:
    """Bits of every device that is here equal those of the NumPy meaning."""
    program = program_of(model, example, calibration, precision)
    wanted = np.concatenate([evaluate(program, [x[n : n + 1]])[0] for n in range(len(x))])
    compiled = api.compile(model, PROFILE, example, calibration, precision)
    ran = []
    for interface in ("sim", "sim-sycl"):
        if open_device({"name": "agilex"}, interface).usable() is None:
            with Executable(compiled.artifact, interface) as executable:
                np.testing.assert_array_equal(executable(x), wanted, err_msg=interface)
            ran.append(interface)
    if "sim" not in ran:
        pytest.skip("Intel's FPGA emulator isn't installed: cuvil-hw[agilex]")


@pytest.mark.slow
@pytest.mark.must_run
@pytest.mark.needs("onnx")
def test_keyword_spotting(models: Path) -> None:
    x = np.random.default_rng(0).integers(-128, 128, (6, 49, 10, 1)).astype(np.float32)
    program = api.import_model(str(models / "kws_ref_model.onnx"), None, None, None)
    shape = program.inputs[0][1].shape
    x = x.reshape(6, *shape[1:])
    x[0], x[1] = -128, 127
    check(str(models / "kws_ref_model.onnx"), x)


def _torch(build: Callable[[Any], Any]) -> Any:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    return build(torch.nn).eval()


@pytest.mark.must_run
@pytest.mark.needs("torch")
def test_fixed_point_mlp() -> None:
    model = _torch(lambda nn: nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 5)))
    x = (8 * np.random.default_rng(1).normal(size=(16, 16))).astype(np.float32)
    x[0], x[1] = -1e6, 1e6  # beyond the range
    check(model, x, np.zeros((1, 16), np.float32), x, "fixed<16,6>")


@pytest.mark.must_run
@pytest.mark.needs("torch")
def test_digits_cnn() -> None:
    def build(nn: Any) -> Any:
        first = [nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 8, 3, padding=1), nn.ReLU()]
        return nn.Sequential(*first, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32, 10))

    x = np.random.default_rng(2).random((16, 1, 8, 8)).astype(np.float32) * 16
    x[0] = 1000
    check(_torch(build), x, np.zeros((1, 1, 8, 8), np.float32), x[1:], "int8")


# -- limits and cost --------------------------------------------------------------------------------------------------


def test_ports_whose_names_differ_by_a_number_are_ports_of_their_own() -> None:
    b = Builder([(name, TensorType((4,), "i8")) for name in ("x", "x_1", "x_2")])
    program = b.finish([(f"y_{n}" if n else "y", b.op(ops.Neg(), b.input(n))) for n in range(3)])
    profile, graph = load_profile("agilex"), graph_of(program)
    choice = api.choose(api.propose(graph, AgilexAdapter(), profile), profile)
    module = AgilexAdapter().lower(design_of(graph, choice, AgilexAdapter()), profile)
    module.verify()
    names = [op.sym_name.data for op in module.body.block.ops if isinstance(op, FuncOp)]
    assert sum(n.startswith("read_x") for n in names) == sum(n.startswith("write_y") for n in names) == 3


def wide_layer() -> Program:
    """One dense layer whose weights need block memory: 512 × 512 bytes are 103 M20K at least."""
    builder = Builder([("x", TensorType((1, 512), "i8"))])
    w = builder.const(np.random.default_rng(0).integers(-128, 128, (512, 512)).astype(np.int8))
    y = builder.op(ops.Linear(0, (0,), "i32"), builder.input(0), w)
    return builder.finish([("y", builder.op(ops.Rescale((1 << 12,), (20,), "i8"), y))])


def chosen(tmp_path: Path, **limits: int) -> Any:
    lines = [f"  {axis}: {{limit: {limit}}}" for axis, limit in limits.items()]
    path = tmp_path / f"{'-'.join(f'{a}{n}' for a, n in limits.items()) or 'whole'}.yaml"
    header = ["schema: cuvil-profile/1", f"name: {path.stem.lower()}", "extends: agilex"]
    path.write_text("\n".join([*header, *(["resources:", *lines] if lines else [])]) + "\n", encoding="utf-8")
    profile = load_profile(path)
    graph = graph_of(wide_layer())
    return api.choose(api.propose(graph, AgilexAdapter(), profile), profile)


def test_half_the_block_memory_changes_the_schedule_then_does_not_fit(tmp_path: Path) -> None:
    few = {"mlab": 100}  # a layer unrolled far enough would keep its weights in these alone
    ((_, ample),) = chosen(tmp_path, m20k=1000, **few).picked
    used = ample.estimate.use["m20k"]
    half = int(used / 2 / 0.8)
    ((_, scarce),) = chosen(tmp_path, m20k=half, **few).picked
    assert scarce.form != ample.form
    assert scarce.estimate.use["m20k"] <= 0.8 * half < used
    with pytest.raises(DoesNotFit) as caught:
        chosen(tmp_path, m20k=10, mlab=40)
    assert caught.value.axis in ("m20k", "mlab")


def test_half_the_multipliers_fold_more(tmp_path: Path) -> None:
    few = {"alm": 30000}
    ((_, ample),) = chosen(tmp_path, dsp=200, **few).picked
    ((_, scarce),) = chosen(tmp_path, dsp=100, **few).picked
    assert scarce.estimate.use["dsp"] <= 80 < ample.estimate.use["dsp"] <= 160
    assert scarce.estimate.cycles > ample.estimate.cycles


def test_built_in_profiles() -> None:
    assert PROFILE.name == "agilex-agfb014"
    large = load_profile("agilex-agfb027")
    for axis, use in (("alm", 0.7), ("ff", 0.5), ("m20k", 0.8), ("mlab", 0.8), ("dsp", 0.8)):
        assert PROFILE.axis(axis).utilisation == use
        assert 1.8 < large.axis(axis).limit / PROFILE.axis(axis).limit < 1.95


@pytest.mark.parametrize(
    ("a", "b", "blocks"),
    [(9, 9, 0.25), (8, 8, 0.25), (9, 10, 0.5), (18, 19, 0.5), (19, 18, 0.5), (19, 19, 1), (27, 27, 1), (28, 27, 2),
     (28, 28, 4), (1, 8, 0)],
)  # fmt: skip
def test_multiplier_modes(a: int, b: int, blocks: float) -> None:
    assert multiplier_blocks(AGILEX7, a, b) == blocks


@pytest.mark.parametrize(
    ("depth", "width", "blocks"), [(512, 40, 1), (1024, 20, 1), (2048, 10, 1), (513, 40, 2), (2048, 8, 1), (512, 64, 2)]
)
def test_block_memories(depth: int, width: int, blocks: int) -> None:
    assert block_rams(AGILEX7, depth, width) == blocks


def test_distributed_memory_is_counted_in_mlabs_and_their_alms() -> None:
    assert [distributed_units(AGILEX7, d, w) for d, w in ((32, 20), (33, 20), (32, 21), (1, 1))] == [1, 2, 2, 1]
    use = Use()
    memory(use, AGILEX7, 32, 40, "lutram")
    assert use.axes(AGILEX7) == {"alm": 20, "ff": 0, "m20k": 0, "mlab": 2, "dsp": 0}


def test_short_fifos_are_registers_and_longer_ones_memory() -> None:
    assert (fifo_use(AGILEX7, 2, 16).lutram, fifo_use(AGILEX7, 2, 16).ff) == (0, 2 * 16 + 3)
    assert fifo_use(AGILEX7, 32, 16).lutram == 1
    assert fifo_use(AGILEX7, 512, 16).ram == 1


@pytest.mark.must_run
@pytest.mark.needs("g++", "make")
@pytest.mark.parametrize("part", ["AGFB014R24B2E2V", "x'; touch injected; '$(shell touch injected)"])
def test_the_host_program_is_built_and_run_by_its_makefile(part: str, tmp_path: Path) -> None:
    """The project's own makefile with a compiler of ours, which compiles the same command against sim/sycl: the golden
    data comes out, and samples of a caller's in their order."""
    from dataclasses import replace

    from tools.fuzz_records import network

    compiled = api.compile(network(), replace(PROFILE, part=part))
    assert isinstance(compiled, Executable)
    project = tmp_path / "project"
    project.mkdir()
    container.extract(compiled.artifact, project)
    compiler = tmp_path / "icpx"
    compiler.write_text(
        f"#!{sys.executable}\nimport subprocess, sys\nargs = sys.argv[1:]\nassert '-fsycl' in args, args\n"
        "given = [a for a in args if a.startswith('-Xstarget=')]\nprint(given)\n"
        "kept = [a for a in args if not a.startswith(('-fsycl', '-fintelfpga', '-Xs'))]\n"
        f"sys.exit(subprocess.run(['g++', '-std=c++17', '-w', '-I{ROOT}/sim/sycl', *kept]).returncode)\n"
    )
    compiler.chmod(0o755)

    def make(target: str) -> str:
        done = subprocess.run(
            ["make", f"CXX={compiler}", target], cwd=project, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    make("check")
    assert repr([f"-Xstarget={part}"]) in make("hardware")
    assert not list(project.rglob("injected"))
    x = np.random.default_rng(0).integers(-128, 128, (5, 2, 6, 6)).astype(np.int8)
    (project / "x.bin").write_bytes(np.ascontiguousarray(x.transpose(0, 2, 3, 1)).tobytes())
    (name,) = project.glob("*.fpga")
    subprocess.run([name, "x.bin", "y.bin"], cwd=project, check=True)
    got = np.frombuffer((project / "y.bin").read_bytes(), np.int8).reshape(5, -1)
    scale, zero = 0.05, 3
    floats = (x.astype(np.float64) - zero) * scale
    np.testing.assert_allclose(compiled(floats.astype(np.float32)), got * 0.1, atol=1e-6)
    (project / "x.bin").write_bytes(b"123")
    refused = subprocess.run([name, "x.bin", "y.bin"], cwd=project, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "whole samples of 72 bytes" in refused.stderr
    assert subprocess.run([name], cwd=project, capture_output=True, check=False).returncode == 2


_TWO_PORTS = """#include <sycl/ext/intel/fpga_extensions.hpp>
#include <sycl/sycl.hpp>
inline void top(sycl::queue &queue, int samples, const unsigned char *a, const unsigned char *b, unsigned char *out) {
  for (int n = 0; n < samples; ++n) out[n] = a[n] + b[2 * n + 1];
}
"""


@pytest.mark.needs("g++")
def test_the_host_program_counts_samples_in_every_file(tmp_path: Path) -> None:
    """Also where the first file is empty: then no other may hold any."""
    ports = ((Port("a", (1,), "u8"), Port("b", (2,), "u8")), (Port("y", (1,), "u8"),))
    graph: Any = SimpleNamespace(ports=lambda: ports)
    files = host_files(graph, "net", "part", (), Golden())
    for name, data in {**files, "src/net.sycl.cpp": _TWO_PORTS.encode()}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    program = tmp_path / "net"
    command = ["g++", "-std=c++17", "-w", f"-I{ROOT}/sim/sycl", tmp_path / "host/main.cpp", "-o", program]
    subprocess.run(command, check=True)

    def run(a: bytes, b: bytes) -> subprocess.CompletedProcess[str]:
        (tmp_path / "a").write_bytes(a)
        (tmp_path / "b").write_bytes(b)
        return subprocess.run([program, "a", "b", "y"], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert run(b"\1\2", b"\0\3\0\4").returncode == 0
    assert (tmp_path / "y").read_bytes() == b"\4\6"
    assert run(b"", b"").returncode == 0
    for a, b in ((b"", b"123456"), (b"1", b""), (b"1", b"1234")):
        refused = run(a, b)
        assert refused.returncode == 1, refused
        assert "b doesn't hold as many samples as a" in refused.stderr


@pytest.mark.parametrize("empty", [0, 1])
def test_the_host_program_has_no_port_without_elements(empty: int) -> None:
    ports = [(Port("x", (3, 2), "i8"),), (Port("y", (3,), "f32"),)]
    ports[empty] = (Port("nothing", (3, 0), "i8"),)
    graph: Any = SimpleNamespace(ports=lambda: tuple(ports))
    with pytest.raises(CuvilError, match=r"port nothing of shape \[3, 0\] has no elements"):
        host_files(graph, "net", "part", (), Golden())
