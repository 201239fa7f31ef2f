"""Damaged inputs for the product, many of them: `make fuzz ARGS='onnx --count 20000'`.

Each module tools/fuzz_NAME.py with `case` and `check` (see fuzz_harness.py) is a fuzzer; without names, all run. The
seed is printed, so that a run can be repeated; `--only` runs one case in this process, for a debugger. The exit
code is 1 when there are findings.
"""

from __future__ import annotations

import argparse
import importlib
import secrets
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tools import fuzz_harness

FUZZERS = ("onnx", "files", "records")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("fuzzers", nargs="*", default=[], help=f"of {', '.join(FUZZERS)}; all without one")
    parser.add_argument("--seed", type=int, default=None, help="drawn anew without it")
    parser.add_argument("--count", type=int, default=10_000, help="cases of each fuzzer")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", type=int, default=None, help="number of one case, in this process")
    parser.add_argument("--seconds", type=float, default=fuzz_harness.SECONDS, help="limit of a case")
    parser.add_argument("--keep", type=Path, default=None, help="folder for the inputs of findings")
    options = parser.parse_args()
    seed = secrets.randbelow(1 << 31) if options.seed is None else options.seed
    names = options.fuzzers or list(FUZZERS)
    if unknown := set(names) - set(FUZZERS):
        parser.error(f"no fuzzer {', '.join(sorted(unknown))}; there are {', '.join(FUZZERS)}")
    if options.only is not None:
        module = importlib.import_module(f"tools.fuzz_{names[0]}")
        with tempfile.TemporaryDirectory() as folder:
            module.check(module.case(seed, options.only), Path(folder))
        return 0
    found = 0
    for name in names:
        start = time.monotonic()
        print(f"{name}: seed {seed}, cases {options.first} to {options.first + options.count - 1}", flush=True)
        for finding in fuzz_harness.hunt(
            f"fuzz_{name}", seed, range(options.first, options.first + options.count), options.seconds
        ):
            found += 1
            print(finding, flush=True)
            if options.keep is not None:
                options.keep.mkdir(parents=True, exist_ok=True)
                data = importlib.import_module(f"tools.fuzz_{name}").case(seed, finding.number)
                (options.keep / f"{name}-{seed}-{finding.number}").write_bytes(data)
        seconds = time.monotonic() - start
        print(f"{name}: {options.count} cases in {seconds:.0f} s, {found} finding(s) so far", flush=True)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
