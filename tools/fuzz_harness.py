"""Runs the cases of a fuzzer in a process of their own, with a limit of time and memory each.

A fuzzer is a module with two functions: `case(seed, n) -> bytes` makes the n-th input of a seed, the same one every
time; `check(data, folder)` gives it to the product, as a file in `folder` if need be, and lets every exception out.
Only CuvilError may come; another exception, a signal, or a case that goes on for too long is a finding.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import resource
import select
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 60.0  # of processor time for a case; most take some milliseconds
PATIENCE = 4  # times that on the clock, as other processes may have the machine
MEMORY = 3 << 29  # bytes that a case may take beyond what the modules themselves occupy
_READY_SECONDS = 120.0
_MOST_CASES = 1000  # of one process


@dataclass(frozen=True)
class Finding:
    """`what`: the exception with the end of its traceback, "signal …" or "more than … s"."""

    fuzzer: str
    seed: int
    number: int
    what: str

    def __str__(self) -> str:
        again = f"make fuzz ARGS='{self.fuzzer.removeprefix('fuzz_')} --seed {self.seed} --only {self.number}'"
        return f"{self.fuzzer} {self.seed}:{self.number}: {self.what.strip()}\n  again: {again}"


def hunt(
    fuzzer: str, seed: int, numbers: Iterable[int], seconds: float = SECONDS, memory: int = MEMORY
) -> Iterator[Finding]:
    """What goes wrong in the cases `numbers` of a module tools/`fuzzer`.py."""
    worker: _Worker | None = None
    try:
        for n in numbers:
            if worker is None or worker.ran >= _MOST_CASES:
                if worker is not None:
                    worker.close()
                worker = _Worker(fuzzer, memory)
            what = worker.run(seed, n, seconds)
            if what:
                yield Finding(fuzzer, seed, n, what)
            if worker.gone:
                worker.close()
                worker = None
    finally:
        if worker is not None:
            worker.close()


class _Worker:
    """A process that answers every line "seed number" by a line: "" or repr() of what went wrong."""

    def __init__(self, fuzzer: str, memory: int) -> None:
        self.ran, self.gone = 0, False
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
        path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH", "")) if p)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tools.fuzz_harness", fuzzer, str(memory)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}, start_new_session=True,
        )  # fmt: skip
        if self._line(_READY_SECONDS) != "ready":
            self.close()
            raise RuntimeError(f"{fuzzer} doesn't start: {self._tail()}")

    def run(self, seed: int, n: int, seconds: float) -> str:
        assert self._process.stdin is not None
        self.ran += 1
        self._process.stdin.write(f"{seed} {n}\n".encode())
        self._process.stdin.flush()
        answer = self._line(seconds)
        if answer is None:
            self.gone = True
            code = self._process.poll()
            return f"more than {seconds:g} s" if code is None else f"ended with {code}: {self._tail()}"
        return answer.encode().decode("unicode_escape")

    def _line(self, seconds: float) -> str | None:
        """The next line; None when the process ended, or is too slow."""
        out = self._process.stdout
        assert out is not None
        begun, used = time.monotonic(), self._processor_seconds()
        while not select.select([out], [], [], 0.2)[0]:
            late = time.monotonic() - begun > PATIENCE * seconds
            if late or self._processor_seconds() - used > seconds:
                return None
        line = out.readline().decode()
        if not line.endswith("\n"):
            self._process.wait(timeout=10)
            return None
        return line[:-1]

    def _processor_seconds(self) -> float:
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _tail(self) -> str:
        self._log.seek(0)
        return self._log.read()[-600:].decode(errors="replace")

    def close(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, 9)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None and not stream.closed:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self._log.close()


def _serve(fuzzer: str, memory: int) -> None:
    from cuvil_hw.errors import CuvilError

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the product prints is no answer
    module = importlib.import_module(f"tools.{fuzzer}")
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="cuvil-fuzz-") as folder:
        module.check(module.case(0, 0), Path(folder))  # a case without a mutation: imports what is needed
        with open("/proc/self/statm") as f:
            used = int(f.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        print("ready", file=answers, flush=True)
        for line in sys.stdin:
            seed, n = map(int, line.split())
            what = ""
            try:
                data = module.case(seed, n)
                module.check(data, Path(folder))
            except CuvilError as e:
                str(e).encode()
            except BaseException:
                what = "".join(traceback.format_exc()[-1500:])
            print(what.encode("unicode_escape").decode(), file=answers, flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]))
