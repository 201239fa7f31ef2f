"""The protocol over gRPC: a service of grpc.aio."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from cuvil_hw.serve import protocol
from cuvil_hw.serve.faults import RequestError, busy, wrong
from cuvil_hw.serve.kinds import KINDS
from cuvil_hw.serve.messages import SERVICE, message
from cuvil_hw.serve.protocol import ByteBudget, InferRequest, InferTensor
from cuvil_hw.serve.repository import Repository

# Field of InferTensorContents by data type; others go as raw bytes only.
_CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents",
}  # fmt: skip
_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}


class GrpcFront:
    """`token`: what clients must send as metadata `authorization: Bearer …`, but for health."""

    def __init__(self, repository: Repository, budget: ByteBudget, token: str | None = None) -> None:
        self._models, self._budget, self._token = repository, budget, token
        self.ready = False

    def handler(self) -> grpc.GenericRpcHandler:
        methods = {
            "ServerLive": self._live,
            "ServerReady": self._ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server,
            "ModelMetadata": self._model,
            "ModelInfer": self._infer,
            "RepositoryIndex": self._index,
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
        }
        handlers = {name: self._served(name, method) for name, method in methods.items()}
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def _served(self, name: str, method: Callable[[Any], Awaitable[Any]]) -> grpc.RpcMethodHandler:
        request, response = message(f"{name}Request"), message(f"{name}Response")
        open_to_all = name in ("ServerLive", "ServerReady")

        async def call(data: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            size = len(data)
            self._budget.held += size  # it is here already; grpc has bounded it and how many there are
            try:
                if not open_to_all:
                    self._check(context)
                if self._budget.held > self._budget.most:
                    self._budget.refused += 1
                    raise busy(f"requests hold {self._budget.held:,} bytes; come again", 1.0)
                try:
                    asked = request.FromString(data)
                except DecodeError as e:
                    raise wrong(f"the message is no {name}Request: {e}") from None
                return await method(asked)
            except RequestError as e:
                if e.headers:
                    context.set_trailing_metadata(tuple(e.headers.items()))
                await context.abort(_CODES.get(e.status, grpc.StatusCode.INTERNAL), str(e))
            except grpc.aio.AbortError:
                raise
            except Exception as e:
                await context.abort(grpc.StatusCode.INTERNAL, f"a fault of the server: {type(e).__name__}")
            finally:
                self._budget.held -= size

        return grpc.unary_unary_rpc_method_handler(call, response_serializer=response.SerializeToString)

    def _check(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        given = dict(context.invocation_metadata() or ()).get("authorization", "")
        text = given if isinstance(given, bytes) else given.encode()
        protocol.check_token(self._token, text, "metadata authorization: Bearer TOKEN")

    async def _live(self, request: Any) -> Any:
        return message("ServerLiveResponse")(live=True)

    async def _ready(self, request: Any) -> Any:
        return message("ServerReadyResponse")(ready=self.ready)

    async def _model_ready(self, request: Any) -> Any:
        ready = False
        with contextlib.suppress(RequestError):  # the answer of this method to a model that isn't there
            ready = self._models.find(request.name, request.version)[1].ready
        return message("ModelReadyResponse")(ready=ready)

    async def _server(self, request: Any) -> Any:
        return message("ServerMetadataResponse")(**protocol.server_metadata())

    async def _model(self, request: Any) -> Any:
        return message("ModelMetadataResponse")(**self._models.metadata(request.name, request.version))

    async def _index(self, request: Any) -> Any:
        rows = [r for r in self._models.index() if r["state"] == "READY" or not request.ready]
        return message("RepositoryIndexResponse")(models=rows)

    async def _load(self, request: Any) -> Any:
        await self._models.load(request.model_name)
        return message("RepositoryModelLoadResponse")()

    async def _unload(self, request: Any) -> Any:
        await self._models.unload(request.model_name)
        return message("RepositoryModelUnloadResponse")()

    async def _infer(self, request: Any) -> Any:
        if not self.ready:
            raise RequestError(503, "the server isn't ready, or goes down", 1.0)
        made = await self._models.infer(asked_of(request))
        response = message("ModelInferResponse")(
            model_name=request.model_name, model_version=made.version, id=request.id
        )
        for name, kind, array, _ in made.outputs():
            response.outputs.add(name=name, datatype=kind, shape=array.shape)
            response.raw_output_contents.append(protocol.to_bytes(array))
        return response


def asked_of(request: Any) -> InferRequest:
    """Raises RequestError."""
    raw, given = list(request.raw_input_contents), []
    if raw and len(raw) != len(request.inputs):
        raise wrong(f"{len(raw)} raw_input_contents for {len(request.inputs)} inputs; give one for each, or none")
    for place in (request, *request.inputs, *request.outputs):
        protocol.check_parameters(place.parameters)
    for n, tensor in enumerate(request.inputs):
        kind, shape = tensor.datatype, list(tensor.shape)
        if raw:
            given.append(protocol.from_bytes(tensor.name, kind, shape, raw[n]))
        else:
            given.append(_contents(tensor.name, kind, shape, tensor.contents))
    wanted = {o.name: True for o in request.outputs} or None
    return InferRequest(request.model_name, request.model_version, given, request.id, wanted, True)


def _contents(name: str, kind: str, shape: list[int], contents: Any) -> InferTensor:
    field = _CONTENTS.get(kind)
    used = [f.name for f, _ in contents.ListFields()]
    if kind in KINDS and (field is None or any(f != field for f in used)):
        raise wrong(
            f"input {name!r}: {kind} goes in {field or 'raw_input_contents'}, not in {', '.join(used) or 'none'}"
        )
    return protocol.from_numbers(name, kind, shape, list(getattr(contents, field)) if field else [])
