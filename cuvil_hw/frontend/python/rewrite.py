"""The rewriting of a function: control flow that may depend on tensors becomes calls of helpers, which decide.

before: if test: y = a              after: __b1 = __cuvil.branch(test)
        else: return b                     __v1 = (y, __ret, __value)
                                           if __b1.first(): y = a  # in a try, see flow.failed
                                           __w1 = (y, __ret, __value); y, __ret, __value = __v1
                                           if __b1.second(): __value = b; __ret = True
                                           y, __ret, __value = __b1.merge(names, __w1, (y, __ret, __value))

Where a helper sees a plain Python condition, one side runs, as in Python. Where it depends on a tensor, both run, and a
variable then has a value that depends on the condition (values.py). `return`, `break` and `continue` set a flag, and
what follows them runs under `if` of the flag. A variable is read through `get`, which settles what depends on a
condition.
Every node keeps its line, so that tracebacks and ops name the user's lines.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cuvil_hw.frontend.python.matching import without_match
from cuvil_hw.frontend.python.source import HELPERS, Definition
from cuvil_hw.frontend.python.syntax import (
    GUARD,
    Ready,
    assigned,
    ends,
    helper,
    jumps,
    later,
    load,
    parameters,
    store,
    tuple_of,
)

RET, VALUE = "__ret", "__value"
_FLAGS = ("__stop", "__next", GUARD)


@dataclass
class _Loop:
    brk: str
    cont: str


def rewritten(node: Definition) -> ast.FunctionDef:
    """The definition with its control flow rewritten, without decorators; a lambda as a function that returns."""
    if isinstance(node, ast.Lambda):
        result = ast.copy_location(ast.Return(node.body), node.body)
        named = ast.FunctionDef("_lambda", node.args, [result], [], None, None)
        node = ast.copy_location(named, node)
    assert isinstance(node, ast.FunctionDef)
    node = without_match(node)
    tracked = frozenset(assigned(node.body)) | set(parameters(node.args))
    rewriter = _Rewriter(tracked)
    arguments = ast.arguments(
        **{f: getattr(node.args, f) for f in ("posonlyargs", "args", "vararg", "kwonlyargs", "kwarg")},
        # Defaults were computed when the original was defined; source.rebuilt copies their values.
        defaults=[ast.Constant(None)] * len(node.args.defaults),
        kw_defaults=[None if d is None else ast.Constant(None) for d in node.args.kw_defaults],
    )
    for a in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]:
        if a is not None:
            a.annotation = None
    body = rewriter.function_body(node)
    return ast.copy_location(ast.FunctionDef(node.name, arguments, body, [], None, None), node)


class _Rewriter(ast.NodeTransformer):
    def __init__(self, tracked: Iterable[str], outer: _Rewriter | None = None) -> None:
        around: frozenset[str] = outer.tracked if outer is not None else frozenset()
        self.tracked: frozenset[str] = frozenset(tracked) | around
        self.flags = False
        self.loops: list[_Loop] = []
        self.counter: list[int] = outer.counter if outer is not None else [0]

    # Statements

    def function_body(self, node: ast.FunctionDef) -> list[ast.stmt]:
        body = list(node.body)
        if not ends(body):
            body.append(ast.copy_location(ast.Return(ast.Constant(None)), node.body[-1]))
        self.flags = any(ast.Return in jumps(s) for s in body[:-1]) or not isinstance(body[-1], ast.Return)
        local = [n for n in assigned(node.body) if n not in parameters(node.args)]
        start: list[ast.stmt] = []
        if local:
            start.append(ast.Assign([store(n) for n in local], ast.Attribute(load(HELPERS), "UNSET", ast.Load())))
        if self.flags:
            start += [
                ast.Assign([store(RET)], ast.Constant(False)),
                ast.Assign([store(VALUE)], ast.Attribute(load(HELPERS), "NEVER", ast.Load())),
            ]
        out = self.block(body)
        flags = [n for n in assigned(out) if n.startswith(_FLAGS)]
        if flags:
            start.append(ast.Assign([store(n) for n in flags], ast.Constant(False)))
        if self.flags:
            out.append(ast.Return(helper("result", load(VALUE))))
        for s in start:
            self.at(s, node.body[0])
        for s in out:
            self.at(s, node.body[-1])
        return [*start, *out]

    def at(self, made: ast.AST, origin: ast.AST) -> None:
        """Places for made nodes that have none."""
        for n in ast.walk(made):
            if hasattr(n, "lineno") or not isinstance(n, ast.stmt | ast.expr):
                continue
            ast.copy_location(n, origin)

    def block(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        for i, statement in enumerate(statements):
            left = jumps(statement)
            made = self.statement(statement)
            for m in made:
                self.at(m, statement)
            out += made
            rest = list(statements[i + 1 :])
            if isinstance(statement, ast.Return | ast.Break | ast.Continue):
                break
            if left and rest:
                guarded = self.branch(self.unless(left), lambda rest=rest: self.block(rest))  # type: ignore[misc]
                for m in guarded:
                    self.at(m, rest[0])
                out += guarded
                break
        return out

    def unless(self, left: set[type[ast.stmt]]) -> ast.expr:
        flags = [RET] if ast.Return in left else []
        if ast.Break in left:
            flags.append(self.loops[-1].brk)
        if ast.Continue in left:
            flags.append(self.loops[-1].cont)
        return helper("none_of", *map(load, flags))

    def branch(
        self,
        test: ast.expr,
        body: Callable[[], list[ast.stmt]],
        orelse: Callable[[], list[ast.stmt]] | None = None,
        leave: Callable[[str], list[ast.stmt]] | None = None,
    ) -> list[ast.stmt]:
        """`leave`: statements between the decision and the sides, given the name of the decision."""
        n = self.counter[0] = self.counter[0] + 1
        b, v, w = f"__cvb{n}", f"__cvv{n}", f"__cvw{n}"
        then, other = body(), orelse() if orelse is not None else []
        names = assigned([*then, *other])
        out: list[ast.stmt] = [ast.Assign([store(b)], helper("branch", test))]
        out += leave(b) if leave is not None else []

        def side(which: str, statements: list[ast.stmt]) -> ast.If:
            enter = ast.Call(ast.Attribute(load(b), which, ast.Load()), [], [])
            if not statements:
                return ast.If(enter, [ast.Pass()], [])
            error = f"__cve{n}"
            again = ast.If(helper("failed", load(error)), [ast.Raise()], [])
            caught = ast.ExceptHandler(load("Exception"), error, [again])
            return ast.If(enter, [ast.Try(statements, [caught], [], [])], [])

        before = ast.Assign([store(v)], tuple_of(names, load))
        after = ast.Assign([store(w)], tuple_of(names, load))
        back = [ast.Assign([tuple_of(names, store)], load(v))] if names else []
        merge = ast.Call(
            ast.Attribute(load(b), "merge", ast.Load()),
            [ast.Tuple([ast.Constant(x) for x in names], ast.Load()), load(w), tuple_of(names, load)],
            [],
        )
        end = ast.Assign([tuple_of(names, store)], merge) if names else ast.Expr(merge)
        return [*out, before, side("first", then), after, *back, side("second", other), end]

    def statement(self, s: ast.stmt) -> list[ast.stmt]:
        if isinstance(s, ast.If):
            return self.branch(self.test(s.test), lambda: self.block(s.body), lambda: self.block(s.orelse))
        if isinstance(s, ast.While):
            return self.loop(s, s.test)
        if isinstance(s, ast.For):
            return self.loop(s, None)
        if isinstance(s, ast.Return):
            value = self.visit(s.value) if s.value is not None else ast.Constant(None)
            if not self.flags:
                return [ast.Return(value)]
            return [ast.Assign([store(VALUE)], value), ast.Assign([store(RET)], ast.Constant(True))]
        if isinstance(s, ast.Break):
            return [ast.Assign([store(self.loops[-1].brk)], ast.Constant(True))]
        if isinstance(s, ast.Continue):
            return [ast.Assign([store(self.loops[-1].cont)], ast.Constant(True))]
        if isinstance(s, ast.Assert):
            message = [later(self.visit(s.msg))] if s.msg is not None else []
            return [ast.Expr(helper("check", self.test(s.test), *message))]
        if isinstance(s, ast.Raise):
            if s.exc is None:
                return [s]
            n = self.counter[0] = self.counter[0] + 1
            made, test = f"__cvt{n}", ast.Compare(load(f"__cvt{n}"), [ast.IsNot()], [ast.Constant(None)])
            cause = self.visit(s.cause) if s.cause is not None else None
            error = ast.Assign([store(made)], helper("raises", later(self.visit(s.exc))))
            return [error, ast.If(test, [ast.Raise(load(made), cause)], [])]
        if isinstance(s, ast.Assign):
            return self.assign(s)
        if isinstance(s, ast.AnnAssign):
            if s.value is None:
                return [ast.Pass()]
            return self.assign(ast.copy_location(ast.Assign([s.target], s.value), s))
        if isinstance(s, ast.AugAssign):
            return self.augment(s)
        if isinstance(s, ast.Delete):
            return [self.delete(t) for t in s.targets]
        if isinstance(s, ast.With):
            items = [self.visit(i) for i in s.items]
            return [ast.With(items, self.block(s.body))]
        if isinstance(s, ast.Try):
            return self.attempt(s)
        if isinstance(s, ast.FunctionDef):
            return self.nested(s)
        made = self.visit(s)
        return made if isinstance(made, list) else [made]

    def visit_Starred(self, node: ast.Starred) -> ast.expr:
        return self.placed(ast.Starred(helper("listed", self.visit(node.value)), node.ctx), node)

    def nested(self, s: ast.FunctionDef) -> list[ast.stmt]:
        inner = _Rewriter([*assigned(s.body), *parameters(s.args)], self)
        args = self.visit(s.args)
        for a in [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]:
            if a is not None:
                a.annotation = None
        made: ast.expr = helper("made", load(s.name), ast.Constant(s.name))
        for d in reversed(s.decorator_list):
            made = helper("call", self.visit(d), made)
        function = ast.FunctionDef(s.name, args, inner.function_body(s), [], None, None)
        return [function, ast.Assign([store(s.name)], made)]

    def attempt(self, s: ast.Try) -> list[ast.stmt]:
        """`try` in which nothing is raised that a handler takes; flow.attempt refuses what is."""
        n = self.counter[0] = self.counter[0] + 1
        attempt = f"__cvt{n}"
        types = [h.type if h.type is not None else load("BaseException") for h in s.handlers]
        enter = helper("attempt", *(later(self.visit(t)) for t in types))
        out: list[ast.stmt] = [
            ast.Assign([store(attempt)], enter),
            ast.With([ast.withitem(load(attempt), None)], self.block(s.body)),
        ]
        left = set().union(*(jumps(child) for child in s.body))
        if s.orelse and left:
            out += self.branch(self.unless(left), lambda: self.block(s.orelse))
        elif s.orelse:
            out += self.block(s.orelse)
        return [*out, *self.block(s.finalbody)]

    def loop(self, s: ast.While | ast.For, test: ast.expr | None) -> list[ast.stmt]:
        n = self.counter[0] = self.counter[0] + 1
        flags = _Loop(f"__stop{n}", f"__next{n}")
        inside = set().union(*(jumps(child) for child in s.body))
        stops = ([RET] if ast.Return in inside else []) + ([flags.brk] if ast.Break in inside else [])
        items, item = f"__cvt{n}", f"__cvi{n}"
        if test is not None:
            source, more = helper("trips"), self.test(test)
        else:
            assert isinstance(s, ast.For)
            source = helper("items", self.visit(s.iter))
            more = ast.Attribute(load(item), "exists", ast.Load())
        going = ast.Attribute(load(item), "going", ast.Load())
        more = helper("all_of", later(going), later(helper("none_of", *map(load, stops))), later(more))

        def body() -> list[ast.stmt]:
            self.loops.append(flags)
            out: list[ast.stmt] = []
            if isinstance(s, ast.For):
                value = ast.Attribute(load(item), "value", ast.Load())
                out += self.assign(ast.copy_location(ast.Assign([s.target], value), s), visited=True)
            out += self.block(s.body)
            self.loops.pop()
            return out

        def leave(b: str) -> list[ast.stmt]:
            done = ast.Call(ast.Attribute(load(items), "over", ast.Load()), [load(b)], [])
            return [ast.If(done, [ast.Break()], [])]

        start: list[ast.stmt] = [ast.Assign([store(items)], source)]
        if ast.Break in inside:
            start.append(ast.Assign([store(flags.brk)], ast.Constant(False)))
        each = self.branch(more, body, None, leave)
        if ast.Continue in inside:
            each.insert(0, ast.Assign([store(flags.cont)], ast.Constant(False)))
        out = [*start, ast.For(store(item), load(items), each, [])]
        if s.orelse:
            out += self.branch(helper("none_of", *map(load, stops)), lambda: self.block(s.orelse))
        return out

    def assign(self, s: ast.Assign, visited: bool = False) -> list[ast.stmt]:
        """Assignments to subscripts become calls; in a tuple they first get a variable each."""
        value = s.value if visited else self.visit(s.value)
        if len(s.targets) == 1 and isinstance(s.targets[0], ast.Name):
            return [ast.Assign(s.targets, value)]
        n = self.counter[0] = self.counter[0] + 1
        whole = f"__cvt{n}"
        out: list[ast.stmt] = [ast.Assign([store(whole)], value)]
        for i, target in enumerate(s.targets):
            sets: list[ast.stmt] = []
            plain = self.target(target, sets, f"__cvt{n}_{i}_")
            if isinstance(target, ast.Subscript):
                out += [self.set_item(target, load(whole))]
            elif isinstance(target, ast.Tuple | ast.List):
                out += [ast.Assign([plain], helper("listed", load(whole))), *sets]
            else:
                out += [ast.Assign([plain], load(whole)), *sets]
        return out

    def target(self, target: ast.expr, sets: list[ast.stmt], prefix: str) -> ast.expr:
        if isinstance(target, ast.Tuple | ast.List):
            return ast.Tuple([self.target(t, sets, f"{prefix}{i}") for i, t in enumerate(target.elts)], ast.Store())
        if isinstance(target, ast.Starred):
            return ast.Starred(self.target(target.value, sets, prefix), ast.Store())
        if isinstance(target, ast.Subscript):
            sets.append(self.set_item(target, load(prefix)))
            return store(prefix)
        return target

    def set_item(self, target: ast.Subscript, value: ast.expr) -> ast.stmt:
        return ast.Expr(helper("set_item", self.visit(target.value), self.index(target.slice), value))

    def augment(self, s: ast.AugAssign) -> list[ast.stmt]:
        name, value = ast.Constant(type(s.op).__name__), self.visit(s.value)
        if isinstance(s.target, ast.Name):
            old = self.visit(load(s.target.id))
            return [ast.Assign([store(s.target.id)], helper("augment", name, old, value))]
        assert isinstance(s.target, ast.Subscript)
        owner, index = self.visit(s.target.value), self.index(s.target.slice)
        return [ast.Expr(helper("augment_item", name, owner, index, later(value)))]

    def delete(self, target: ast.expr) -> ast.stmt:
        if isinstance(target, ast.Name):
            return ast.Assign([store(target.id)], ast.Attribute(load(HELPERS), "UNSET", ast.Load()))
        assert isinstance(target, ast.Subscript)
        return ast.Expr(helper("del_item", self.visit(target.value), self.index(target.slice)))

    # Expressions

    def index(self, index: ast.expr) -> ast.expr:
        """A subscript as an expression: slices become slice(…)."""
        if isinstance(index, ast.Slice):
            parts = [ast.Constant(None) if p is None else self.visit(p) for p in (index.lower, index.upper, index.step)]
            return helper("slice", *parts)
        if isinstance(index, ast.Tuple):
            return ast.Tuple([self.index(e) for e in index.elts], ast.Load())
        made: ast.expr = self.visit(index)
        return made

    def test(self, node: ast.expr) -> ast.expr:
        """An expression of which only the truth counts."""
        if isinstance(node, ast.BoolOp):
            name = "all_of" if isinstance(node.op, ast.And) else "any_of"
            made: ast.expr = helper(name, *(later(self.test(v)) for v in node.values))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            made = helper("none_of", self.test(node.operand))
        else:
            made = self.visit(node)
        self.at(made, node)
        return made

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        name = "and_" if isinstance(node.op, ast.And) else "or_"
        return self.placed(helper(name, *(later(self.visit(v)) for v in node.values)), node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        if isinstance(node.op, ast.Not):
            return self.placed(helper("not_", self.test(node.operand)), node)
        return self.placed(ast.UnaryOp(node.op, self.visit(node.operand)), node)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        if len(node.ops) == 1 and not isinstance(node.ops[0], ast.In | ast.NotIn | ast.Is | ast.IsNot):
            made: ast.expr = ast.Compare(self.visit(node.left), node.ops, [self.visit(node.comparators[0])])
        else:
            names = ast.Tuple([ast.Constant(type(o).__name__) for o in node.ops], ast.Load())
            made = helper("compare", self.visit(node.left), names, *(later(self.visit(c)) for c in node.comparators))
        return self.placed(made, node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        made = helper("choose", self.test(node.test), later(self.visit(node.body)), later(self.visit(node.orelse)))
        return self.placed(made, node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if isinstance(node.func, ast.Name) and node.func.id in ("super", "locals"):
            return self.placed(ast.Call(node.func, node.args, node.keywords), node)
        function = self.visit(node.func)
        args = [self.visit(a) for a in node.args]
        keywords = [ast.keyword(k.arg, self.visit(k.value)) for k in node.keywords]
        call = helper("call", function, *args)
        call.keywords = keywords
        return self.placed(call, node)

    def visit_Ready(self, node: Ready) -> ast.expr:
        return self.placed(ast.Call(node.func, [self.visit(a) for a in node.args], []), node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return self.placed(helper("attribute", self.visit(node.value), ast.Constant(node.attr)), node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        return self.placed(helper("get_item", self.visit(node.value), self.index(node.slice)), node)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if not isinstance(node.ctx, ast.Load) or node.id.startswith("__"):
            return node
        name = "get" if node.id in self.tracked else "outer"
        return self.placed(helper(name, node, ast.Constant(node.id)), node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        inner = _Rewriter(parameters(node.args), self)
        args = self.visit(node.args)
        return self.placed(helper("made", ast.Lambda(args, inner.visit(node.body))), node)

    def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
        conditions: list[ast.expr] = [helper("static", self.test(c)) for c in node.ifs]
        return ast.comprehension(node.target, helper("listed", self.visit(node.iter)), conditions, node.is_async)

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.expr:
        spec = self.visit(node.format_spec) if node.format_spec is not None else None
        return self.placed(ast.FormattedValue(helper("shown", self.visit(node.value)), node.conversion, spec), node)

    def container(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.List) and not isinstance(node.ctx, ast.Load):
            return node
        made = self.generic_visit(node)
        assert isinstance(made, ast.expr)
        return self.placed(helper("new", made), node)

    visit_List = visit_Dict = visit_Set = visit_ListComp = visit_DictComp = visit_SetComp = container

    def placed(self, made: ast.expr, node: ast.expr) -> ast.expr:
        ast.copy_location(made, node)
        self.at(made, node)
        return made
