"""`cuvil serve`: models over the Open Inference Protocol v2."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from cuvil_hw.cli.gate import parse_time
from cuvil_hw.cli.output import console
from cuvil_hw.cli.sign import MinRelease, SignedBy
from cuvil_hw.errors import CuvilError, ToolNotFound, pip_install
from cuvil_hw.telemetry.logs import shown

TOKEN = "CUVIL_TOKEN"


def serve(
    models: Annotated[
        Path, typer.Argument(help="A folder of NAME.cuvil and NAME/VERSION/model.cuvil.", show_default=False)
    ],
    host: Annotated[str, typer.Option(help="Address to listen on; others than loopback need a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Of HTTP; 0: a free one.", min=0, max=65535)] = 8000,
    grpc_port: Annotated[int, typer.Option(help="Of gRPC; 0: a free one, -1: no gRPC.", min=-1, max=65535)] = 8001,
    interface: Annotated[
        str | None, typer.Option(help="Device to run on: hw, sim or another.", show_default="each artifact's")
    ] = None,
    max_batch: Annotated[int, typer.Option(help="Most samples of a merged call; 1: nothing is merged.", min=1)] = 32,
    latency: Annotated[
        str, typer.Option(help="Bound from a request to its answer; what would take longer gets 429.")
    ] = "1s",
    timeout: Annotated[str, typer.Option(help="When a request, a slow client or a device is given up.")] = "30s",
    max_request: Annotated[int, typer.Option(help="Most MiB of a request.", min=1)] = 64,
    max_memory: Annotated[int, typer.Option(help="Most MiB of all requests and answers together.", min=1)] = 512,
    poll: Annotated[
        str | None, typer.Option(help="Look for new files so often, as 10s.", show_default="on SIGHUP and when asked")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="A file with the token that clients must send.", show_default=f"${TOKEN}")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="The server's certificate, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key, PEM.")] = None,
    tls_clients: Annotated[
        Path | None, typer.Option(help="The authority whose certificates clients must have, PEM.")
    ] = None,
    signed_by: SignedBy = None,
    min_release: MinRelease = 0,
    json: Annotated[bool, typer.Option("--json", help="Print the ports as one JSON object.")] = False,
) -> None:
    """Serve compiled programs over HTTP and gRPC: the Open Inference Protocol v2, which clients of KServe and Triton
    speak. SIGHUP loads new files; SIGTERM answers what is there and ends.

    Example: cuvil serve models/ --port 8000
    """
    try:
        from cuvil_hw.serve import server
        from cuvil_hw.serve.repository import Limits, Repository
    except ModuleNotFoundError as e:
        package = (e.name or "").partition(".")[0]
        if package not in ("uvicorn", "h11", "grpc", "google"):
            raise
        raise ToolNotFound(f"Python package {package}", "serve models", pip_install("serve")) from e

    if (tls_cert is None) != (tls_key is None) or (tls_clients is not None and tls_cert is None):
        raise typer.BadParameter("--tls-cert and --tls-key go together, and --tls-clients with them")
    limits = Limits(
        max_batch=max_batch,
        bound_s=parse_time(latency, "--latency"),
        timeout_s=parse_time(timeout, "--timeout"),
        max_request=max_request << 20,
        max_memory=max_memory << 20,
    )
    tls = server.Tls(tls_cert, tls_key, tls_clients) if tls_cert is not None and tls_key is not None else None
    access = server.Listening(host, port, grpc_port if grpc_port >= 0 else None, _token(token_file), tls)
    repository = Repository(models, limits, interface, signed_by or (), min_release)

    def said(http: int, rpc: int | None) -> None:
        if json:
            # On one line, for who starts the server and reads until it is up.
            print(dumps({"http": http, "grpc": rpc, "models": repository.index()}))
        else:
            scheme = "http" if tls is None else "https"
            for row in repository.index():
                why = f": {row['reason']}" if row["reason"] else ""
                console().print(f"{row['name']} {row['version']}: {row['state']}{why}", markup=False, soft_wrap=True)
            more = f", gRPC on port {rpc}" if rpc is not None else ""
            console().print(f"serving on {scheme}://{host}:{http}/v2{more}", markup=False, soft_wrap=True)
        sys.stdout.flush()

    metrics: server.Metrics | None = None
    with contextlib.suppress(ModuleNotFoundError):  # /metrics then says what to install
        from cuvil_hw.serve.metrics import exposition

        metrics = exposition
    poll_s = parse_time(poll, "--poll") if poll is not None else None
    # With -v there is a handler already.
    with contextlib.nullcontext() if logging.getLogger("cuvil").handlers else shown(logging.INFO):
        asyncio.run(server.run(repository, access, said, poll_s, metrics))


def _token(file: Path | None) -> str | None:
    """Raises CuvilError for a file that can't be read, or a token that is none."""
    try:
        text = file.read_text(encoding="ascii") if file is not None else os.environ.get(TOKEN)
    except (OSError, UnicodeDecodeError) as e:
        raise CuvilError(f"{file}: the token can't be read: {e}") from e
    if text is None:
        return None
    token = text.strip()
    if len(token) < 16 or not token.isprintable() or " " in token:
        raise CuvilError("the token has less than 16 characters, or a space; take one as `openssl rand -hex 32` gives")
    return token
