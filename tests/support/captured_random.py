"""Random Python functions that read state of random kinds from outside, and changes of that state, as text.

Run as a script, it traces many of them: whenever Python gives something else after a change, the program that was
traced before must not be used again."""

from __future__ import annotations

import argparse
import importlib.util
import random
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType


@dataclass(frozen=True)
class Kind:
    """`setup`: statements of the module; `value`: an expression that gives a number; `changes`: statements. `$` stands
    for a number that makes names unique."""

    setup: str
    value: str
    changes: tuple[str, ...]


TOGETHER = 20  # functions that are traced at once

HEADER = """
import array, collections, dataclasses, enum, functools, operator, types
import numpy as np
import torch
"""

KINDS = (
    Kind("K$ = 2", "K$", ("K$ = 5", "K$ = 2.5")),
    Kind("class G$:\n    factor = 1.0", "G$.factor", ("G$.factor = 10",)),
    Kind("class A$:\n    k = 1\nclass B$(A$): pass\no$ = B$()", "o$.k", ("A$.k = 7", "B$.k = 3", "o$.k = 9")),
    Kind("class C$:\n    k = 2\n    @classmethod\n    def get(cls): return cls.k", "C$.get()", ("C$.k = 7",)),
    Kind("k$ = 2\nclass S$:\n    @staticmethod\n    def get(): return k$", "S$.get()", ("k$ = 3",)),
    Kind("class L$:\n    __slots__ = ('k',)\no$ = L$(); o$.k = 4", "o$.k", ("o$.k = 8",)),
    Kind("k$ = 2\nclass P$:\n    @property\n    def v(self): return k$\no$ = P$()", "o$.v", ("k$ = 3", "P$.v = 5")),
    Kind("D$ = {'a': [1, {'b': 2}]}", "D$['a'][1]['b']", ("D$['a'][1]['b'] = 9",)),
    Kind("D$ = {'a': 1, 'b': 2}", "sum(v * i for i, v in enumerate(D$.values()))", ("D$['c'] = 5", "D$.pop('a')")),
    Kind(
        "def make$(k):\n    def get(): return k\n    def put(v):\n        nonlocal k\n        k = v\n"
        "    return get, put\nget$, put$ = make$(3)",
        "get$()",
        ("put$(8)",),
    ),
    Kind("p$ = functools.partial(lambda a, k=1: a * k, 2, k=3)", "p$()", ("p$.keywords['k'] = 5",)),
    Kind(
        "m$ = types.ModuleType('m$'); m$.sub = types.ModuleType('s$'); m$.sub.k = 1",
        "m$.sub.k",
        ("m$.sub.k = 3", "m$.sub = types.SimpleNamespace(k=4)"),
    ),
    Kind("n$ = 'a'\nclass N$:\n    a = 1\n    b = 2", "getattr(N$, n$)", ("N$.a = 5", "n$ = 'b'")),
    Kind("class H$: pass", "(3 if hasattr(H$, 'flag') else 1)", ("H$.flag = 1",)),
    Kind("class H$: pass", "getattr(H$, 'late', 4)", ("H$.late = 2",)),
    Kind("d$ = collections.deque([1, 2, 3])", "d$[1]", ("d$.rotate(1)", "d$[1] = 9")),
    Kind("a$ = array.array('d', [1.0, 2.0])", "a$[0] + len(a$)", ("a$[0] = 4.0", "a$.append(1.0)")),
    Kind("b$ = bytearray(b'abc')", "b$[2]", ("b$[2] = 1",)),
    Kind("v$ = memoryview(bytearray(b'abc'))", "v$[0]", ("v$[0] = 7",)),
    Kind("t$ = torch.ones(2)", "t$.sum()", ("t$[0] = 5", "t$.data[1] = 3", "t$.numpy()[0] = 2", "t$ = torch.zeros(2)")),
    Kind("q$ = torch.ones(300000)", "q$[1]", ("q$.data[1] = 3", "q$.numpy()[1] = -1", "q$.data.neg_()")),
    Kind("w$ = np.ones(4, np.float32)\nu$ = w$[1:]", "float(u$[0])", ("w$[1] = 6", "u$[0] = 3")),
    Kind("l$ = torch.nn.Linear(1, 1)", "l$(torch.ones(1)).sum()", ("l$.weight.data.add_(1)", "l$.bias = None")),
    Kind(
        "l$ = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.ReLU())",
        "l$(torch.ones(1)).sum()",
        ("l$[0].weight.data.fill_(3)", "l$[0].register_forward_hook(lambda m, i, o: o + 3)", "l$[1] = torch.nn.Tanh()"),
    ),
    Kind(
        "k$ = 3\nclass M$(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n        self._k = 1\n"
        "    def forward(self, x): return x * k$ + self._k\nclass O$(torch.nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.inner = torch.nn.ModuleList([M$()])\n"
        "    def forward(self, x): return self.inner[0](x)\no$ = O$()",
        "o$(torch.ones(1)).sum()",
        ("k$ = 4", "o$.inner[0]._k = 5", "o$.inner[0] = torch.nn.Identity()"),
    ),
    Kind("k$ = 1\nclass V$:\n    def __add__(self, x): return x + k$\no$ = V$()", "(o$ + 1)", ("k$ = 5",)),
    Kind(
        "class V$:\n    def __init__(self): self.k = [2]\n    def __rmul__(self, x): return x * self.k[0]\no$ = V$()",
        "2 * o$",
        ("o$.k[0] = 5", "V$.__rmul__ = lambda self, x: 1"),
    ),
    Kind("class V$:\n    n = 3\n    def __len__(self): return self.n\no$ = V$()", "len(o$)", ("V$.n = 1", "o$.n = 2")),
    Kind(
        "class V$:\n    n = 0\n    def __bool__(self): return self.n > 0\no$ = V$()", "(1 if o$ else 2)", ("o$.n = 2",)
    ),
    Kind(
        "class V$:\n    n = 2\n    def __iter__(self): return iter([self.n, 1])\no$ = V$()",
        "sum([a for a in o$])",
        ("o$.n = 7",),
    ),
    Kind(
        "class V$:\n    n = 2\n    def __getattr__(self, name): return self.n\no$ = V$()", "o$.unknown", ("o$.n = 7",)
    ),
    Kind(
        "class V$:\n    n = 2\n    def __contains__(self, v): return v == self.n\no$ = V$()",
        "(1 if 2 in o$ else 3)",
        ("o$.n = 7",),
    ),
    Kind("class V$:\n    n = 2\n    def __call__(self, v): return v * self.n\no$ = V$()", "o$(3)", ("o$.n = 7",)),
    Kind("class V$:\n    n = 2\n    def __getitem__(self, v): return v * self.n\no$ = V$()", "o$[3]", ("o$.n = 7",)),
    Kind(
        "class T$:\n    n = 2\n    def __get__(self, o, c): return self.n\nclass U$:\n    t = T$()",
        "U$().t",
        ("T$.n = 7", "U$.t = 1"),
    ),
    Kind("class V$:\n    def __init__(self): self.k = k$\nk$ = 2", "V$().k", ("k$ = 3",)),
    Kind("@dataclasses.dataclass\nclass E$:\n    k: int = 2\no$ = E$()", "o$.k", ("o$.k = 3", "o$ = E$(5)")),
    Kind(
        "@dataclasses.dataclass\nclass E$:\n    k: int = 2\no$, p$ = E$(), E$()",
        "(1 if o$ == p$ else 2)",
        ("o$.k = 3",),
    ),
    Kind("class E$(enum.Enum):\n    A = 1\n    B = 2\ne$ = E$.A", "e$.value", ("e$ = E$.B",)),
    Kind("n$ = types.SimpleNamespace(k=1)", "n$.k", ("n$.k = 3",)),
    Kind("n$ = types.SimpleNamespace(k=1)\no$ = types.SimpleNamespace(k=1)", "(1 if n$ == o$ else 2)", ("n$.k = 3",)),
    Kind("u$ = collections.UserDict(a=1)", "u$['a']", ("u$['a'] = 3",)),
    Kind("u$ = collections.UserList([1, 2])", "len(u$) + u$[0]", ("u$.append(3)", "u$[0] = 4")),
    Kind("u$ = collections.Counter('aab')", "u$['a']", ("u$.update('a')",)),
    Kind("u$ = collections.OrderedDict(a=1, b=2)", "list(u$.values())[0]", ("u$.move_to_end('a')",)),
    Kind("class X$(list): k = 1\nu$ = X$([1])", "u$.k + u$[0]", ("u$.k = 4", "u$[0] = 9", "X$.k = 5")),
    Kind("class X$(float): pass\nu$ = X$(2)\nu$.k = 1", "u$.k + u$", ("u$.k = 4", "u$ = X$(1); u$.k = 2")),
    Kind("def h$(k=2): return k\ndef i$(): return 4", "h$()", ("h$.__defaults__ = (5,)", "h$ = i$")),
    Kind("def h$(*, k=2): return k", "h$()", ("h$.__kwdefaults__['k'] = 5",)),
    Kind("def h$(): return h$.k\nh$.k = 2", "h$()", ("h$.k = 5",)),
    Kind("def h$(): return 1\ndef i$(): return 2", "h$()", ("h$.__code__ = i$.__code__",)),
    Kind("class V$: k = 1\nclass W$: k = 2\no$ = V$()", "o$.k", ("o$.__class__ = W$",)),
    Kind("class V$: pass\nclass W$: pass\no$ = V$()", "(1 if isinstance(o$, V$) else 2)", ("o$.__class__ = W$",)),
    Kind(
        "class V$:\n    def __init__(self, k): self.k = k\ns$ = [V$(1), V$(2)]",
        "sum([o.k for o in s$])",
        ("s$[0].k = 4", "s$.append(V$(3))", "s$.reverse(); s$.pop()"),
    ),
    Kind("class V$: k = 1\no$ = V$()", "operator.attrgetter('k')(o$)", ("o$.k = 4", "V$.k = 5")),
    Kind("class V$:\n    def k(self): return j$\nj$ = 1\no$ = V$()", "operator.methodcaller('k')(o$)", ("j$ = 4",)),
    Kind("s$ = {'a': 3}", "operator.itemgetter('a')(s$)", ("s$['a'] = 4",)),
    Kind("k$ = 2\nf$ = lambda v: v * k$\ng$ = lambda v: v", "sum(map(f$, [1, 2]))", ("k$ = 3", "f$ = g$")),
    Kind("k$ = -1", "sorted([1, 2], key=lambda v: v * k$)[0]", ("k$ = 1",)),
    Kind("a$ = [1, 2]", "(lambda p, q: p - q)(*a$)", ("a$[1] = 5",)),
    Kind("a$ = {'q': 1}", "(lambda p=1, q=1: p - q)(**a$)", ("a$['q'] = 5", "a$['p'] = 3")),
    Kind("s$ = 'abc'", "len(s$.strip('a'))", ("s$ = 'aaa'",)),
    Kind("s$ = {1, 2}", "(1 if 2 in s$ else 0)", ("s$.discard(2)",)),
    Kind("r$ = range(3)", "len(r$)", ("r$ = range(5)",)),
    Kind("n$ = np.float32(2)", "float(n$)", ("n$ = np.float32(3)",)),
    Kind("n$ = np.array([1, 2], object)", "n$[0]", ("n$[0] = 3",)),
    Kind("f$ = {'a': lambda: 1, 'b': lambda: 2}", "f$['a']()", ("f$['a'] = f$['b']",)),
    Kind(
        "class B$:\n    def v(self): return 1\nclass C$(B$):\n    def v(self): return super().v() + 1\no$ = C$()\n"
        "def w$(self): return 5",
        "o$.v()",
        ("B$.v = w$",),
    ),
    Kind("class Q$(type):\n    k = 1\nclass R$(metaclass=Q$): pass", "R$.k", ("Q$.k = 3", "R$.k = 4")),
    Kind("class V$:\n    k = 2\n    def __init__(self): pass", "V$().k", ("V$.k = 3",)),
    Kind("i$ = [0]\nl$ = [3, 4]", "l$[i$[0]]", ("i$[0] = 1", "l$[0] = 9")),
)


@dataclass(frozen=True)
class Written:
    """`text` of a function called `name`, with the state that it reads; `changes` of each piece of that state."""

    name: str
    text: str
    changes: list[list[str]]


def written(seed: int) -> Written:
    """A random function of a float32 tensor."""
    rng = random.Random(seed)
    parts = [(k, f"{seed}_{i}") for i, k in enumerate(rng.sample(KINDS, rng.randint(2, 4)))]
    shapes = (
        lambda v: f"    y = y + {v}\n",
        lambda v: f"    def part(x):\n        return x + {v}\n    y = part(y)\n",
        lambda v: f"    if y.sum() > 0:\n        y = y + {v}\n    else:\n        y = y - {v}\n",
        lambda v: f"    for _ in range(2):\n        y = y + {v}\n",
    )
    setups = "\n".join(k.setup.replace("$", i) for k, i in parts)
    body = "".join(rng.choice(shapes)(k.value.replace("$", i)) for k, i in parts)
    changes = [rng.sample([c.replace("$", i) for c in k.changes], len(k.changes)) for k, i in parts]
    return Written(f"f{seed}", f"{setups}\n\ndef f{seed}(x):\n    y = x * 1\n{body}    return y\n", changes)


def loaded(text: str, folder: Path, name: str) -> ModuleType:
    """The functions need a file: that is where their source is read from."""
    path = folder / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def stale(seeds: Iterable[int], folder: Path) -> list[str]:
    """What goes wrong with the functions of some seeds, traced together: changes after which Python gives something
    else and all that the trace read is as it was; reads that change though nothing did."""
    import torch

    from cuvil_hw.frontend.python import load
    from tests.support.python_runner import on_reference, same

    functions = [written(seed) for seed in seeds]
    calls = "".join(f"{f.name}(x), " for f in functions)
    text = HEADER + "\n".join(f.text for f in functions) + f"\n\ndef together(x):\n    return {calls}\n"
    made = loaded(text, folder, f"captured_{functions[0].name}")
    x = torch.tensor([1.0, 2.0])
    problems = []
    for i in range(max(len(c) for f in functions for c in f.changes)):
        given = load.arguments(made.together, (x,), {})
        traced = load.trace_function(made.together, given, 8, "together")
        same(on_reference(traced, given), made.together(x))
        if not traced.reads.unchanged():
            problems.append(f"{functions[0].name} and others: changed by nothing")
        for f in functions:
            # One change of each piece of state: after that the function may read something else.
            for change in [c[i] for c in f.changes if i < len(c)]:
                before, want = list(traced.reads.again()), getattr(made, f.name)(x)
                exec(change, vars(made))
                now = getattr(made, f.name)(x)
                if not torch.equal(now, want) and list(traced.reads.again()) == before:
                    problems.append(f"{f.name}: stale after {change}")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description="Look for stale programs.")
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    import torch

    torch.set_num_threads(1)  # threads of two elements wait for each other where much else is running
    problems: list[str] = []
    seeds = range(given.first, given.first + given.seeds)
    with tempfile.TemporaryDirectory() as folder:
        for i in range(0, len(seeds), TOGETHER):
            found = stale(seeds[i : i + TOGETHER], Path(folder))
            problems += found
            print("\n".join([*found, f"{i + len(seeds[i : i + TOGETHER])} functions"]), flush=True)
    print(f"{len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
