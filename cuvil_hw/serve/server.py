"""The server: both transports in one event loop, signals, and the order of coming up and going down."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import signal
import ssl
from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from cuvil_hw.errors import CuvilError
from cuvil_hw.serve.grpc_front import GrpcFront
from cuvil_hw.serve.http_front import HttpFront
from cuvil_hw.serve.protocol import ByteBudget
from cuvil_hw.serve.repository import Repository

Metrics = Callable[[Repository, ByteBudget], Callable[[], tuple[str, bytes]]]
_log = logging.getLogger("cuvil.serve")
_HEADERS_S = 10.0  # for a request's line and headers
_CONNECTIONS = 1000
_CALLS = 256  # of gRPC at once


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files. `clients`: the authority whose certificates clients must have (mutual TLS)."""

    certificate: Path
    key: Path
    clients: Path | None = None


@dataclass(frozen=True, slots=True)
class Listening:
    """`grpc_port` None: no gRPC; ports of 0: free ones."""

    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int | None = 8001
    token: str | None = None
    tls: Tls | None = None

    def check(self) -> None:
        """Raises CuvilError for an address that others reach while anybody may call."""
        mutual = self.tls is not None and self.tls.clients is not None
        if not is_loopback(self.host) and self.token is None and not mutual:
            raise CuvilError(
                f"--host {self.host}: other machines would reach the server, and anybody could call it; give a token "
                "(--token-file, or CUVIL_TOKEN), or --tls-clients"
            )


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Server(uvicorn.Server):
    """Signals are handled below, for both transports together."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class _Patient(H11Protocol):
    """Closes a connection whose request's head isn't there in time; uvicorn itself waits for ever."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._late = self.loop.call_later(_HEADERS_S, self._close_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._late is not None:
            self._late.cancel()
        super().connection_lost(exc)

    def _close_idle(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
        else:
            self._late = self.loop.call_later(_HEADERS_S, self._close_idle)


@contextlib.asynccontextmanager
async def serving(
    repository: Repository, access: Listening, metrics: Metrics | None = None
) -> AsyncIterator[tuple[int, int | None]]:
    """The ports of HTTP and gRPC while models are loaded and served. At the end no new request is taken, those that are
    here are answered, and workers end. Raises CuvilError where it can't start."""
    access.check()
    budget = ByteBudget(repository.limits.max_memory)
    shown = metrics(repository, budget) if metrics is not None else None
    http = HttpFront(repository, budget, access.token, shown)
    rpc = GrpcFront(repository, budget, access.token)
    try:
        await repository.load_all()
        server = _Server(_config(http, access))
        sock = server.config.bind_socket()
    except SystemExit as e:  # uvicorn's, for a port that is taken
        await repository.close()
        raise CuvilError(f"{access.host}:{access.port}: can't be listened on; choose another --port") from e
    except BaseException:
        await repository.close()
        raise
    task = asyncio.create_task(server.serve(sockets=[sock]))
    service = None
    try:
        grpc_port = None
        if access.grpc_port is not None:
            service, grpc_port = await _grpc(rpc, access, repository.limits.max_request)
        while not server.started and not task.done():
            await asyncio.sleep(0.01)
        http.ready = rpc.ready = True
        yield sock.getsockname()[1], grpc_port
    finally:
        http.ready = rpc.ready = False
        server.should_exit = True
        if service is not None:
            await service.stop(repository.limits.drain_s)
        await task
        await repository.close()


def _config(app: HttpFront, access: Listening) -> uvicorn.Config:
    tls: dict[str, Any] = {}
    if access.tls is not None:
        tls = {"ssl_certfile": str(access.tls.certificate), "ssl_keyfile": str(access.tls.key)}
        if access.tls.clients is not None:
            tls |= {"ssl_ca_certs": str(access.tls.clients), "ssl_cert_reqs": ssl.CERT_REQUIRED}
    return uvicorn.Config(
        app, host=access.host, port=access.port, http=_Patient, ws="none", lifespan="off", loop="asyncio",
        interface="asgi3", log_config=None, access_log=False, proxy_headers=False, server_header=False,
        limit_concurrency=_CONNECTIONS, timeout_graceful_shutdown=30, **tls,
    )  # fmt: skip


async def _grpc(front: GrpcFront, access: Listening, most: int) -> tuple[grpc.aio.Server, int]:
    options = [
        ("grpc.max_receive_message_length", most),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 0),
    ]
    service = grpc.aio.server(options=options, maximum_concurrent_rpcs=_CALLS)
    service.add_generic_rpc_handlers((front.handler(),))
    host = f"[{access.host}]" if ":" in access.host else access.host
    place = f"{host}:{access.grpc_port}"
    try:
        if access.tls is None:
            port = service.add_insecure_port(place)
        else:
            read = [(access.tls.key.read_bytes(), access.tls.certificate.read_bytes())]
            authority = access.tls.clients.read_bytes() if access.tls.clients is not None else None
            port = service.add_secure_port(
                place, grpc.ssl_server_credentials(read, authority, require_client_auth=authority is not None)
            )
    except (RuntimeError, OSError) as e:
        raise CuvilError(f"{place}: can't be listened on for gRPC ({e}); choose another --grpc-port") from e
    await service.start()
    return service, port


async def run(
    repository: Repository, access: Listening, said: Callable[[int, int | None], None], poll_s: float | None = None,
    metrics: Metrics | None = None,
) -> None:  # fmt: skip
    """Serve until SIGINT or SIGTERM. SIGHUP, and every `poll_s` seconds: look for new files. `said` gets the ports.
    Raises CuvilError."""
    loop, end = asyncio.get_running_loop(), asyncio.Event()
    tasks: set[asyncio.Task[None]] = set()

    def look() -> None:
        task = asyncio.create_task(reload(repository))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end.set)
    loop.add_signal_handler(signal.SIGHUP, look)
    async with serving(repository, access, metrics) as (port, grpc_port):
        said(port, grpc_port)
        while not end.is_set():
            try:
                await asyncio.wait_for(end.wait(), poll_s)
            except asyncio.TimeoutError:
                await reload(repository)
        _log.info("going down: requests that are here are answered")


async def reload(repository: Repository) -> None:
    """Bring every model up to what is in the folder. What is refused is logged and in the index."""
    try:
        names = {*repository.files(), *repository.models}
        await asyncio.gather(*(repository.load(name, refuse=False) for name in names))
    except CuvilError as e:
        _log.error("%s", e)
