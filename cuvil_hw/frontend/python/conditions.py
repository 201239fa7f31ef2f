"""Conditions as boolean functions of tensors, in reduced ordered binary decision diagrams (ROBDDs).

The value of a variable may follow from an earlier condition: after `if c: return a`, the rest runs under `not c`. Equal
functions are the same node, so "never", "always" and "implies" are simple comparisons.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

FALSE, TRUE = 0, 1


@dataclass
class Conditions:
    """`atoms`: the tensors (bool, no dimensions) that decide, in the order met. A node is identified by its number."""

    atoms: list[torch.Tensor] = field(default_factory=list)
    _nodes: list[tuple[int, int, int]] = field(default_factory=lambda: [(-1, 0, 0), (-1, 1, 1)])
    _unique: dict[tuple[int, int, int], int] = field(default_factory=dict)
    _known: dict[tuple[int, int, int], int] = field(default_factory=dict)
    _atom_of: dict[int, int] = field(default_factory=dict)
    _tensors: dict[int, torch.Tensor] = field(default_factory=dict)

    def atom(self, tensor: torch.Tensor) -> int:
        """The condition that `tensor` is true; the same tensor always gives the same node."""
        if id(tensor) not in self._atom_of:
            self.atoms.append(tensor)  # also keeps the tensor, and so its id, alive
            self._atom_of[id(tensor)] = self._node(len(self.atoms) - 1, FALSE, TRUE)
        return self._atom_of[id(tensor)]

    def both(self, a: int, b: int) -> int:
        return self.choose(a, b, FALSE)

    def either(self, a: int, b: int) -> int:
        return self.choose(a, TRUE, b)

    def negate(self, a: int) -> int:
        return self.choose(a, FALSE, TRUE)

    def implies(self, a: int, b: int) -> bool:
        return self.choose(a, b, TRUE) == TRUE

    def choose(self, test: int, then: int, other: int) -> int:
        """`then` where `test` holds, else `other`."""
        if test == TRUE or then == other:
            return then
        if test == FALSE:
            return other
        if (then, other) == (TRUE, FALSE):
            return test
        key = (test, then, other)
        if key not in self._known:
            # The one met last decides first, so that the conditions of a loop's trips share those of the trips before.
            variable = max(self._nodes[n][0] for n in key if n > TRUE)
            low = self.choose(*(self._cofactor(n, variable, 1) for n in key))
            high = self.choose(*(self._cofactor(n, variable, 2) for n in key))
            self._known[key] = low if low == high else self._node(variable, low, high)
        return self._known[key]

    def tensor(self, node: int) -> torch.Tensor:
        """The condition as a tensor: bool, no dimensions."""
        if node not in self._tensors:
            self._tensors[node] = self._compute(node)
        return self._tensors[node]

    def _compute(self, node: int) -> torch.Tensor:
        if node <= TRUE:
            return torch.tensor(node == TRUE)
        variable, low, high = self._nodes[node]
        atom = self.atoms[variable]
        if (low, high) == (FALSE, TRUE):
            return atom
        if low == TRUE and high == FALSE:
            return torch.logical_not(atom)
        if low == FALSE:
            return torch.logical_and(atom, self.tensor(high))
        if high == FALSE:
            return torch.logical_and(torch.logical_not(atom), self.tensor(low))
        if high == TRUE:
            return torch.logical_or(atom, self.tensor(low))
        if low == TRUE:
            return torch.logical_or(torch.logical_not(atom), self.tensor(high))
        return torch.where(atom, self.tensor(high), self.tensor(low))

    def _cofactor(self, node: int, variable: int, which: int) -> int:
        entry = self._nodes[node]
        return entry[which] if node > TRUE and entry[0] == variable else node

    def _node(self, *entry: int) -> Any:
        if entry not in self._unique:
            self._nodes.append(entry)  # type: ignore[arg-type]
            self._unique[entry] = len(self._nodes) - 1  # type: ignore[index]
        return self._unique[entry]  # type: ignore[index]
