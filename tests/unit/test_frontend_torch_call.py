"""How a compiled PyTorch model is called: nested arguments and results, fixed values, state, writes, strides, sizes."""

from __future__ import annotations

import subprocess
import sys
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("xdsl")
from torch import nn  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

import cuvil  # noqa: E402
from cuvil_hw.errors import CuvilError, InputError  # noqa: E402
from cuvil_hw.frontend import load  # noqa: E402
from cuvil_hw.ir.program import evaluate  # noqa: E402

Pair = namedtuple("Pair", "a b")


@dataclass
class Box:
    p: Any
    q: Any = None


class Output(OrderedDict[str, Any]):
    """As the outputs of Hugging Face models: a dict with attributes, registered without names of its children."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


torch.export.register_dataclass(Box, serialized_type_name="tests.Box")
pytree.register_pytree_node(
    Output, lambda o: (list(o.values()), list(o)), lambda values, keys: Output(zip(keys, values, strict=True))
)


def rand(*shape: int, seed: int = 0) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Nested(nn.Module):
    def forward(
        self, box: Box, pair: Pair, *rest: Any, table: Any = None, mode: str = "sum", scale: float = 2.0
    ) -> Any:
        total = box.p + pair.a * pair.b + rest[0] * scale + (table["x"][0] if table is not None else 0)
        total = total if mode == "sum" else -total
        return Pair(total, {"k": [total * 2, box.q]}), Box(box.p, None), (mode, 3, None), Output(u=total, v=pair.a)


def arguments(draw: int = 0) -> tuple[tuple[Any, ...], dict[str, Any]]:
    t = [rand(2, 3, seed=10 * draw + i) for i in range(6)]
    return (Box(t[0], t[1]), Pair(t[2], t[3]), t[4]), {"table": {"x": [t[5], "label"]}}


def same(got: Any, want: Any) -> None:
    """Equal structure, classes and numbers."""
    leaves, spec = pytree.tree_flatten(got)
    wanted, expected = pytree.tree_flatten(want)
    assert spec == expected
    for a, b in zip(leaves, wanted, strict=True):
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
        else:
            assert a == b
            assert type(a) is type(b)


class Keywords(nn.Module):
    """Named arguments of all kinds around `Nested`."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Nested()

    def forward(self, box: Box, pair: Pair, extra: Any, *, table: Any = None, mode: str = "sum") -> Any:
        return self.inner(box, pair, extra, table=table, mode=mode)


@pytest.fixture(scope="module")
def nested(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    args, named = arguments()
    example = {"table": named["table"], "extra": args[2], "box": args[0], "pair": args[1]}  # in any order
    program = cuvil.compile(Keywords(), "cpu", example_inputs=example)
    path = tmp_path_factory.mktemp("nested") / "nested.cuvil"
    program.save(path)
    return program, path


def test_a_program_takes_and_gives_the_models_own_structures(nested: tuple[Any, Path]) -> None:
    program, _ = nested
    args, named = arguments(1)
    same(program(*args, **named), Keywords()(*args, **named))
    same(program(args[0], pair=args[1], extra=args[2], mode="sum", **named), Keywords()(*args, **named))
    arrays = pytree.tree_map(lambda v: v.numpy() if isinstance(v, torch.Tensor) else v, (args, named))
    got = program(*arrays[0], **arrays[1])
    assert all(isinstance(v, np.ndarray | str | int | None) for v in pytree.tree_leaves(got))
    same(
        pytree.tree_map(lambda v: torch.from_numpy(v) if isinstance(v, np.ndarray) else v, got),
        Keywords()(*args, **named),
    )
    flat = {p.name: v for p, v in zip(program.inputs, (*pytree.tree_leaves(args), named["table"]["x"][0]), strict=True)}
    same(program(flat), Keywords()(*args, **named))  # by the names of ports
    assert [p.name for p in program.outputs] == ["out0.a", "out0.b.k.0", "out0.b.k.1", "out1.p", "out3.u", "out3.v"]


def test_a_loaded_program_gives_plain_structures_without_torch(nested: tuple[Any, Path]) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['xdsl'] = None\n"
        "import numpy as np, cuvil\n"
        "x = np.ones((2, 3), np.float32)\n"
        f"program = cuvil.load({str(nested[1])!r})\n"
        "first, box, plain, out = program({'p': x, 'q': 2 * x}, (x, 3 * x), x, table={'x': [x, 'label']})\n"
        "assert type(first).__name__ == 'Pair' and type(first.b['k']) is list and first.a[0, 0] == 7, first\n"
        "assert (first.b['k'][0] == 14).all() and (first.b['k'][1] == 2).all()\n"
        "assert set(box) == {'p', 'q'} and box['q'] is None and plain == ('sum', 3, None) and type(plain) is tuple\n"
        "assert sorted(out) == ['u', 'v'] and type(out) is dict and out['u'].shape == (2, 3)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"mode": "minus"}, "'mode' was left at its default"),
        ({"table": {"x": [0, "other"]}}, r"table\['x'\]\[1\]: the model was compiled for the value 'label', 'other'"),
        ({"table": {"x": (0, "label")}}, r"table\['x'\]: a tuple of 2 given, a list of 2 expected"),
        ({"table": {"y": 1}}, "'x' is missing; its keys are 'x'"),
        ({"table": None}, "a NoneType given, dict or dict with 'x'"),
        ({"tables": 1}, "no argument 'tables'; the model takes box, pair, extra, table, mode"),
        ({"extra": 1}, "'extra' is given by position and by name"),
    ],
)
def test_what_does_not_fit_is_refused(nested: tuple[Any, Path], change: dict[str, Any], why: str) -> None:
    args, named = arguments()
    if isinstance(change.get("table"), dict) and "x" in change["table"]:
        kind = type(change["table"]["x"])
        change = {"table": {"x": kind((args[2], change["table"]["x"][1]))}}
    for program in (nested[0], cuvil.load(nested[1])):
        with pytest.raises(InputError, match=why):
            program(*args, **{**named, **change})


def test_missing_and_surplus_arguments_are_refused(nested: tuple[Any, Path]) -> None:
    args, named = arguments()
    with pytest.raises(InputError, match="argument 'extra' is missing"):
        nested[0](*args[:2], **named)
    with pytest.raises(InputError, match="4 arguments given by position, the model takes 3"):
        nested[0](*args, 1, **named)
    with pytest.raises(InputError, match=r"argument box\.q: None given"):
        nested[0](Box(args[0].p), *args[1:], **named)
    with pytest.raises(InputError, match=r"argument pair: a tuple of 3 given, a Pair of 2 expected"):
        nested[0](args[0], (1, 2, 3), args[2], **named)


class Fixed(nn.Module):
    def forward(self, x: Any, steps: int, flag: bool = True, factor: float = 0.5, name: str = "a") -> Any:
        for _ in range(steps):
            x = x * factor + (1 if flag else 2)
        return [x]


def test_python_values_are_compiled_in_and_checked() -> None:
    program = cuvil.compile(Fixed(), "cpu", example_inputs=(rand(3), 3, False))
    x = rand(3, seed=1)
    for call in ((x, 3, False), (x, np.int64(3), False, 0.5), (x, 3, False, 0.5, "a")):
        same(program(*call), Fixed()(*call))
    for wrong in (
        (x, 4, False),
        (x, 3, True),
        (x, 3),
        (x, 3.0, False),
        (x, 3, 0),
        (x, 3, False, 0.25),
        (x, True, False),
    ):
        with pytest.raises(InputError, match=r"compiled for the value|left at its default"):
            program(*wrong)
    with pytest.raises(InputError, match="argument 'steps' is missing"):
        program(x, flag=False)
    assert isinstance(cuvil.compile(Fixed(), "cpu", example_inputs=(x, 0))(x.numpy(), 0)[0], np.ndarray)


def test_examples_that_do_not_fit_the_forward() -> None:
    with pytest.raises(CuvilError, match="missing a required argument: 'steps'"):
        load(Fixed(), rand(3))
    with pytest.raises(CuvilError, match=r"missing a required argument: 'box'.*goes into a tuple: \(\{\.\.\.\},\)"):
        load(Nested(), {"a": rand(3)})
    with pytest.raises(CuvilError, match=r"example input 0\.a is a set"):
        load(nn.Identity(), ({"a": {1}},))


class OneDict(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"y": self.layer(batch["x"]) * batch["gain"]}


def test_calibration_takes_calls_of_nested_models() -> None:
    torch.manual_seed(0)
    model = OneDict().requires_grad_(False)
    calls = [({"x": rand(1, 4, seed=i), "gain": rand(1, 2, seed=-i).sigmoid()},) for i in range(1, 20)]
    program = cuvil.compile(model, "cpu", example_inputs=calls[0], calibration=calls, precision="int8")
    for call in calls[:3]:
        assert (program(*call)["y"] - model(*call)["y"]).abs().max() < 0.1
    with pytest.raises(InputError, match="'gain' is missing"):
        cuvil.compile(model, "cpu", example_inputs=calls[0], calibration=[({"x": 1},)], precision="int8")


class Cache(nn.Module):
    """A cache of keys with its write position, a running count, a buffer that only changes, and one that doesn't."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", rand(4, 3, seed=5))
        self.register_buffer("at", torch.zeros(1, dtype=torch.int64), persistent=False)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("fixed", torch.ones(4))

    def forward(self, x: Any) -> Any:
        self.keys.index_copy_(0, self.at, x)
        self.at.add_(1).remainder_(4)
        self.seen += x.abs().sum()
        return {"scores": self.keys @ x[0] + self.fixed, "at": self.at}


def test_buffers_that_the_forward_changes_are_state(tmp_path: Path) -> None:
    model, program = Cache(), cuvil.compile(Cache(), "cpu", example_inputs=rand(1, 3))
    assert sorted(program.state) == ["at", "keys", "seen"]
    assert [p.name for p in (*program.inputs, *program.outputs)] == ["x", "scores", "at"]
    inputs = [rand(1, 3, seed=i) for i in range(6)]
    wanted = [pytree.tree_map(torch.clone, model(x)) for x in inputs]
    program.save(tmp_path / "cache.cuvil")
    for executable in (program, cuvil.load(tmp_path / "cache.cuvil")):
        for _ in range(2):
            for x, want in zip(inputs, wanted, strict=True):
                same(executable(x), want)
            for name, array in executable.state.items():
                np.testing.assert_allclose(array, getattr(model, name).numpy(), rtol=1e-5)
            executable.reset()
        np.testing.assert_array_equal(executable.state["keys"], Cache().keys.numpy())
    assert {s["name"] for s in program.report["state"]} == {"at", "keys", "seen"}


class Stream(nn.Module):
    """A convolution over a window that slides by two samples a call."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.conv = nn.Conv1d(2, 4, 3)
        self.register_buffer("window", torch.zeros(1, 2, 6))

    def forward(self, x: Any) -> Any:
        self.window.copy_(torch.cat([self.window[:, :, 2:], x], 2))
        return self.conv(self.window).relu()


def test_state_of_a_quantized_stream_has_the_same_bits_on_an_fpga() -> None:
    chunks = rand(12, 1, 2, 2).numpy()
    compiled = {
        target: cuvil.compile(Stream(), target, example_inputs=chunks[0], calibration=chunks, precision="int8")
        for target in ("cpu", "pynq-z2")
    }
    model = Stream()
    with torch.no_grad():
        for chunk in chunks:
            cpu, fpga = (program(chunk) for program in compiled.values())
            assert np.array_equal(cpu, fpga)
            assert np.abs(cpu - model(torch.from_numpy(chunk)).numpy()).max() < 0.1


class Writes(nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        x.mul_(2)
        x[:, 0] = 7
        return x.sum() + y


@pytest.fixture(scope="module")
def writes() -> Any:
    return cuvil.compile(Writes(), "cpu", example_inputs=(rand(2, 3), rand(2, 3)))


def test_what_a_model_writes_into_its_inputs_is_written(writes: Any) -> None:
    assert [p.name for p in writes.outputs] == ["out0"]
    x, y, eager = rand(2, 3, seed=1), rand(2, 3), rand(2, 3, seed=1)
    want = Writes()(eager, y)
    same(writes(x, y), want)
    same(x, eager)
    wide = np.zeros((3, 2), np.float32)
    wide.T[...] = rand(2, 3, seed=1).numpy()
    np.testing.assert_allclose(writes(wide.T, y.numpy()), want.numpy(), rtol=1e-6)
    np.testing.assert_array_equal(wide.T, eager.numpy())


@pytest.mark.parametrize(
    ("x", "why"),
    [
        ([[1.0] * 3] * 2, "a list can't be written to"),
        (np.frombuffer(bytes(24), np.float32).reshape(2, 3), "read-only"),
        (torch.ones(3).expand(2, 3), "share memory"),
        (np.ones((2, 3)), "float64, not float32"),
        (np.ones((2, 3), ">f4")[:1].repeat(2, 0).astype("f2"), "float16, not float32"),
    ],
    ids=["list", "read-only", "expanded", "f64", "f16"],
)
def test_inputs_that_can_not_be_written_are_refused(writes: Any, x: Any, why: str) -> None:
    with pytest.raises(InputError, match=f"input 'x': the model writes into it.*{why}|a list can't be written to"):
        writes(x, rand(2, 3))


def laid_out(x: Any) -> dict[str, Any]:
    """The numbers of `x` (N, C, H, W) in every layout that an input may have."""
    a = x.numpy()
    wide = torch.zeros(*x.shape[:-1], 2 * x.shape[-1])
    wide[..., ::2] = x
    return {
        "channels_last": x.to(memory_format=torch.channels_last),
        "transposed": x.transpose(2, 3).contiguous().transpose(2, 3),
        "strided": wide[..., ::2],
        "offset": torch.cat([x, x])[x.shape[0] :],
        "negative": np.ascontiguousarray(a[:, ::-1, :, ::-1])[:, ::-1, :, ::-1],
        "big_endian": a.astype(">f4"),
        "fortran": np.asfortranarray(a),
        "read_only": np.broadcast_to(a, a.shape),
        "unaligned": np.frombuffer(b"x" + a.tobytes(), np.uint8)[1:].view(np.float32).reshape(a.shape),
        "list": a.tolist(),
        "f64": a.astype(np.float64),
    }


def test_any_layout_gives_the_same_numbers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 1)).requires_grad_(False)
    model.to(memory_format=torch.channels_last)
    x = rand(1, 3, 5, 4)
    program = cuvil.compile(model, "cpu", example_inputs=x.to(memory_format=torch.channels_last))
    program.save(tmp_path / "p.cuvil")
    for executable in (program, cuvil.load(tmp_path / "p.cuvil")):
        want = executable(x.numpy())
        np.testing.assert_allclose(want, model(x).numpy(), rtol=1e-5, atol=1e-6)
        for batch in (x, torch.cat([x, -x, x])):
            want = executable(batch.numpy())
            for name, value in laid_out(batch).items():
                assert np.array_equal(np.asarray(executable(value)), want), name
        expanded = executable(x[:, :1, :1].expand(2, 3, 5, 4))
        assert np.array_equal(expanded.numpy(), executable(x[:, :1, :1].expand(2, 3, 5, 4).contiguous().numpy()))
        assert executable(np.zeros((0, 3, 5, 4), np.float32)).shape == (0, 2, 5, 4)


def test_inputs_without_elements() -> None:
    class Sums(nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return x.sum(1), torch.cat([x, y], 1)

    program = cuvil.compile(Sums(), "cpu", example_inputs=(torch.zeros(2, 0), rand(2, 3)))
    same(program(torch.zeros(0, 2).T, rand(3, 2).T), Sums()(torch.zeros(2, 0), rand(3, 2).T))


def dynamic() -> Any:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x: Any, y: Any) -> Any:
            return {"n": self.layer(x) * x.shape[0] + y.sum(), "flat": x.reshape(-1)[: x.shape[0]]}

    n, k = torch.export.Dim("n", min=2, max=9), torch.export.Dim("k", min=2)
    return torch.export.export(Head(), (rand(3, 4), rand(5)), dynamic_shapes=({0: n}, {0: k}))


def test_an_exported_program_with_symbolic_sizes_takes_sizes() -> None:
    exported = dynamic()
    x, y = rand(7, 4), rand(2)
    with torch.no_grad():
        want = exported.module()(x, y)
    for given in ({"example_inputs": (x, y)}, {"shapes": {"x": (7, 4), "y": (2,)}}):
        program = load(exported, **given)
        assert [tuple(t.shape) for _, t in program.inputs] == [(7, 4), (2,)]
        got = dict(zip((n for n, _ in program.outputs), evaluate(program, [x.numpy(), y.numpy()]), strict=True))
        for name, value in want.items():
            np.testing.assert_allclose(got[name], value.numpy(), rtol=1e-5)
    assert any("test_frontend_torch_call.py" in str(op) or "layer" in str(op) for op in program.ops())


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, r"symbolic sizes: x \(.*, 4\), y .* in \[2, 9\].*give example_inputs, or shapes="),
        ({"shapes": {"x": (7, 4)}}, "symbolic sizes"),
        ({"shapes": {"x": (7, 4), "y": (2,), "z": (1,)}}, "shapes names z; the inputs are x, y"),
        ({"shapes": {"x": (10, 4), "y": (2,)}}, "can't take these sizes.*9"),
        ({"shapes": {"x": (7, 5), "y": (2,)}}, "can't take these sizes"),
        ({"example_inputs": (rand(7, 4),)}, "missing a required argument|can't take these sizes"),
    ],
)
def test_sizes_that_are_missing_or_wrong(given: dict[str, Any], why: str) -> None:
    with pytest.raises(CuvilError, match=why):
        load(dynamic(), **given)


def test_the_command_line_gives_arrays_to_ports(nested: tuple[Any, Path], tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from cuvil_hw.cli.app import app

    args, named = arguments(2)
    leaves = [*pytree.tree_leaves(args), named["table"]["x"][0]]
    files = []
    for i, leaf in enumerate(leaves):
        np.save(tmp_path / f"{i}.npy", leaf.numpy())
        files += ["-i", str(tmp_path / f"{i}.npy")]
    done = CliRunner().invoke(app, ["run", str(nested[1]), *files, "-o", str(tmp_path / "y.npz")])
    assert done.exit_code == 0, done.output
    want = Keywords()(*args, **named)[0].a
    np.testing.assert_allclose(np.load(tmp_path / "y.npz")["out0.a"], want.numpy(), rtol=1e-5)
