"""The protocol over HTTP: an ASGI application. JSON, and tensors as binary data behind it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from cuvil_hw.errors import pip_install
from cuvil_hw.serve import protocol
from cuvil_hw.serve.faults import RequestError, busy, unknown, wrong
from cuvil_hw.serve.protocol import ByteBudget, InferRequest, InferResponse, InferTensor
from cuvil_hw.serve.repository import Repository

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
T = TypeVar("T")
Reply = tuple[int, dict[str, str], bytes]

HEADER_LENGTH = "inference-header-content-length"
_CHUNK = 1 << 18
_BIG = 1 << 18  # bytes that are parsed in another thread, so that others are answered meanwhile
_MODEL = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?(/ready|/infer|)\Z")
_LOAD = re.compile(r"/v2/repository/models/([^/]+)/(load|unload)\Z")


class HttpFront:
    """`token`: what clients must send as `Authorization: Bearer`, but for health. `metrics`: the text of /metrics."""

    def __init__(
        self,
        repository: Repository,
        budget: ByteBudget,
        token: str | None = None,
        metrics: Callable[[], tuple[str, bytes]] | None = None,
    ) -> None:
        self._models, self._budget, self._token, self._metrics = repository, budget, token, metrics
        self.ready = False

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"{scope['type']} isn't served")
        held = 0

        def hold(size: int) -> None:
            nonlocal held
            if not self._budget.room(size):
                raise busy(f"requests hold {self._budget.held:,} bytes; come again", 1.0)
            self._budget.held += size
            held += size

        try:
            try:
                status, headers, body = await self._reply(scope, receive, hold)
            except RequestError as e:
                status, headers, body = _error(e)
            except Exception as e:
                # A fault of ours is one request's, and is said without what only we may know.
                status, headers, body = _error(RequestError(500, f"a fault of the server: {type(e).__name__}"))
            self._budget.held += len(body)
            held += len(body)
            await asyncio.wait_for(self._send(send, status, headers, body), self._models.limits.timeout_s)
        except (asyncio.TimeoutError, OSError):
            return  # a client that doesn't read, or has gone; uvicorn closes what wasn't answered whole
        finally:
            self._budget.held -= held

    async def _send(self, send: Send, status: int, headers: Mapping[str, str], body: bytes) -> None:
        named = [(k.encode(), v.encode()) for k, v in headers.items()]
        named.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": status, "headers": named})
        # In parts: each waits until the client has taken the ones before.
        for start in range(0, max(1, len(body)), _CHUNK):
            part = body[start : start + _CHUNK]
            await send({"type": "http.response.body", "body": part, "more_body": start + _CHUNK < len(body)})

    async def _reply(self, scope: dict[str, Any], receive: Receive, hold: Callable[[int], None]) -> Reply:
        method, path = scope["method"], scope["path"]
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
        if method == "GET" and path == "/v2/health/live":
            return _json({"live": True})
        if method == "GET" and path == "/v2/health/ready":
            return _json({"ready": self.ready}, 200 if self.ready else 503)
        self._check(headers)
        if method == "GET":
            return self._get(path)
        if method != "POST":
            raise RequestError(405, f"{method} isn't served; GET and POST are")
        if headers.get("content-encoding", "identity") != "identity":
            raise RequestError(415, "a compressed body isn't taken; send it as it is")
        body = await self._body(headers, receive, hold)
        if path == "/v2/repository/index":
            return _json(self._models.index())
        if found := _LOAD.match(path):
            await (self._models.load(found[1]) if found[2] == "load" else self._models.unload(found[1]))
            return _json({})
        found = _MODEL.match(path)
        if found is None or found[3] != "/infer":
            raise unknown(f"{path}: nothing is served here")
        if not self.ready:
            raise RequestError(503, "the server isn't ready, or goes down", 1.0)
        self._models.find(found[1], found[2] or "")  # before the body is looked at
        split = headers.get(HEADER_LENGTH)
        asked = await _aside(len(body), parse, found[1], found[2] or "", body, split)
        made = await self._models.infer(asked)
        return await _aside(sum(a.nbytes for a in made.arrays), render, made)

    def _get(self, path: str) -> Reply:
        if path == "/v2":
            return _json(protocol.server_metadata())
        if path == "/metrics":
            if self._metrics is None:
                raise unknown(f"/metrics needs prometheus-client; {pip_install('observe')}")
            kind, text = self._metrics()
            return 200, {"content-type": kind}, text
        found = _MODEL.match(path)
        if found is None or found[3] == "/infer":
            raise unknown(f"{path}: nothing is served here")
        if found[3] == "/ready":
            _, version = self._models.find(found[1], found[2] or "")
            return _json({"name": found[1], "ready": version.ready}, 200 if version.ready else 503)
        return _json(self._models.metadata(found[1], found[2] or ""))

    def _check(self, headers: Mapping[str, str]) -> None:
        given = headers.get("authorization", "").encode()
        protocol.check_token(self._token, given, "it as `Authorization: Bearer TOKEN`")

    async def _body(self, headers: Mapping[str, str], receive: Receive, hold: Callable[[int], None]) -> bytes:
        """Raises RequestError for one that is too large, comes too slowly, or for which there is no room."""
        most, stated = self._models.limits.max_request, headers.get("content-length", "")
        large = RequestError(413, f"a request has at most {most:,} bytes here")
        if stated.isdecimal() and (len(stated) > 18 or int(stated) > most):
            raise large
        if stated.isdecimal():
            hold(int(stated))
        data = bytearray()

        async def read() -> None:
            more = True
            while more:
                event = await receive()
                if event["type"] == "http.disconnect":
                    raise wrong("the client has gone")
                part, more = event.get("body", b""), event.get("more_body", False)
                if len(data) + len(part) > most:
                    raise large
                if not stated.isdecimal():
                    hold(len(part))
                data.extend(part)

        try:
            await asyncio.wait_for(read(), self._models.limits.timeout_s)
        except asyncio.TimeoutError:
            raise RequestError(408, f"the body didn't come within {self._models.limits.timeout_s:g} s") from None
        return bytes(data)


async def _aside(size: int, function: Callable[..., T], *args: Any) -> T:
    return await asyncio.to_thread(function, *args) if size > _BIG else function(*args)


def parse(model: str, version: str, body: bytes, split: str | None) -> InferRequest:
    """A request from its body. `split`: how many bytes of it are JSON, where binary data follow. Raises
    RequestError."""
    end = len(body)
    if split is not None:
        end = int(split) if split.isdecimal() and len(split) < 19 else -1
        if not 0 <= end <= len(body):
            raise wrong(f"{HEADER_LENGTH} is {split[:40]!r}, and the body has {len(body)} bytes")
    try:
        found = json.loads(body[:end])
        inputs, outputs, own = found["inputs"], found.get("outputs"), found.get("parameters", {})
        rest, given = memoryview(body)[end:], []
        for entry in inputs:
            parameters = entry.get("parameters", {})
            protocol.check_parameters(parameters)
            if "binary_data_size" in parameters:
                size = parameters["binary_data_size"]
                if type(size) is not int or not 0 <= size <= len(rest):
                    raise wrong(f"binary_data_size is {size!r}, and {len(rest)} bytes are left")
                given.append(protocol.from_bytes(entry["name"], entry["datatype"], entry["shape"], rest[:size]))
                rest = rest[size:]
            else:
                given.append(_numbers(entry))
        if len(rest):
            raise wrong(f"{len(rest)} bytes follow the last tensor")
        protocol.check_parameters(own)
        wanted = None
        binary = own.get("binary_data_output") is True
        if outputs:
            for o in outputs:
                protocol.check_parameters(o.get("parameters", {}))
            wanted = {o["name"]: o.get("parameters", {}).get("binary_data", binary) is True for o in outputs}
        return InferRequest(model, version, given, _text(found.get("id", "")), wanted, binary)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as e:
        raise wrong(f"the body isn't a request of the Open Inference Protocol v2: {type(e).__name__}: {e}") from None


def _numbers(entry: Mapping[str, Any]) -> InferTensor:
    return protocol.from_numbers(entry["name"], entry["datatype"], entry["shape"], entry["data"])


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise wrong("the id is no text")
    return value


def render(made: InferResponse) -> Reply:
    """Raises RequestError for an output that the model doesn't have."""
    outputs, tail = [], []
    for name, kind, array, binary in made.outputs():
        entry: dict[str, Any] = {"name": name, "datatype": kind, "shape": list(array.shape)}
        if binary or kind == "BF16":
            tail.append(protocol.to_bytes(array))
            entry["parameters"] = {"binary_data_size": len(tail[-1])}
        elif array.dtype.kind == "f" and not np.isfinite(array).all():
            raise wrong(f"output {name!r} holds infinite values or NaN, which JSON can't carry; ask for binary data")
        else:
            entry["data"] = array.reshape(-1).tolist()
        outputs.append(entry)
    asked = made.asked
    head: dict[str, Any] = {"model_name": asked.model, "model_version": made.version, "outputs": outputs}
    if asked.id:
        head["id"] = asked.id
    status, headers, text = _json(head)
    if not tail:
        return status, headers, text
    headers = {"content-type": "application/octet-stream", HEADER_LENGTH: str(len(text))}
    return status, headers, b"".join((text, *tail))


def _json(value: Any, status: int = 200) -> Reply:
    return status, {"content-type": "application/json"}, json.dumps(value).encode()


def _error(e: RequestError) -> Reply:
    status, headers, text = _json({"error": str(e)}, e.status)
    own = {"www-authenticate": "Bearer"} if status == 401 else {}
    return status, {**headers, **e.headers, **own}, text
