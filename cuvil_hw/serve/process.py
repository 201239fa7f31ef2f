"""A worker process as the server sees it: calls go out over a socket, answers come back, one at a time."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuvil_hw.contract.device import Port
from cuvil_hw.errors import CuvilError
from cuvil_hw.serve import wire
from cuvil_hw.serve.faults import RequestError, WorkerDied

_SAFE_PATH = ("-P",) if sys.version_info >= (3, 11) else ()
_TURNS = {"InputError": 400, "GuardError": 400}


@dataclass(frozen=True, slots=True)
class About:
    """What a worker says of its program. `batched`: several samples may lie along the first dimension; `golden`: how
    many golden vectors it was checked with; `times`: (samples, seconds) of calls."""

    program: str
    adapter: str
    interface: str
    golden: int
    batched: bool
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    times: tuple[tuple[int, float], ...]


class WorkerProcess:
    """Made by `start`. `about` is of the program that runs in it."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process, self._reader, self._writer = process, reader, writer
        self.about: About

    @classmethod
    async def start(cls, program: Path, max_batch: int, interface: str | None, timeout_s: float) -> WorkerProcess:
        """Raises CuvilError where the program is refused, doesn't open, or takes longer than `timeout_s`."""
        ours, theirs = socket.socketpair()
        argv = [str(theirs.fileno()), str(program), str(max_batch), *([interface] if interface else [])]
        try:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, *_SAFE_PATH, "-m", "cuvil_hw.serve.worker", *argv,
                    pass_fds=(theirs.fileno(),), stdin=asyncio.subprocess.DEVNULL, start_new_session=True,
                )  # fmt: skip
        except OSError as e:
            ours.close()
            raise CuvilError(f"{program.name}: no worker process can be started: {e.strerror or e}") from e
        reader, writer = await asyncio.open_connection(sock=ours, limit=wire.MAX_LINE)
        worker = cls(process, reader, writer)
        try:
            said, _ = await asyncio.wait_for(worker._read(), timeout_s)
            if "refused" in said:
                raise CuvilError(str(said["refused"]))
            worker.about = _about(said["ready"])
        except asyncio.TimeoutError:
            await worker.close(at_once=True)
            raise CuvilError(f"{program.name}: didn't open within {timeout_s:g} s") from None
        except WorkerDied:
            code = await process.wait()
            await worker.close(at_once=True)
            raise CuvilError(f"{program.name}: its process ended with {code} while the program was opened") from None
        except BaseException:
            await worker.close(at_once=True)
            raise
        return worker

    @property
    def pid(self) -> int:
        return self._process.pid

    async def call(self, arrays: Sequence[wire.Array]) -> list[wire.Array]:
        """One run. Raises WorkerDied; RequestError where the program refuses the values or fails. A call that is
        cancelled leaves the worker unusable: close it."""
        try:
            for part in wire.pack({}, arrays):
                self._writer.write(part)
            await self._writer.drain()
        except OSError as e:
            raise WorkerDied from e
        said, made = await self._read()
        if "failed" in said:
            raise RequestError(_TURNS.get(said["kind"], 500), str(said["failed"]))
        return made

    async def _read(self) -> tuple[dict[str, Any], list[wire.Array]]:
        try:
            line = await self._reader.readuntil(b"\n")
            message, wanted = wire.sizes(line)
            return message, [wire.array_of(await self._reader.readexactly(n), d, s) for d, s, n in wanted]
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, ValueError, LookupError) as e:
            raise WorkerDied from e

    async def close(self, at_once: bool = False) -> None:
        """Let the process end, or end it. It is gone when this returns."""
        self._writer.close()
        if at_once and self._process.returncode is None:
            self._process.kill()
        try:
            await asyncio.wait_for(self._process.wait(), 10)
        except asyncio.TimeoutError:
            self._process.kill()
            await self._process.wait()


def _about(said: dict[str, Any]) -> About:
    ends = {k: tuple(Port(name, tuple(shape), dtype) for name, dtype, shape in said[k]) for k in ("inputs", "outputs")}
    return About(**{**said, **ends, "times": tuple((n, s) for n, s in said["times"])})
