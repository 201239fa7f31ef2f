"""Decision trees: which leaf every sample reaches in every tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.expr.nodes import Expr as Expression
from cuvil_hw.expr.nodes import Reduce, State, Tensor, binary, cast, reduction, select, unary
from cuvil_hw.ops.base import Array, Op
from cuvil_hw.ops.index import nearest
from cuvil_hw.types import TensorType


@dataclass(frozen=True)
class TreeWalk(Op):
    """y[n, t] = the node that sample n reaches from roots[t] after `depth` steps.

    A step goes from node i to yes[i] where x[n, feature[i]] ≤ threshold[i], else to no[i]; where that feature is NaN,
    to yes[i] if nan_yes[i] else to no[i]. Leaves lead to themselves. x (N, F) floats; threshold (M,) of x's dtype;
    feature, yes, no (M,) i64; nan_yes (M,) bool; roots (T,) i64.
    """

    mnemonic: ClassVar[str] = "tree_walk"
    depth: int

    def infer(
        self, x: TensorType, feature: TensorType, threshold: TensorType, yes: TensorType, no: TensorType,
        nan_yes: TensorType, roots: TensorType,
    ) -> TensorType:  # fmt: skip
        self.want(dtypes.is_float(x.dtype) and x.rank == 2 and x.shape[1] > 0, f"x is {x}, must be floats (N, F)")
        nodes = threshold.shape
        self.want(len(nodes) == 1 and nodes[0] > 0 and threshold.dtype == x.dtype, f"thresholds {threshold} for {x}")
        for name, t in (("feature", feature), ("yes", yes), ("no", no)):
            self.want(t == TensorType(nodes, "i64"), f"{name} is {t}, must be {nodes[0]}xi64")
        self.want(nan_yes == TensorType(nodes, "bool"), f"nan_yes is {nan_yes}, must be {nodes[0]}xbool")
        self.want(roots.rank == 1 and roots.dtype == "i64", f"roots are {roots}, must be i64 (T,)")
        self.want(self.depth >= 0, f"depth {self.depth}")
        return TensorType((x.shape[0], roots.shape[0]), "i64")

    def count_products(self, types: Sequence[TensorType], size: int) -> int:
        return 10 * size * self.depth

    def evaluate(
        self, x: Array, feature: Array, threshold: Array, yes: Array, no: Array, nan_yes: Array, roots: Array
    ) -> Array:
        node = np.broadcast_to(roots, (x.shape[0], roots.shape[0]))
        rows = np.arange(x.shape[0])[:, None]
        for _ in range(self.depth):
            value = x[rows, feature[node]]
            taken = np.where(np.isnan(value), nan_yes[node], value <= threshold[node])
            node = np.where(taken, yes[node], no[node])
        return np.array(node, np.int64)

    def compute(
        self, x: Tensor, feature: Tensor, threshold: Tensor, yes: Tensor, no: Tensor, nan_yes: Tensor, roots: Tensor
    ) -> Tensor:
        types = [t.type for t in (x, feature, threshold, yes, no, nan_yes, roots)]
        kind = self.infer(*types)
        step = reduction("step", self.depth)

        def at(n: Expression, t: Expression) -> Expression:
            if not self.depth:
                return roots[t]
            node = cast(State("i64", 0), "index")
            value = x[n, nearest(feature[node], x.shape[1])]
            taken = select(unary("isnan", value), nan_yes[node], binary("le", value, threshold[node]))
            after = select(taken, yes[node], no[node])
            return Reduce("i64", "walk", (step,), (roots[t],), (after,))

        return Tensor(kind, at)
