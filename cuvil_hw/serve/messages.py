"""The messages of the protocol's gRPC service, made from a table: no generated code, no protoc.

Field numbers are the protocol's (github.com/kserve/open-inference-protocol, and Triton's extension for model
repositories). The messages live in a pool of their own, so that a client's generated code may be loaded beside them.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SERVICE = "inference.GRPCInferenceService"
# message → fields; "*" repeated, "{}" a map from string, "|" one of a choice
TABLE = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "live:1:bool",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "ready:1:bool",
    "ModelReadyRequest": "name:1:string version:2:string",
    "ModelReadyResponse": "ready:1:bool",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "name:1:string version:2:string extensions:3:*string",
    "ModelMetadataRequest": "name:1:string version:2:string",
    "ModelMetadataResponse.TensorMetadata": "name:1:string datatype:2:string shape:3:*int64",
    "ModelMetadataResponse": "name:1:string versions:2:*string platform:3:string "
    "inputs:4:*ModelMetadataResponse.TensorMetadata outputs:5:*ModelMetadataResponse.TensorMetadata",
    "InferParameter": "bool_param:1:|bool int64_param:2:|int64 string_param:3:|string double_param:4:|double "
    "uint64_param:5:|uint64",
    "InferTensorContents": "bool_contents:1:*bool int_contents:2:*int32 int64_contents:3:*int64 "
    "uint_contents:4:*uint32 uint64_contents:5:*uint64 fp32_contents:6:*float fp64_contents:7:*double "
    "bytes_contents:8:*bytes",
    "ModelInferRequest.InferInputTensor": "name:1:string datatype:2:string shape:3:*int64 "
    "parameters:4:{}InferParameter contents:5:InferTensorContents",
    "ModelInferRequest.InferRequestedOutputTensor": "name:1:string parameters:2:{}InferParameter",
    "ModelInferRequest": "model_name:1:string model_version:2:string id:3:string parameters:4:{}InferParameter "
    "inputs:5:*ModelInferRequest.InferInputTensor outputs:6:*ModelInferRequest.InferRequestedOutputTensor "
    "raw_input_contents:7:*bytes",
    "ModelInferResponse.InferOutputTensor": "name:1:string datatype:2:string shape:3:*int64 "
    "parameters:4:{}InferParameter contents:5:InferTensorContents",
    "ModelInferResponse": "model_name:1:string model_version:2:string id:3:string parameters:4:{}InferParameter "
    "outputs:5:*ModelInferResponse.InferOutputTensor raw_output_contents:6:*bytes",
    "ModelRepositoryParameter": "bool_param:1:|bool int64_param:2:|int64 string_param:3:|string bytes_param:4:|bytes",
    "RepositoryIndexRequest": "repository_name:1:string ready:2:bool",
    "RepositoryIndexResponse.ModelIndex": "name:1:string version:2:string state:3:string reason:4:string",
    "RepositoryIndexResponse": "models:1:*RepositoryIndexResponse.ModelIndex",
    "RepositoryModelLoadRequest": "repository_name:1:string model_name:2:string "
    "parameters:3:{}ModelRepositoryParameter",
    "RepositoryModelLoadResponse": "",
    "RepositoryModelUnloadRequest": "repository_name:1:string model_name:2:string "
    "parameters:3:{}ModelRepositoryParameter",
    "RepositoryModelUnloadResponse": "",
}
_Field = descriptor_pb2.FieldDescriptorProto


def _file() -> descriptor_pb2.FileDescriptorProto:
    made = descriptor_pb2.FileDescriptorProto(name="cuvil_inference.proto", package="inference", syntax="proto3")
    places: dict[str, Any] = {}
    outer = sorted(TABLE, key=lambda name: name.count("."))  # before what lies in it
    for name in outer:
        parent, _, own = name.rpartition(".")
        places[name] = places[parent].nested_type.add(name=own) if parent else made.message_type.add(name=own)
    for name, fields in TABLE.items():
        for text in fields.split():
            _add(places[name], name, *text.split(":"))
    return made


def _add(message: Any, path: str, name: str, number: str, kind: str) -> None:
    field = message.field.add(name=name, number=int(number), label=_Field.LABEL_OPTIONAL)
    if kind.startswith("|"):
        if not message.oneof_decl:
            message.oneof_decl.add(name="parameter_choice")
        field.oneof_index = 0
    if kind.startswith("{}"):
        title = "".join(word.capitalize() for word in name.split("_")) + "Entry"
        entry = message.nested_type.add(name=title)
        entry.options.map_entry = True
        _add(entry, "", "key", "1", "string")
        _add(entry, "", "value", "2", kind[2:])
        kind = f"*{path}.{title}"
    if kind.startswith("*"):
        field.label = _Field.LABEL_REPEATED
    kind = kind.lstrip("*|")
    if kind[0].isupper():
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".inference.{kind}"
    else:
        field.type = getattr(_Field, f"TYPE_{kind.upper()}")


_pool = descriptor_pool.DescriptorPool()
_pool.Add(_file())


def message(name: str) -> Any:
    """The class of a message of the table."""
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"inference.{name}"))
