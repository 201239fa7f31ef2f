"""A conformance kit: whether an adapter keeps the contract of adapters/base.py, as far as small networks show it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np

from cuvil_hw import api, dtypes, ops
from cuvil_hw.adapters.base import Adapter, Form
from cuvil_hw.adapters.target_check import adapter_for, check_file
from cuvil_hw.contract.device import Array
from cuvil_hw.errors import CuvilError, DoesNotFit, Unsupported
from cuvil_hw.ir.program import Builder, Program, evaluate
from cuvil_hw.runtime.executable import Executable
from cuvil_hw.schedule.kernel import KernelGraph
from cuvil_hw.schedule.resources import RULES
from cuvil_hw.schedule.space import Objective
from cuvil_hw.target.profile import Profile, load_profile
from cuvil_hw.types import TensorType as T

SAMPLES = 3
TOLERANCE = 1e-4  # of floats, absolute and relative to the largest: sums of at most 200 products of numbers near 1


def check_adapter(target: str | Path | Profile, interface: str | None = None) -> None:
    """Compile small networks, of integers and of floats, for `target` and run them on its device `interface` (None: the
    usual one), against what the ops mean in NumPy: integers to the bit. A device called "null" computes nothing, so
    that only shapes are compared. Networks that the adapter refuses are left out; one at least must remain.

    Raises AssertionError that says what breaks the contract, and CuvilError as compiling and running do."""
    if isinstance(target, Path) or str(target).endswith((".yaml", ".yml")):
        check_file(Path(str(target)))
    profile = load_profile(target)
    adapter = adapter_for(profile, interface)
    _attributes(adapter, profile)
    ran = [name for name, make in NETWORKS.items() if _runs(make, adapter, profile, interface)]
    _say(bool(ran), adapter, f"refuses every network: {', '.join(NETWORKS)}")
    try:
        adapter_for(profile, "no such interface")
    except CuvilError:
        return
    _say(False, adapter, "takes an interface that it doesn't have")


def _say(right: bool, adapter: Adapter, fault: str) -> None:
    if not right:
        raise AssertionError(f"adapter {adapter.name} {fault}")


def _attributes(adapter: Adapter, profile: Profile) -> None:
    _say(adapter.name == profile.adapter, adapter, f"is registered as {profile.adapter}; both are one name")
    _say(adapter.interface in adapter.interfaces, adapter, f"opens {adapter.interface!r}, which isn't in `interfaces`")
    _say(adapter.objective in get_args(Objective), adapter, f"has objective {adapter.objective!r}")
    aligned = adapter.alignment > 0 and not adapter.alignment & (adapter.alignment - 1)
    _say(aligned, adapter, f"aligns to {adapter.alignment} bytes, no power of two")
    _say(isinstance(adapter.float_ends, bool), adapter, f"has float_ends {adapter.float_ends!r}")
    for axis, rule in adapter.axes.items():
        _say(rule in RULES, adapter, f"states rule {rule!r} for {axis}; there are {', '.join(RULES)}")
        _say(axis in {a.name for a in profile.axes}, adapter, f"needs a limit for {axis}, which {profile.name} hasn't")


def _runs(make: Callable[[], Program], adapter: Adapter, profile: Profile, interface: str | None) -> bool:
    """Whether the network runs on the target, and then rightly."""
    try:
        parts = api.divide(make(), adapter, profile)
    except Unsupported as e:
        _say(all(r.reason.strip() for r in e.refusals), adapter, "refuses an op without a reason")
        return False
    graph = api.fuse(parts.core, adapter)
    if all(k.ops == ("identity",) for k in graph.kernels):
        return False  # the processor does it all
    _offers(graph, adapter, profile)
    _limits(graph, adapter, profile)
    first, second = (_compiled(make(), adapter, profile, interface) for _ in range(2))
    _say(first.artifact.files == second.artifact.files, adapter, "makes other bytes of the same program")
    with first:
        _compare(make(), first, adapter)
    return True


def _offers(graph: KernelGraph, adapter: Adapter, profile: Profile) -> None:
    offer = adapter.offer(graph, profile)
    count = f"forms for {len(offer.forms)} of {len(graph.kernels)} kernels"
    _say(len(offer.forms) == len(graph.kernels), adapter, f"offers {count}")
    for kernel, offered in zip(graph.kernels, offer.forms, strict=True):
        forms = set(offered)
        _say(bool(forms), adapter, f"offers nothing for {kernel.name}")
        for form in forms:
            _form(form, adapter, profile)
        _say(len({f.describe() for f in forms}) == len(forms), adapter, f"describes forms of {kernel.name} alike")


def _form(form: Form, adapter: Adapter, profile: Profile) -> None:
    name = type(form).__name__
    params = getattr(form, "__dataclass_params__", None)
    _say(params is not None and params.frozen, adapter, f"offers {name}, which is no frozen dataclass")
    first, second = form.estimate(profile), form.estimate(profile)
    for what, value in {"seconds": first.seconds, "cycles": first.cycles, **first.use}.items():
        _say(bool(np.isfinite(value)) and value >= 0, adapter, f"estimates {what} of {name} as {value}")
    _say(first == second, adapter, f"estimates {name} otherwise when it is asked again")


def _limits(graph: KernelGraph, adapter: Adapter, profile: Profile) -> None:
    """With none of a resource that it takes, a design doesn't fit, and the error names it."""
    proposals = api.propose(graph, adapter, profile)
    for axis in adapter.axes:
        least = [min(c.estimate.use.get(axis, 0.0) for c in k.candidates) for k in proposals.kernels]
        if not any(least):
            continue
        none = replace(profile, axes=tuple(replace(a, limit=0.0) if a.name == axis else a for a in profile.axes))
        try:
            api.choose(api.propose(graph, adapter, none), none)
        except DoesNotFit as e:
            _say(e.axis == axis, adapter, f"has none of {axis}, and {e.axis} is said to be short")
        else:
            _say(False, adapter, f"fits a profile with none of {axis}, of which it takes {max(least):g}")


def _compiled(program: Program, adapter: Adapter, profile: Profile, interface: str | None) -> Executable:
    precision = "float32" if any(dtypes.is_float(kind.dtype) for _, kind in program.inputs) else None
    return api.compile_program(program, profile, adapter, None, precision, interface, lambda step: None)


def _compare(program: Program, made: Executable, adapter: Adapter) -> None:
    rng = np.random.default_rng(0)
    inputs = [_drawn(rng, (SAMPLES, *kind.shape[1:]), kind.dtype) for _, kind in program.inputs]
    single = [evaluate(program, [x[n : n + 1] for x in inputs]) for n in range(SAMPLES)]
    got = made.run(*inputs).outputs
    together = [np.concatenate(each) for each in zip(*single, strict=True)]
    for (name, _), found, wanted in zip(program.outputs, got, together, strict=True):
        where = f"{program.name}: output {name}"
        _say(found.shape == wanted.shape and found.dtype == wanted.dtype, adapter, f"gives another type of {where}")
        if made.interface == "null":
            continue
        if np.issubdtype(wanted.dtype, np.floating):
            far = float(np.abs(found - wanted).max() / max(1.0, np.abs(wanted).max()))
            _say(far <= TOLERANCE, adapter, f"is off by {far:.2g} in {where}")
        else:
            different = int(np.count_nonzero(found != wanted))
            _say(not different, adapter, f"differs in {different} of {wanted.size} elements of {where}")


def _drawn(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> Array:
    if dtypes.is_float(dtype):
        return rng.normal(size=shape).astype(dtypes.to_numpy(dtype))
    low, high = dtypes.int_range(dtype)
    return rng.integers(low, high, shape, np.int64, endpoint=True).astype(dtypes.to_numpy(dtype))


def _integers() -> Program:
    """Convolutions, a pool, a sum of branches and a dense layer on bytes."""
    rng, one = np.random.default_rng(1), (1, 1)
    b = Builder([("image", T((1, 2, 6, 6), "i8"))], "integers")
    x = b.input(0)
    y = b.op(ops.Conv(one, (1, 1, 1, 1), one, x_zp=3, acc="i32"), x, b.const(_drawn(rng, (4, 2, 3, 3), "i8")))
    y = b.op(ops.Rescale((1 << 30,) * 4, (38, 37, 38, 39), "i8"), y)
    z = b.op(ops.Conv(one, (1, 1, 1, 1), one, groups=4, acc="i32"), y, b.const(_drawn(rng, (4, 1, 3, 3), "i8")))
    z = b.op(ops.Relu(), b.op(ops.Rescale((1 << 30,), (36,), "i8"), z))
    y = b.op(ops.MaxPool((2, 2), (2, 2), (0, 0, 0, 0), one), b.op(ops.Maximum(), y, z))
    y = b.op(ops.Linear(0, (0,), "i32"), b.op(ops.Reshape((1, 36)), y), b.const(_drawn(rng, (5, 36), "i8")))
    return b.finish([("small", b.op(ops.Rescale((1 << 30,), (40,), "i8"), y)), ("wide", y)])


def _floats() -> Program:
    """Dense layers with a function of its values between them, and a softmax."""
    rng = np.random.default_rng(2)
    b = Builder([("x", T((1, 24), "f32"))], "floats")
    y = b.op(ops.Linear(), b.input(0), b.const(_drawn(rng, (40, 24), "f32") / 5), b.const(_drawn(rng, (40,), "f32")))
    y = b.op(ops.Linear(), b.op(ops.Tanh(), y), b.const(_drawn(rng, (6, 40), "f32") / 5))
    return b.finish([("y", b.op(ops.Softmax(1), y))])


NETWORKS: Mapping[str, Callable[[], Program]] = {"integers": _integers, "floats": _floats}
