"""The state of an import while it visits the nodes of a graph, a branch or a function body."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cuvil_hw.errors import CuvilError
from cuvil_hw.frontend.onnx.node import OnnxEmitter, Value
from cuvil_hw.frontend.shared.refusals import Refusals

# Nodes that a model may grow to when its loops are unrolled and its functions expanded.
MOST_NODES = 200_000


class Budget:
    """Counts converted nodes, to bound the unrolling of loops."""

    def __init__(self) -> None:
        self.used = 0

    def spend(self) -> bool:
        """False if the model has grown too large."""
        self.used += 1
        return self.used <= MOST_NODES


@dataclass(frozen=True)
class Scope:
    """`values`: by ONNX name, None after a refusal. `max_trips`: of loops whose end depends on values."""

    name: str
    values: dict[str, Value | None]
    versions: Mapping[str, int]
    emitter: OnnxEmitter
    refusals: Refusals
    budget: Budget
    max_trips: int | None = None

    def output(self, output: str) -> Value:
        value = self.values.get(output)
        if value is None:
            raise CuvilError(f"{self.name}: nothing computes the output {output!r}")
        return value

    def inner(self) -> Scope:
        """A scope for a graph inside a node: it sees outer names, but keeps its own names and refusals to itself."""
        return replace(self, values=dict(self.values), refusals=Refusals())

    def body(self, values: Mapping[str, Value], versions: Mapping[str, int]) -> Scope:
        """A scope for a function's body, which sees only its parameters."""
        return replace(self, values=dict(values), versions=versions, refusals=Refusals())
