"""How a compiled PyTorch model is called: nested arguments and results, fixed values, and state."""

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


class Hidden(nn.Module):
    """State outside buffers, of several kinds."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.count, self.last, self.seen = kind, 0, None, []
        self.inner = nn.Linear(3, 3)
        self.inner.scale = 1.0

    def forward(self, x: Any) -> Any:
        if self.kind == "counter":
            self.count += 1
            return x * self.count
        if self.kind == "tensor":
            x = x if self.last is None else x + self.last
            self.last = x
        if self.kind == "list":
            self.seen.append(x)
            return sum(self.seen)
        if self.kind == "inner":
            self.inner.scale /= 2
        if self.kind == "new":
            x = x + getattr(self, "extra", 0)
            self.extra = 1
        if self.kind == "cache":  # what every call would compute
            self.last = torch.arange(3.0) if self.last is None else self.last
            self.count += 1
            return x + self.last
        return self.inner(x) * self.inner.scale


@pytest.mark.parametrize(
    ("kind", "name"),
    [("counter", "self.count"), ("tensor", "self.last"), ("list", "self.seen"), ("inner", "self.inner.scale"),
     ("new", "self.extra")],
)  # fmt: skip
def test_state_outside_buffers_is_refused(kind: str, name: str) -> None:
    model = Hidden(kind)
    with pytest.raises(CuvilError, match=f"changes {name}, and later calls depend on it.*register_buffer"):
        load(model, torch.zeros(3))
    assert (model.count, model.last, model.seen, model.inner.scale) == (0, None, [], 1.0)
    assert not hasattr(model, "extra")


def test_caches_in_attributes_are_no_state() -> None:
    model = Hidden("cache")
    program = load(model, torch.zeros(3))
    assert (model.count, model.last) == (0, None)
    np.testing.assert_array_equal(evaluate(program, [np.ones(3, np.float32)])[0], [1, 2, 3])


def test_a_parameter_that_the_forward_changes_is_state() -> None:
    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))

        def forward(self, x: Any) -> Any:
            with torch.no_grad():
                self.w.add_(1)
            return x * self.w

    program = cuvil.compile(Growing(), "cpu", example_inputs=torch.ones(3))
    assert [float(program(torch.ones(3))[0]) for _ in range(3)] == [2, 3, 4]
