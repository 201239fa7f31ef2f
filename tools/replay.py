"""Compiles fixed programs for every kind of target and compares all that is generated with a committed table.

    python tools/replay.py                                       # check: equal, or which files differ (status 1)
    python tools/replay.py --against main --target h100          # the differing texts themselves, as a unified diff
    python tools/replay.py --update                              # write the table from what is generated now

The table (tests/golden/replay.txt) holds a digest of every generated file, of the data for the device, of the commands
that a build would run, of every group of figures of the report, and of the error where a target refuses a program.
Products are not built and nothing is measured, so no tool is needed. A change to the table belongs into the commit
that causes it, with the reason.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.replay_worker import CRASH  # noqa: E402

TABLE = ROOT / "tests" / "golden" / "replay.txt"
# One of each adapter and family: both languages of FPGAs, old and new GPUs and cards.
TARGETS = ("x86_64-linux-gnu", "pynq-z2", "zcu104", "agilex-agfb014", "h100", "cuda:sm_75", "mlu270", "mlu370-x4")
DIGITS = 12
ABSENT = "-" * DIGITS
ERROR = "error"
MOST = 60  # differences that are listed
HEAD = "# Digests of what tools/replay.py generates; under a target's name alone, what most of its programs have.\n"
Pair = tuple[str, str]  # program, target
Texts = Mapping[str, str]
Digests = dict[Pair, dict[str, str]]


@dataclass
class Replayed:
    """`texts` by pair and name; processor seconds to compile, by target, to import the models, once for all targets,
    and of a process's start, by part."""

    texts: dict[Pair, Texts] = field(default_factory=dict)
    seconds: Counter[str] = field(default_factory=Counter)
    imported: float = 0.0
    times: dict[str, float] = field(default_factory=dict)

    def digests(self) -> Digests:
        return {pair: {name: digest(text) for name, text in texts.items()} for pair, texts in self.texts.items()}

    def words(self) -> str:
        """The times."""
        parts = {"import": "import cuvil", "compiler": "cuvil.compile", "first": "a first compilation"}
        start = ", ".join(f"{parts[part]} {s:.3g} s" for part, s in self.times.items())
        each = ", ".join(f"{target} {s:.1f} s" for target, s in self.seconds.items())
        return f"processor time: {start}; then importing {self.imported:.1f} s, {each}"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def replay(
    tree: Path, pairs: Sequence[Pair], jobs: int = 1, progress: Callable[[str], None] = lambda _: None
) -> Replayed:
    """What the package in folder `tree` makes of programs and targets, in `jobs` processes. Raises
    CalledProcessError."""
    result = Replayed()

    def share(mine: Sequence[Pair], cache: str) -> None:
        argv = [sys.executable, str(ROOT / "tools" / "replay_worker.py"), str(tree)]
        env = {**os.environ, **plain_arithmetic(), "CUVIL_CACHE": cache}
        pipe = subprocess.PIPE
        with subprocess.Popen(argv, env=env, stdin=pipe, stdout=pipe, text=True, cwd=cache) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n".join(map("@".join, mine)))
            process.stdin.close()
            for line in process.stdout:
                made = json.loads(line)
                result.times = made.get("times", result.times)
                result.imported += made.get("imported", 0.0)
                if "texts" not in made:
                    continue
                pair = (made["program"], made["target"])
                result.texts[pair] = made["texts"]
                result.seconds[pair[1]] += made["seconds"]
                progress(f"{len(result.texts)}/{len(pairs)} {pair[0]} for {pair[1]}")
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, argv)

    jobs = max(1, min(jobs, len({name for name, _ in pairs})))
    with tempfile.TemporaryDirectory(prefix="cuvil-replay-") as cache, ThreadPoolExecutor(jobs) as pool:
        names = list(dict.fromkeys(name for name, _ in pairs))
        shares = [[pair for pair in pairs if pair[0] in names[i::jobs]] for i in range(jobs)]
        list(pool.map(lambda mine: share(mine, cache), shares))
    result.seconds = Counter({target: result.seconds[target] for target in dict.fromkeys(t for _, t in pairs)})
    return result


def plain_arithmetic() -> dict[str, str]:
    """Environment in which NumPy, OpenBLAS, PyTorch and the C library compute as on any x86-64 processor: what they do
    with wider registers rounds otherwise, and testbenches of float programs and tables of functions hold the bits."""
    return {
        "NPY_DISABLE_CPU_FEATURES": " ".join(np.show_config(mode="dicts")["SIMD Extensions"].get("found", ())),
        "OPENBLAS_CORETYPE": "Prescott",
        "ATEN_CPU_CAPABILITY": "default",
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-AVX512F,-FMA,-FMA4",
        "OMP_NUM_THREADS": "1",
    }


def written(digests: Digests) -> str:
    """The table: digest and name, a line each, by target and program. What most programs of a target have the same is
    said once, under the target alone; a program then says where it differs."""
    lines = [HEAD]
    for target in sorted({t for _, t in digests}):
        mine = {program: names for (program, t), names in sorted(digests.items()) if t == target}
        whole = [names for names in mine.values() if ERROR not in names]
        counted = Counter(item for names in whole for item in names.items())
        shared = {name: found for (name, found), n in counted.items() if 2 * n > len(whole) > 1}
        lines += _section(target, shared)
        for program, names in mine.items():
            usual = {} if ERROR in names else shared
            own = {name: found for name, found in names.items() if usual.get(name) != found}
            lines += _section(f"{program} {target}", own | dict.fromkeys(set(usual) - set(names), ABSENT))
    return "".join(lines)


def _section(title: str, names: Mapping[str, str]) -> list[str]:
    return [f"\n[{title}]\n", *(f"{names[name]} {name}\n" for name in sorted(names))]


def read(text: str) -> Digests:
    """The inverse of `written`. Raises ValueError for a line that is none of the table's."""
    shared: dict[str, dict[str, str]] = {}
    result: Digests = {}
    own: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("["):
            program, _, target = line.strip("[]").rpartition(" ")
            own = result.setdefault((program, target), {}) if program else shared.setdefault(target, {})
        elif line and not line.startswith("#"):
            found, name = line.split(" ", 1)
            own[name] = found
    for (_, target), names in result.items():
        if ERROR not in names:
            names.update({name: found for name, found in shared[target].items() if name not in names})
        for name in [n for n, found in names.items() if found == ABSENT]:
            del names[name]
    return result


def differences(expected: Digests, got: Digests) -> list[str]:
    """A line for each name that differs, of the pairs in `got`."""
    lines = []
    for (program, target), names in sorted(got.items()):
        wanted = expected.get((program, target))
        if wanted is None:
            lines.append(f"{program} for {target}: not in the table")
            continue
        for name in sorted({*names, *wanted}):
            if names.get(name) != wanted.get(name):
                what = "is new" if name not in wanted else "is gone" if name not in names else "differs"
                lines.append(f"{program} for {target}: {name} {what}")
    return lines


def diff(before: Texts, after: Texts, pair: Pair, revision: str) -> str:
    """The unified diff of all texts of a program for a target."""
    shown = []
    for name in sorted({*before, *after}):
        old, new = before.get(name, ""), after.get(name, "")
        if old != new:
            title = f"{pair[0]}@{pair[1]}/{name}"
            lines = difflib.unified_diff(
                old.splitlines(), new.splitlines(), f"{revision}:{title}", f"now:{title}", lineterm=""
            )
            shown.append("\n".join(lines) + "\n")
    return "".join(shown)


def checked_out(revision: str, folder: Path) -> Path:
    """The tree of a revision, written below `folder`; the checkout and its git data stay as they are. Raises
    SystemExit for what git can't give."""
    argv = ["git", "-C", str(ROOT), "archive", "--format=tar", revision]
    packed = subprocess.run(argv, check=False, capture_output=True)
    if packed.returncode:
        raise SystemExit(f"no revision {revision}: {packed.stderr.decode(errors='replace').strip()}")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def chosen(only: Iterable[str], targets: Iterable[str]) -> list[Pair]:
    """Pairs whose program's name contains one of `only`, on these targets; all where there is none. Raises SystemExit
    when nothing is left."""
    from tools.replay_programs import PROGRAMS

    only, targets = tuple(only), tuple(targets)
    unknown = set(targets) - set(TARGETS)
    names = [p.name for p in PROGRAMS if not only or any(part in p.name for part in only)]
    if unknown or not names:
        wrong = f"target {min(unknown)}" if unknown else f"program {', '.join(only)}"
        have = ", ".join(TARGETS) if unknown else ", ".join(p.name for p in PROGRAMS)
        raise SystemExit(f"no {wrong}; there are {have}")
    return [(name, target) for target in targets or TARGETS for name in names]


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    pairs = chosen(args.only, args.target)
    progress = _progress if sys.stderr.isatty() else lambda _: None
    with tempfile.TemporaryDirectory(prefix="cuvil-replay-") as folder:
        before = checked_out(args.against, Path(folder)) if args.against else None
        now = replay(ROOT, pairs, args.jobs, progress)
        then = replay(before, pairs, args.jobs, progress) if before else None
    crashes = [
        f"{p} for {t}: {x[ERROR].strip()}" for (p, t), x in now.texts.items() if x.get(ERROR, "").startswith(CRASH)
    ]
    if then is not None:
        lines = [d for pair in pairs if (d := diff(then.texts[pair], now.texts[pair], pair, args.against))]
    else:
        expected = read(TABLE.read_text(encoding="utf-8")) if TABLE.is_file() else {}
        lines = differences(expected, now.digests())
        if not (args.only or args.target):
            lines += [f"{p} for {t}: only in the table" for p, t in sorted(set(expected) - set(pairs))]
    if args.update and not crashes:
        kept = expected if args.only or args.target else {}
        TABLE.write_text(written({**kept, **now.digests()}), encoding="utf-8")
    _print(args, now, lines, crashes)
    return 1 if crashes or (lines and not args.update) else 0


def _print(args: argparse.Namespace, now: Replayed, lines: Sequence[str], crashes: Sequence[str]) -> None:
    names = sum(map(len, now.texts.values()))
    refused = sum(ERROR in texts for texts in now.texts.values())
    count = f"{len(now.texts)} compilations ({refused} refused), {names:,} files and groups of figures"
    if args.json:
        times = {"start_s": now.times, "imported_s": now.imported, "compiled_s": dict(now.seconds)}
        counts = {"compilations": len(now.texts), "refused": refused, "names": names}
        print(json.dumps({**counts, "differences": lines, "crashes": crashes, **times}, indent=1))
        return
    shown = (
        lines
        if args.against
        else [*lines[:MOST], *([f"… and {len(lines) - MOST:,} more"] if len(lines) > MOST else [])]
    )
    print(*shown, *crashes, sep="\n", end="\n" if lines or crashes else "")
    if args.update:
        print(f"{TABLE.name} " + ("was not written: compilations crashed" if crashes else f"is written: {count}"))
    elif not lines and not crashes:
        print(f"equal: {count}; {now.words()}")
    else:
        other = args.against or "the table; see the text with --against REV, write the table with --update"
        print(f"{count}; {len(lines)} differ from {other}")


def _progress(text: str) -> None:
    print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], metavar="PART", help="programs with PART in their name")
    parser.add_argument(
        "--target", action="append", default=[], help=f"one of {', '.join(TARGETS)}; may be given again"
    )
    parser.add_argument(
        "--against", metavar="REV", help="compare with what a git revision generates, and show the texts"
    )
    parser.add_argument(
        "--update", action="store_true", help="write the table; with --only or --target, that part of it"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (1)")
    parser.add_argument("--json", action="store_true", help="print counts, differences and times as JSON")
    args = parser.parse_args(argv)
    if args.update and args.against:
        parser.error("--update writes the table, --against shows texts; give one of them")
    return args


if __name__ == "__main__":
    sys.exit(main())
