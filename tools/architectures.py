"""Compiles small random models of many architectures for this processor, as users do, and compares them with PyTorch.

    python tools/architectures.py --out build/architectures.json      # all; about an hour on two cores
    python tools/architectures.py --only Bert,Mixtral                  # whose name contains one of these
    python tools/architectures.py --out build/architectures.json --write docs/architectures.md

Each model runs in a process of its own, at most --limit seconds. It is right when every output is within TOLERANCE
(docs/numerics.md) and when the model's own outputs have the same bits before and after. `--out` keeps results; what is
there already isn't run again, unless --only names it. `--write` makes the table of what has run. Status 1 when a model
isn't right.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import counters

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import cuvil  # noqa: E402
from cuvil_hw.report.text import table  # noqa: E402
from tools.architecture_cases import HF, Case  # noqa: E402
from tools.architecture_layers import LAYERS  # noqa: E402

TOLERANCE = 1e-4
CASES = (*HF, *LAYERS)
HEADS = ["model", "route", "result", "error", "processor s", "programs"]


@dataclass(frozen=True)
class Result:
    """`error`: the largest |y - r| / (|r| + largest |r|) of the outputs; `seconds`: processor time of the first call,
    which compiles, the C compiler's too; `why`: of what is refused or failed."""

    name: str
    route: str
    good: bool
    error: float | None = None
    seconds: float = 0.0
    programs: int = 0
    why: str = ""


def run(case: Case) -> Result:
    torch.manual_seed(0)
    model, inputs = case.make()
    named = {k: v for k, v in inputs.items() if k}
    given = [v for k, v in inputs.items() if not k]
    with torch.no_grad():
        torch.manual_seed(0)  # before each call, for models that draw random numbers
        before = leaves(model(*given, **named))
        start = processor_time()
        try:
            fast, count = compiled(case, model, given, named)
            torch.manual_seed(0)
            got = leaves(fast(*given, **named))
        except cuvil.CuvilError as e:
            return Result(case.name, case.route, False, seconds=processor_time() - start, why=first_line(e))
        seconds = processor_time() - start
        torch.manual_seed(0)
        after = leaves(model(*given, **named))
    same = before.keys() == after.keys() and all(torch.equal(before[k], after[k]) for k in before)
    if before.keys() != got.keys():
        why = f"outputs {', '.join(sorted(before.keys() ^ got.keys())[:3])} are on one side only"
        return Result(case.name, case.route, False, None, seconds, count(), why)
    error = max(error_of(got[k], before[k]) for k in before)
    why = "" if same else "the model's own outputs changed"
    if not count():
        why = "nothing was compiled: it ran in PyTorch"
    elif case.route.startswith("torch.compile") and counters["cuvil"]["left_to_pytorch"]:
        why = "a part of it ran in PyTorch"
    return Result(case.name, case.route, not why and error <= TOLERANCE, error, seconds, count(), why)


def processor_time() -> float:
    """Seconds of this process and of the children that it has waited for."""
    return sum(
        r.ru_utime + r.ru_stime for r in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def compiled(case: Case, model: Any, given: list[Any], named: dict[str, Any]) -> tuple[Any, Any]:
    """What to call, and how many programs it has made by now."""
    match case.route:
        case "accelerate" | "accelerate, whole=False":
            fast = cuvil.accelerate(model, whole=case.route == "accelerate")
            return fast, lambda: len(fast.cuvil_programs)
        case "compile":
            program = cuvil.compile(model, "cpu", example_inputs=tuple(given) or named)
            return program, lambda: 1
        case "torch.compile, allow_rnn":
            torch._dynamo.config.allow_rnn = True
    made: list[Any] = []
    fast = torch.compile(model, backend="cuvil", options={"done": made.append})
    return fast, lambda: len(made)


def leaves(value: Any, path: str = "out") -> dict[str, torch.Tensor]:
    """Tensors of a result by where they stand in it; caches of keys and values too."""
    if isinstance(value, torch.Tensor):
        return {path: value.detach().clone()}
    if isinstance(value, Mapping):
        parts: Any = value.items()
    elif isinstance(value, list | tuple):
        parts = enumerate(value)
    elif hasattr(value, "layers"):
        parts = [(f"{i}.{n}", getattr(v, n, None)) for i, v in enumerate(value.layers) for n in ("keys", "values")]
    else:
        parts = []
    return {k: t for key, part in parts for k, t in leaves(part, f"{path}.{key}").items()}


def error_of(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Infinite where NaN, infinities, the shape or the dtype differ."""
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return float("inf")
    y, r = got.double(), wanted.double()
    finite = r.isfinite()
    if not torch.equal(finite, y.isfinite()) or not torch.equal(y[~finite].nan_to_num(), r[~finite].nan_to_num()):
        return float("inf")
    y, r = y[finite], r[finite]
    largest = float(r.abs().max()) if r.numel() else 0.0
    if largest == 0:
        return float("inf") if bool(y.any()) else 0.0
    return float(((y - r).abs() / (r.abs() + largest)).max())


def first_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"


def _send(case: Case, end: Any) -> None:
    try:
        result = run(case)
    except Exception as e:  # of any of a hundred models
        result = Result(case.name, case.route, False, why=first_line(e))
    end.send(result)


def alone(case: Case, limit: float) -> Result:
    """In a process of its own, which knows torch and transformers already."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(case, there))
    process.start()
    there.close()
    try:
        if here.poll(limit):
            return here.recv()  # type: ignore[no-any-return]
        return Result(case.name, case.route, False, why=f"not done after {limit:.0f} s", seconds=limit)
    except EOFError:
        return Result(case.name, case.route, False, why="the process ended without a result")
    finally:
        process.kill()
        process.join()


def kept(path: Path | None) -> dict[tuple[str, str], Result]:
    if path is None or not path.exists():
        return {}
    return {(r["name"], r["route"]): Result(**r) for r in json.loads(path.read_text())}


def rows(results: Mapping[tuple[str, str], Result]) -> Iterator[list[str]]:
    for case in CASES:
        r = results.get((case.name, case.route))
        if r is not None:
            what = "right" if r.good else r.why or "wrong"
            error = "" if r.error is None else f"{r.error:.0e}"
            yield [r.name, r.route, what, error, f"{r.seconds:.1f}" if r.seconds else "", str(r.programs or "")]


def page(results: Mapping[tuple[str, str], Result]) -> str:
    """The table in Markdown."""
    import transformers

    good = sum(r.good for r in results.values())
    escaped = [[cell.replace("|", "\\|").replace("<", "&lt;") for cell in row] for row in rows(results)]
    lines = [f"| {' | '.join(row)} |" for row in [HEADS, ["---"] * len(HEADS), *escaped]]
    return (
        "# Architectures\n\n"
        f"Made by `tools/architectures.py` with torch {torch.__version__.partition('+')[0]} and transformers "
        f"{transformers.__version__}: small configurations with random weights, on the target `cpu`, each by the route "
        f"that users take. Of {len(CASES)} runs that it lists, the {len(escaped)} below were made; {good} are right: "
        f"every output within {TOLERANCE:g} (the largest |y - r| / (|r| + largest |r|)), and the model's own outputs "
        "unchanged to the bit. The first call imports, compiles and runs; its processor time is of one run, the C "
        "compiler's included, on cores that much else was running on; where it stands empty it wasn't measured.\n\n"
        + "\n".join(lines)
        + "\n"
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="parts of names, with commas")
    parser.add_argument("--out", type=Path, help="file that keeps results")
    parser.add_argument("--write", type=Path, help="Markdown file to write from what is kept; runs nothing")
    parser.add_argument("--limit", type=float, default=300, help="seconds for one model")
    chosen = parser.parse_args(argv)
    results = kept(chosen.out)
    if chosen.write is not None:
        chosen.write.write_text(page(results))
        return 0
    torch.set_num_threads(1)
    wanted = [part for part in chosen.only.split(",") if part]
    for case in CASES:
        key = (case.name, case.route)
        if any(w in case.name for w in wanted) if wanted else key not in results:
            results[key] = alone(case, chosen.limit)
            print("\t".join(next(rows({key: results[key]}))), flush=True)
            if chosen.out is not None:
                chosen.out.parent.mkdir(parents=True, exist_ok=True)
                chosen.out.write_text(json.dumps([asdict(r) for r in results.values()], indent=1))
    print(table(HEADS, list(rows(results)), [False] * len(HEADS)))
    return 0 if all(r.good for r in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
