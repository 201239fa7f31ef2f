"""The part of a program that runs on the processor, in NumPy, before and after the device: ops at the ends of a model
that the target refuses, such as quantize, dequantize and softmax.

Values have names. Each is a stack of samples, shape (N, *shape of one sample).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import cuvil_hw.ops  # noqa: F401  (fills the registry of ops)
from cuvil_hw import dtypes
from cuvil_hw.contract.device import Array
from cuvil_hw.errors import CuvilError
from cuvil_hw.expr.nodes import Load, Reduce, parallel, placeholder
from cuvil_hw.expr.traverse import walk
from cuvil_hw.ops.base import Op, compute, evaluate, from_json, infer, to_json
from cuvil_hw.types import TensorType


@dataclass(frozen=True, slots=True)
class HostStep:
    """One op: mnemonic and attributes as JSON values; operands and results by name."""

    op: str
    attrs: Mapping[str, Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @classmethod
    def of(cls, op: Op, inputs: Sequence[str], outputs: Sequence[str]) -> HostStep:
        return cls(op.mnemonic, to_json(op), tuple(inputs), tuple(outputs))


@dataclass(frozen=True, slots=True)
class HostProgram:
    """Steps in order. `inputs`, `outputs`: names of the arrays that it takes and returns, in order.

    A step may also read constants (named arrays of the artifact) and, in the epilogue, every value of the prologue.
    """

    steps: tuple[HostStep, ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Step:
    op: Op
    step: HostStep
    results: tuple[TensorType, ...]
    whole: bool


@dataclass(frozen=True, slots=True)
class Prepared:
    """A HostProgram with its ops built and types known, ready to run many times, from several threads.

    `types`: of every value by name, including those passed to `prepare`. `constants`: arrays by name.
    """

    program: HostProgram
    steps: tuple[_Step, ...]
    types: Mapping[str, TensorType]
    constants: Mapping[str, Array] = field(repr=False)

    def output_types(self) -> tuple[TensorType, ...]:
        return tuple(self.types[name] for name in self.program.outputs)

    def run(self, values: Mapping[str, Array], n: int) -> dict[str, Array]:
        """`values` (name → (N, *shape)) together with the results of every step."""
        result = dict(values)
        for step in self.steps:
            result.update(zip(step.step.outputs, self._run(step, result, n), strict=True))
        return result

    def pick(self, values: Mapping[str, Array], n: int) -> list[Array]:
        """The program's outputs from `values`; a constant is repeated for every sample."""
        return [self._stack(values, name, n) for name in self.program.outputs]

    def _stack(self, values: Mapping[str, Array], name: str, n: int) -> Array:
        if name in values:
            return values[name]
        constant = self.constants[name]
        return np.broadcast_to(constant, (n, *constant.shape))

    def _run(self, step: _Step, values: Mapping[str, Array], n: int) -> list[Array]:
        names = step.step.inputs
        if step.whole:
            flat = [v.reshape(n, *v.shape[2:]) for v in (values[name] for name in names)]
            outputs = _evaluate(step, flat)
            return [o.reshape(n, *t.shape) for o, t in zip(outputs, step.results, strict=True)]
        stacks = [np.empty((n, *t.shape), dtypes.to_numpy(t.dtype)) for t in step.results]
        for i in range(n):
            one = [values[name][i] if name in values else self.constants[name] for name in names]
            for stack, output in zip(stacks, _evaluate(step, one), strict=True):
                stack[i] = output
        return stacks


def _evaluate(step: _Step, operands: Sequence[Array]) -> Sequence[Array]:
    try:
        return evaluate(step.op, operands)
    except (ArithmeticError, LookupError, MemoryError, TypeError, ValueError) as e:
        raise CuvilError(f"host step {step.step.op} failed: {type(e).__name__}: {e}") from e


def prepare(program: HostProgram, types: Mapping[str, TensorType], constants: Mapping[str, Array]) -> Prepared:
    """Build the ops of `program`. `types`: of the values that exist before it runs.

    Raises CuvilError for an unknown op, an undefined or redefined name, or operands that an op doesn't take."""
    known = {name: TensorType(a.shape, dtypes.from_numpy(a.dtype)) for name, a in constants.items()}
    known.update(types)
    held = set(types)
    steps = []
    for number, step in enumerate(program.steps):
        at = f"host step {number} ({step.op})"
        try:
            op = from_json(step.op, step.attrs)
        except (TypeError, ValueError) as e:
            raise CuvilError(f"{at}: wrong attributes: {e}") from e
        missing = [name for name in step.inputs if name not in known]
        if missing:
            raise CuvilError(f"{at}: reads {missing[0]!r}, which nothing before it defines")
        operands = [known[name] for name in step.inputs]
        results = infer(op, operands)
        if len(results) != len(step.outputs):
            raise CuvilError(f"{at}: has {len(results)} result(s), {len(step.outputs)} name(s) for them")
        for name, result in zip(step.outputs, results, strict=True):
            if name in known:
                raise CuvilError(f"{at}: defines {name!r} again")
            known[name] = result
            held.add(name)
        whole = all(name in held for name in step.inputs) and sample_wise(op, operands)
        steps.append(_Step(op, step, results, whole))
    undefined = [name for name in program.outputs if name not in known]
    if undefined:
        raise CuvilError(f"host program hands on {undefined[0]!r}, which nothing defines")
    return Prepared(program, tuple(steps), known, constants)


def sample_wise(op: Op, operands: Sequence[TensorType]) -> bool:
    """Whether samples stacked along axis 0 can be evaluated in one go with the same bits as one by one.

    Proved from the op's own loops, with a batch of 3 in place of 1: each output element reads only elements with the
    same first index, that index is used for nothing else, and nothing is summed (NumPy's order of summation may depend
    on the batch).
    """
    if not operands or any(not t.shape or t.shape[0] != 1 for t in operands):
        return False
    if type(op).compute is Op.compute:
        return False
    probes = [replace(t, shape=(3, *t.shape[1:])) for t in operands]
    try:
        single = infer(op, operands)
        several = infer(op, probes)
        tensors = compute(op, [placeholder(f"x{k}", t) for k, t in enumerate(probes)])
    except CuvilError:
        return False  # an attribute fixes the whole shape, so the op is right for one sample only
    if any(a.shape != (3, *b.shape[1:]) or b.shape[:1] != (1,) for a, b in zip(several, single, strict=True)):
        return False
    for tensor in tensors:
        index = tuple(parallel(f"i{d}", extent) for d, extent in enumerate(tensor.type.shape))
        for node in walk(tensor[index]):
            if isinstance(node, Reduce):
                return False
            own = node.children()[1:] if isinstance(node, Load) and node.index[0] == index[0] else node.children()
            if isinstance(node, Load) and node.index[0] != index[0]:
                return False
            if index[0] in own:
                return False
    return True
