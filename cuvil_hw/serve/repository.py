"""Models and their versions: found in a folder, loaded, checked, swapped for newer ones, unloaded.

    models/kws.cuvil              the model kws, version 1
    models/vww/3/model.cuvil      the model vww, version 3 (any one .cuvil file in a folder whose name is a number)

A version that is loaded has a copy of its file, so that a worker that has to be started again gets the same bytes. To
load it anew starts a worker beside the old one; only when that has opened and its golden vectors are right does it take
the requests that come from then on. The old one answers those that it has and ends. A file that is refused changes
nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cuvil_hw.errors import CuvilError
from cuvil_hw.runtime import artifact as container
from cuvil_hw.runtime.trust import Key, check
from cuvil_hw.serve.batching import Batcher
from cuvil_hw.serve.faults import RequestError, Retired, WorkerDied, unknown
from cuvil_hw.serve.process import About, WorkerProcess
from cuvil_hw.serve.protocol import InferRequest, InferResponse, arrays_for, metadata
from cuvil_hw.serve.wire import Array
from cuvil_hw.telemetry.logs import FIELDS
from cuvil_hw.telemetry.spans import span

_log = logging.getLogger("cuvil.serve")
_MOST_PAUSE_S = 10.0


@dataclass(frozen=True, slots=True)
class Limits:
    """`max_batch`: samples of a merged call; `bound_s`: of a request from its arrival to its answer; `timeout_s`: of a
    request, then it is given up; `open_s`: of a program until it is ready; `drain_s`: of old requests at the end."""

    max_batch: int = 32
    bound_s: float = 1.0
    timeout_s: float = 30.0
    open_s: float = 120.0
    drain_s: float = 30.0
    max_request: int = 64 << 20
    max_memory: int = 512 << 20


class Version:
    """A version that is ready: its worker, its queue, its copy of the file. Made by `load`."""

    def __init__(
        self, worker: WorkerProcess, folder: TemporaryDirectory[str], sha256: str, limits: Limits, interface: str | None
    ):
        self.about: About = worker.about
        self.sha256 = sha256
        self._worker: WorkerProcess | None = worker
        self._folder, self._limits, self._interface = folder, limits, interface
        self._pause_s = 0.0
        most = limits.max_batch if self.about.batched else 1
        self.batcher = Batcher(self._call, self.about.times, most, limits.bound_s, limits.timeout_s)

    @classmethod
    async def load(
        cls, path: Path, limits: Limits, interface: str | None, trust: Sequence[Key], min_release: int
    ) -> Version:
        """Raises CuvilError: the file is refused, or its program."""
        folder: TemporaryDirectory[str] = await asyncio.to_thread(TemporaryDirectory, prefix="cuvil-serve-")
        try:
            sha256 = await asyncio.to_thread(_copy, path, Path(folder.name) / "model.cuvil", trust, min_release)
            worker = await WorkerProcess.start(
                Path(folder.name) / "model.cuvil", limits.max_batch, interface, limits.open_s
            )
        except BaseException:
            folder.cleanup()
            raise
        return cls(worker, folder, sha256, limits, interface)

    @property
    def ready(self) -> bool:
        return self._worker is not None

    @property
    def pid(self) -> int | None:
        return self._worker.pid if self._worker is not None else None

    async def close(self) -> None:
        """Answer what waits, then end the worker."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.batcher.close(), self._limits.drain_s)
        if self._worker is not None:
            await self._worker.close()
        self._folder.cleanup()

    async def _call(self, arrays: Sequence[Array]) -> list[Array]:
        worker = self._worker or await self._restarted()
        try:
            made = await asyncio.wait_for(worker.call(arrays), self._limits.timeout_s)
        except asyncio.TimeoutError:
            await self._drop(worker)
            raise RequestError(504, f"the device gave nothing within {self._limits.timeout_s:g} s") from None
        except WorkerDied:
            await self._drop(worker)
            raise
        self._pause_s = 0.0
        return made

    async def _drop(self, worker: WorkerProcess) -> None:
        self._worker = None
        self.batcher.counts.restarts += 1
        await worker.close(at_once=True)
        about = {"program": self.about.program, "pid": worker.pid}
        told = "%s: its worker (process %d) is gone; it is started again"
        _log.warning(told, self.about.program, worker.pid, extra={FIELDS: about})

    async def _restarted(self) -> WorkerProcess:
        """Raises RequestError where it can't be started; the next attempt waits longer."""
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(_MOST_PAUSE_S, 2 * self._pause_s + 0.1)
        path, limits = Path(self._folder.name) / "model.cuvil", self._limits
        try:
            self._worker = await WorkerProcess.start(path, limits.max_batch, self._interface, limits.open_s)
        except CuvilError as e:
            raise RequestError(503, f"its worker can't be started again: {e}", self._pause_s) from e
        return self._worker


@dataclass(slots=True)
class ServedModel:
    """`versions`: those that are ready, by number; `faults`: why others aren't."""

    name: str
    versions: dict[int, Version] = field(default_factory=dict)
    faults: dict[int, str] = field(default_factory=dict)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class Repository:
    """The models in a folder."""

    def __init__(
        self,
        folder: Path,
        limits: Limits,
        interface: str | None = None,
        trust: Iterable[Key] = (),
        min_release: int = 0,
    ) -> None:
        self.folder, self.limits, self.interface = folder, limits, interface
        self.trust, self.min_release = tuple(trust), min_release
        self.models: dict[str, ServedModel] = {}
        self._draining: set[asyncio.Task[None]] = set()

    def files(self) -> dict[str, dict[int, Path]]:
        """The files of each version of each model now. Raises CuvilError for a folder that can't be read."""
        found: dict[str, dict[int, Path]] = {}
        try:
            for entry in sorted(self.folder.iterdir()):
                if entry.suffix == ".cuvil" and entry.is_file():
                    found.setdefault(entry.stem, {})[1] = entry
                elif entry.is_dir():
                    for place in sorted(entry.iterdir()):
                        inside = sorted(place.glob("*.cuvil")) if place.name.isdecimal() and place.is_dir() else []
                        if len(inside) > 1:
                            raise CuvilError(f"{place}: holds {len(inside)} .cuvil files; a version is one")
                        if inside and int(place.name) > 0:
                            found.setdefault(entry.name, {})[int(place.name)] = inside[0]
        except OSError as e:
            raise CuvilError(f"{self.folder}: can't be read: {e.strerror or e}; give a folder of .cuvil files") from e
        return found

    async def load_all(self) -> None:
        """Load what there is. Raises CuvilError where there is nothing; a file that is refused is a fault of its
        model."""
        found = self.files()
        if not found:
            raise CuvilError(f"{self.folder}: holds no model; put NAME.cuvil or NAME/VERSION/model.cuvil there")
        await asyncio.gather(*(self.load(name, refuse=False) for name in found))

    async def load(self, name: str, *, refuse: bool = True) -> None:
        """Bring a model up to what is in the folder: new and changed versions are loaded and swapped in, versions whose
        files are gone are unloaded. With `refuse`, raises RequestError for a version that is refused."""
        wanted = self.files().get(name)
        if wanted is None and name not in self.models:
            raise unknown(f"model {name!r}: there is no such model in the folder")
        model = self.models.setdefault(name, ServedModel(name))
        async with model.turn:
            for number, path in (wanted or {}).items():
                await self._bring(model, number, path)
            for number in [n for n in model.versions if n not in (wanted or {})]:
                self._drain(model.versions.pop(number))
            model.faults = {n: why for n, why in model.faults.items() if n in (wanted or {})}
        if refuse and model.faults:
            number, why = max(model.faults.items())
            kept = "; the one that was loaded before goes on" if number in model.versions else ""
            raise RequestError(400, f"model {name!r} version {number} is refused{kept}: {why}")

    async def _bring(self, model: ServedModel, number: int, path: Path) -> None:
        old = model.versions.get(number)
        try:
            if old is not None and await asyncio.to_thread(_digest, path) == old.sha256:
                model.faults.pop(number, None)
                return
            made = await Version.load(path, self.limits, self.interface, self.trust, self.min_release)
        except (CuvilError, OSError) as e:
            model.faults[number] = str(e)
            fields = {"model": model.name, "version": number, "reason": str(e)}
            _log.error("model %s version %d is refused: %s", model.name, number, e, extra={FIELDS: fields})
            return
        # From this line on requests go to the new one; those that the old one has stay with it.
        model.versions[number] = made
        model.faults.pop(number, None)
        about = made.about
        checked = f"{about.golden} golden vectors are right" if about.golden else "has no golden vectors, unchecked"
        fields = {"model": model.name, "version": number, "sha256": made.sha256, "golden": about.golden}
        told = (model.name, number, about.adapter, about.interface, checked)
        _log.info("model %s version %d is ready (%s, %s; %s)", *told, extra={FIELDS: fields})
        if old is not None:
            self._drain(old)

    async def unload(self, name: str) -> None:
        """Raises RequestError for a model that isn't there."""
        model = self.models.get(name)
        if model is None:
            raise unknown(f"model {name!r}: isn't loaded")
        async with model.turn:
            for number in list(model.versions):
                self._drain(model.versions.pop(number))

    def find(self, name: str, version: str = "") -> tuple[int, Version]:
        """The version asked for, or the highest. Raises RequestError."""
        model = self.models.get(name)
        if model is None:
            raise unknown(f"model {name!r}: there is none of this name; there are: {', '.join(sorted(self.models))}")
        number = int(version) if version.isdecimal() and len(version) < 10 else 0
        if version and number not in model.versions:
            have = ", ".join(map(str, sorted(model.versions))) or "none"
            raise unknown(f"model {name!r}: version {version!r} isn't ready; ready are: {have}")
        if not model.versions:
            raise RequestError(503, f"model {name!r}: no version of it is ready", 1.0)
        number = number or max(model.versions)
        return number, model.versions[number]

    async def infer(self, asked: InferRequest) -> InferResponse:
        """Raises RequestError."""
        while True:
            number, version = self.find(asked.model, asked.version)
            arrays, samples = arrays_for(asked, version.about)
            about = {"model": asked.model, "version": number, "samples": samples, "request": asked.id or None}
            # Retired: swapped since `find`; the newer one takes it.
            with contextlib.suppress(Retired), span("cuvil.infer", **about):
                made = await version.batcher.submit(arrays, samples)
                return InferResponse(asked, str(number), version.about.outputs, made)

    def metadata(self, name: str, version: str = "") -> dict[str, Any]:
        """As the protocol has it, of the version asked for, or the highest. Raises RequestError."""
        about = self.find(name, version)[1].about
        return metadata(name, list(self.models[name].versions), about)

    def index(self) -> list[dict[str, str]]:
        """Name, version, state and reason of each, as the repository extension has them."""
        rows = []
        for name, model in sorted(self.models.items()):
            for number in sorted({*model.versions, *model.faults}):
                state = "READY" if number in model.versions else "UNAVAILABLE"
                row = {"name": name, "version": str(number), "state": state, "reason": model.faults.get(number, "")}
                rows.append(row)
        return rows

    def _drain(self, version: Version) -> None:
        task = asyncio.create_task(version.close())
        self._draining.add(task)
        task.add_done_callback(self._draining.discard)

    async def close(self) -> None:
        """Answer what waits, then end every worker."""
        for model in self.models.values():
            for number in list(model.versions):
                self._drain(model.versions.pop(number))
        if self._draining:
            await asyncio.gather(*self._draining)


def _copy(path: Path, place: Path, trust: Sequence[Key], min_release: int) -> str:
    """Copy the very bytes that were checked; their digest. Raises CuvilError."""
    data = container.read_bytes(path)
    if trust:
        check(data, trust, min_release, path.name)
    try:
        place.write_bytes(data)
    except OSError as e:
        raise CuvilError(f"{path.name}: no copy of it can be kept: {e.strerror or e}; free space in $TMPDIR") from e
    return hashlib.sha256(data).hexdigest()


def _digest(path: Path) -> str:
    return hashlib.sha256(container.read_bytes(path)).hexdigest()
