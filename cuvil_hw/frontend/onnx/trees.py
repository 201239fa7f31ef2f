"""Tree ensembles of ai.onnx.ml as one walk over all trees, and sums over the leaves reached.

Every comparison becomes `≤`: a < t is a ≤ (the next smaller float), a > t is a ≤ t with the branches exchanged, a = t
is two nodes. The branch for NaN is stored separately, so NaN takes the same path as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw import ops as e
from cuvil_hw.frontend.onnx.elementwise import cast_to
from cuvil_hw.frontend.onnx.node import OnnxNode, Value, decode

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")

AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


@dataclass
class Forest:
    """Nodes as columns, filled one by one; `leaves`: (node, target, weight)."""

    kind: np.dtype[Any]
    feature: list[int] = field(default_factory=list)
    threshold: list[Any] = field(default_factory=list)
    yes: list[int] = field(default_factory=list)
    no: list[int] = field(default_factory=list)
    nan_yes: list[bool] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)
    leaves: list[tuple[int, int, float]] = field(default_factory=list)

    def add(self) -> int:
        """A new node, a leaf until it is set."""
        at = len(self.feature)
        for column, value in ((self.feature, 0), (self.yes, at), (self.no, at)):
            column.append(value)
        self.threshold.append(self.kind.type(0))
        self.nan_yes.append(False)
        return at

    def link(self, at: int, feature: int, threshold: Any, yes: int, no: int, nan: int) -> None:
        """`nan`: the one of `yes` and `no` that NaN goes to."""
        self.feature[at], self.threshold[at], self.yes[at], self.no[at] = feature, threshold, yes, no
        self.nan_yes[at] = nan == yes

    def branch(self, at: int, mode: str, feature: int, values: Sequence[Any], yes: int, no: int, nan: int) -> None:
        """Node `at` compares with one value, or with several for BRANCH_MEMBER."""
        value = values[0] if len(values) else None
        match mode:
            case "BRANCH_LEQ":
                self.link(at, feature, value, yes, no, nan)
            case "BRANCH_GT":
                self.link(at, feature, value, no, yes, nan)
            case "BRANCH_LT":
                self.below(at, feature, value, yes, no, nan)
            case "BRANCH_GTE":
                self.below(at, feature, value, no, yes, nan)
            case "BRANCH_NEQ":
                self.equal(at, feature, value, no, yes, nan)
            case _:  # equal to any of the values; NaN is decided by the first comparison
                for i, v in enumerate(values):
                    more = self.add() if i + 1 < len(values) else no
                    self.equal(at, feature, v, yes, more, yes if nan == yes else more)
                    at = more
                if not len(values):
                    self.link(at, feature, self.kind.type(np.inf), no, no, nan)

    def below(self, at: int, feature: int, value: Any, yes: int, no: int, nan: int) -> None:
        """x < value."""
        if value == -np.inf or value != value:  # never
            self.link(at, feature, self.kind.type(np.nan), yes, no, nan)
        else:
            self.link(at, feature, np.nextafter(value, self.kind.type(-np.inf)), yes, no, nan)

    def equal(self, at: int, feature: int, value: Any, yes: int, no: int, nan: int) -> None:
        """x = value: x ≤ value, and not x < value."""
        lower = self.add()
        self.below(lower, feature, value, no, yes, nan)
        # NaN leaves at once where it can; else the second node sends it on.
        self.feature[at], self.threshold[at], self.yes[at], self.no[at] = feature, value, lower, no
        self.nan_yes[at] = nan != no

    def below_root(self, root: int) -> set[int]:
        """The leaves of a tree."""
        found, level = set(), {root}
        while level:
            found |= {i for i in level if self.yes[i] == i == self.no[i]}
            level = {c for i in level - found for c in (self.yes[i], self.no[i])}
        return found

    def depth(self) -> int:
        """The number of steps to the deepest leaf. Nodes may have several parents, since set membership is converted
        that way. Raises ValueError if a node is its own ancestor."""
        children = [tuple({yes, no} - {at}) for at, (yes, no) in enumerate(zip(self.yes, self.no, strict=True))]
        parents = [0] * len(children)
        for at in range(len(children)):
            for child in children[at]:
                parents[child] += 1
        ready = [at for at, count in enumerate(parents) if not count]
        steps = [0] * len(children)
        for at in ready:  # grows: each node once all its parents are known
            for child in children[at]:
                steps[child] = max(steps[child], steps[at] + 1)
                parents[child] -= 1
                if not parents[child]:
                    ready.append(child)
        if len(ready) != len(children):
            raise ValueError("a node is its own ancestor")
        return max(steps, default=0)


def walked(n: OnnxNode, x: Value, forest: Forest) -> Value:
    """Leaves reached, (N, T)."""
    try:
        depth = forest.depth()
    except ValueError as error:
        n.refuse(f"its trees are damaged: {error}")
    if wrong := [f for f in forest.feature if not 0 <= f < x.shape[1]]:
        n.refuse(f"its trees are damaged: feature {wrong[0]} of {x.shape[1]}")
    if not forest.roots:
        n.refuse("it has no tree")
    columns = [(forest.feature, "i64"), (forest.threshold, x.dtype), (forest.yes, "i64"), (forest.no, "i64"),
               (forest.nan_yes, "bool"), (forest.roots, "i64")]  # fmt: skip
    return n.emit(e.TreeWalk(depth), x, *(n.const(np.asarray(c), d) for c, d in columns))


def aggregated(n: OnnxNode, x: Value, forest: Forest, targets: int, how: str) -> Value:
    """(N, targets): SUM, AVERAGE, MIN or MAX over the trees of the weights of the leaves reached."""
    if how not in AGGREGATES:
        n.refuse(f"aggregate_function {how!r}; one of {', '.join(AGGREGATES)} expected")
    if wrong := [t for _, t, _ in forest.leaves if not 0 <= t < targets]:
        n.refuse(f"its leaves are damaged: target {wrong[0]} of {targets}")
    if targets < 1:
        n.refuse(f"{targets} targets")
    reached = walked(n, x, forest)
    n.affordable("its table of weights", len(forest.feature), targets)
    # MIN and MAX look only at trees that vote for the target at all.
    absent = {"MIN": np.inf, "MAX": -np.inf}.get(how, 0.0)
    weights = np.full((len(forest.feature), targets), absent, dtypes.to_numpy(x.dtype))
    voted = set()
    for node, target, weight in forest.leaves:
        weights[node, target] = weight if (node, target) not in voted else weights[node, target] + weight
        voted.add((node, target))
    votes = n.emit(e.Gather(0), n.const(weights, x.dtype), reached)
    op = {"MIN": e.ReduceMin, "MAX": e.ReduceMax}.get(how, e.ReduceSum)
    y = n.emit(op((1,)), votes)
    if how in ("MIN", "MAX"):
        none = n.emit(e.Equal(), y, n.like(absent, y))
        y = n.emit(e.Where(), none, n.like(0, y), y)
    return n.emit(e.Div(), y, n.like(len(forest.roots), y)) if how == "AVERAGE" else y


def features(n: OnnxNode) -> Value:
    """The samples (N, F) in f32 or f64."""
    x = n[0]
    x = n.reshape(x, (1, x.shape[0])) if x.rank == 1 else x
    if x.rank != 2 or not x.shape[1]:
        n.refuse(f"samples of shape {x.shape}")
    if x.dtype not in ("f32", "f64"):
        n.refuse(f"samples of type {x.dtype}; cast them to float")
    return x


def numbers(n: OnnxNode, name: str) -> np.ndarray[Any, Any] | None:
    """An attribute of floats, or its form as a tensor."""
    tensor = n.attr(f"{name}_as_tensor")
    if tensor is not None:
        return decode(tensor)[0].reshape(-1)
    values = n.attr(name)
    return None if values is None else np.asarray(values, np.float32)


def old_forest(n: OnnxNode, prefix: str, kind: str) -> Forest:
    """From the attributes of TreeEnsembleRegressor and TreeEnsembleClassifier; `prefix`: "target" or "class"."""
    container = dtypes.to_numpy(kind)
    forest = Forest(container)
    trees, ids = n.ints("nodes_treeids"), n.ints("nodes_nodeids")
    modes = [m.decode("utf-8", "replace") for m in n.attr("nodes_modes", ())]
    values = numbers(n, "nodes_values")
    columns = [n.ints(f"nodes_{c}") for c in ("featureids", "truenodeids", "falsenodeids")]
    missing = n.ints("nodes_missing_value_tracks_true", (0,) * len(trees)) or (0,) * len(trees)
    lengths = {len(trees), len(ids), len(set(zip(trees, ids, strict=False))), len(modes), len(missing)}
    if values is None or lengths | {len(c) for c in columns} != {len(values)}:
        n.refuse("its trees are damaged: columns of different lengths, or nodes that repeat")
    where = {key: forest.add() for key in zip(trees, ids, strict=True)}
    inner = set()
    for i, tree in enumerate(trees):
        if modes[i] == "LEAF":
            continue
        if modes[i] not in MODES[:6] or (tree, columns[1][i]) not in where or (tree, columns[2][i]) not in where:
            n.refuse(f"its trees are damaged: mode {modes[i]!r}, children {columns[1][i]} and {columns[2][i]}")
        at, yes, no = where[tree, ids[i]], where[tree, columns[1][i]], where[tree, columns[2][i]]
        if at in (yes, no):
            n.refuse(f"its trees are damaged: node {ids[i]} of tree {tree} is its own child")
        inner |= {yes, no}
        goes = yes if missing[i] or modes[i] == "BRANCH_NEQ" else no  # NaN ≠ anything
        forest.branch(at, modes[i], columns[0][i], [container.type(values[i])], yes, no, goes)
    roots: dict[int, list[int]] = {tree: [] for tree in trees}
    for (tree, node), at in where.items():
        if at not in inner:
            roots[tree].append(node)
    # A second node that nothing leads to would be a tree of its own, and its leaves would count.
    if wrong := [(tree, nodes) for tree, nodes in roots.items() if len(nodes) != 1]:
        n.refuse(f"its trees are damaged: in tree {wrong[0][0]} nothing leads to the nodes {wrong[0][1][:4]}, the root "
                 "alone may be so")  # fmt: skip
    forest.roots = [where[tree, nodes[0]] for tree, nodes in roots.items()]
    weights = numbers(n, f"{prefix}_weights")
    marks = [n.ints(f"{prefix}_{c}") for c in ("treeids", "nodeids", "ids")]
    if weights is None or {len(c) for c in (*marks, weights)} != {len(weights)}:
        n.refuse("its leaves are damaged: columns of different lengths")
    for tree, node, target, weight in zip(*marks, weights, strict=True):
        if (tree, node) not in where:
            n.refuse(f"its leaves are damaged: there is no node {node} in tree {tree}")
        forest.leaves.append((where[tree, node], target, float(weight)))
    return forest


def regressor(n: OnnxNode, version: int) -> Value:
    x, targets = features(n), n.integer("n_targets", 1)
    y = aggregated(n, x, old_forest(n, "target", x.dtype), targets, n.attr("aggregate_function", "SUM"))
    base = numbers(n, "base_values")
    y = n.binary(e.Add(), y, n.const(base, y.dtype)) if base is not None and base.size else y
    return cast_to(n, transformed(n, y, n.attr("post_transform", "NONE")), "f32")


def transformed(n: OnnxNode, y: Value, how: str) -> Value:
    """Scores to what `post_transform` asks for."""
    match how:
        case "NONE":
            return y
        case "LOGISTIC":
            return n.emit(e.Sigmoid(), y)
        case "SOFTMAX":
            return n.emit(e.Softmax(y.rank - 1), y)
    n.refuse(f"post_transform {how}")


def labels(n: OnnxNode) -> np.ndarray[Any, Any]:
    """The classes as integers."""
    for name in ("classlabels_int64s", "classlabels_ints"):
        if n.ints(name):
            return np.asarray(n.ints(name), np.int64)
    n.refuse("its classes are named by text; give them as integers")


def classifier(n: OnnxNode, version: int) -> tuple[Value, Value]:
    """(label, scores). Two classes voted for by one score s: s > 0, or s > 1/2 where every weight is positive."""
    x, names, how = features(n), labels(n), n.attr("post_transform", "NONE")
    forest = old_forest(n, "class", x.dtype)
    voted = {target for _, target, _ in forest.leaves}
    base = numbers(n, "base_values")
    if len(names) == 2 and len(voted) == 1:
        if base is not None and base.size > 1:
            n.refuse(f"{base.size} base values for one score")
        leaves = [(node, 0, weight) for node, _, weight in forest.leaves]
        forest.leaves = leaves
        score = aggregated(n, x, forest, 1, "SUM")
        score = n.binary(e.Add(), score, n.const(base, score.dtype)) if base is not None and base.size else score
        return two_classes(n, score, names, how, all(w >= 0 for _, _, w in leaves))
    if len(names) == 2:
        n.refuse("two classes with a score each: runtimes disagree about the label")
    y = best = aggregated(n, x, forest, len(names), "SUM")
    if base is not None and base.size:
        y = best = n.binary(e.Add(), y, n.const(base, y.dtype))
    elif not always_voted(forest, len(names)):  # a class without any vote doesn't win with its score of 0
        counted = replace(forest, leaves=[(node, target, 1.0) for node, target, _ in forest.leaves])
        votes = aggregated(n, x, counted, len(names), "SUM")
        best = n.emit(e.Where(), n.emit(e.Equal(), votes, n.like(0, votes)), n.like(-np.inf, y), y)
    label = n.emit(e.Gather(0), n.const(names, "i64"), n.emit(e.ArgMax(1), best))
    return label, cast_to(n, transformed(n, y, how), "f32")


def always_voted(forest: Forest, targets: int) -> bool:
    """Whether every sample gives a vote for every target: some tree votes for it in all its leaves."""
    voted = {(node, target) for node, target, _ in forest.leaves}
    return all(any(all((i, t) in voted for i in forest.below_root(r)) for r in forest.roots) for t in range(targets))


def two_classes(
    n: OnnxNode, score: Value, names: np.ndarray[Any, Any], how: str, positive: bool
) -> tuple[Value, Value]:
    """Both classes' scores from one score (N, 1), as ONNX Runtime computes them."""
    above = n.reshape(n.emit(e.Greater(), score, n.like(0.5 if positive else 0.0, score)), (score.shape[0],))
    first, second = (n.expand(n.const(v, "i64"), above.shape) for v in names)
    label = n.emit(e.Where(), above, second, first)
    opposite = n.emit(e.Neg(), score)
    if positive and how == "NONE":
        opposite = n.emit(e.Sub(), n.like(1, score), score)
    elif how == "LOGISTIC" and not positive:
        score, opposite = n.emit(e.Sigmoid(), score), n.emit(e.Sigmoid(), opposite)
    elif how != "NONE":
        n.refuse(f"post_transform {how} of one {'positive ' if positive else ''}score")
    return label, cast_to(n, n.emit(e.Concat(1), opposite, score), "f32")


def ensemble(n: OnnxNode, version: int) -> Value:
    """TreeEnsemble-5: nodes and leaves in lists of their own."""
    x, container = features(n), dtypes.to_numpy(features(n).dtype)
    forest = Forest(container)
    splits, modes = decode(n.attr("nodes_splits"))[0], decode(n.attr("nodes_modes"))[0]
    leaf_weights = decode(n.attr("leaf_weights"))[0]
    targets = n.ints("leaf_targetids")
    columns = [n.ints(f"nodes_{c}") for c in ("featureids", "truenodeids", "falsenodeids", "trueleafs", "falseleafs")]
    missing = n.ints("nodes_missing_value_tracks_true") or (0,) * len(splits)
    if {len(c) for c in (*columns, missing, modes)} != {len(splits)} or len(targets) != len(leaf_weights):
        n.refuse("its trees are damaged: columns of different lengths")
    nodes = [forest.add() for _ in splits]
    leaves = [forest.add() for _ in leaf_weights]
    forest.leaves = [(at, t, float(w)) for at, t, w in zip(leaves, targets, leaf_weights, strict=True)]
    members = decode(n.attr("membership_values"))[0] if n.attr("membership_values") is not None else np.zeros(0)
    for i, at in enumerate(nodes):
        if not 0 <= modes[i] < len(MODES):
            n.refuse(f"node mode {modes[i]}")
        for to, leaf in zip(columns[1:3], columns[3:], strict=True):
            if leaf[i] not in (0, 1) or not 0 <= to[i] < len(leaves if leaf[i] else nodes):
                n.refuse(f"its trees are damaged: child {to[i]} of node {i} (leaf: {leaf[i]})")
        mode, values = MODES[modes[i]], [container.type(splits[i])]
        if mode == "BRANCH_MEMBER":
            ends = np.flatnonzero(np.isnan(members))
            if not len(ends):
                n.refuse("too few membership values")
            values, members = [container.type(v) for v in members[: ends[0]]], members[ends[0] + 1 :]
        yes, no = ((leaves if leaf[i] else nodes)[to[i]] for to, leaf in zip(columns[1:3], columns[3:], strict=True))
        goes = yes if missing[i] or mode == "BRANCH_NEQ" else no
        if at in (yes, no):
            n.refuse(f"its trees are damaged: node {i} is its own child")
        forest.branch(at, mode, columns[0][i], values, yes, no, goes)
    roots, how, post = n.ints("tree_roots"), n.integer("aggregate_function", 1), n.integer("post_transform", 0)
    if wrong := [r for r in roots if not 0 <= r < len(nodes)]:
        n.refuse(f"its trees are damaged: root {wrong[0]} of {len(nodes)} nodes")
    if not (0 <= how < len(AGGREGATES) and 0 <= post < len(TRANSFORMS)):
        n.refuse(f"aggregate_function {how}, post_transform {post}")
    forest.roots = [nodes[r] for r in roots]
    y = aggregated(n, x, forest, n.integer("n_targets", 1), AGGREGATES[how])
    return transformed(n, y, TRANSFORMS[post])
