"""Damaged ONNX files: valid models of many kinds with one to three changes each, in their structure or their bytes."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import onnx
from google.protobuf.message import Message
from onnx import AttributeProto, TensorProto

from tools.fuzz_onnx_models import MODELS

EVIL_INTS = (
    -(1 << 63), (1 << 63) - 1, 1 << 62, -(1 << 62), 1 << 40, 1 << 32, 1 << 31, -(1 << 31), 1 << 24, 100_000, 4097, 255,
    17, 9, 8, 5, 4, 3, 2, 1, 0, -1, -2, -3, -9,
)  # fmt: skip
EVIL_FLOATS = (float("nan"), float("inf"), float("-inf"), 0.0, -0.0, -1.0, 1e-45, 3.4e38, 0.5, 1e9, -1e9)
EVIL_TEXTS = (b"", b"x", b"\x00", b"\xff\xfe", b"../x", b"LINEAR", b"SAME_UPPER", b"bilinear", b"BRANCH_EQ", b"-1",
              b"a" * 5000)  # fmt: skip
EVIL_NAMES = ("", "x", "\x1b[31m", "a\nb", "é", "y", "w" * 300)
TARGETS = ("cpu", "pynq-z2")


@cache
def _base() -> tuple[bytes, ...]:
    return tuple(make().SerializeToString() for make in MODELS)


def case(seed: int, n: int) -> bytes:
    """Number 0 and its kind, up to the number of models, are the models as they are."""
    base = _base()
    if seed == 0 and n < len(base):
        return base[n]
    draw = random.Random(f"{seed}:{n}")
    data = base[n % len(base)]
    if draw.random() < 0.15:
        return _bytes_changed(draw, data)
    model = onnx.ModelProto.FromString(data)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        for _ in range(20):
            try:
                draw.choice(CHANGES)(draw, model)
                break
            except (
                LookupError,
                TypeError,
                ValueError,
                RuntimeError,
                onnx.checker.ValidationError,
                onnx.defs.SchemaError,
            ):
                continue  # there is nothing of that kind in this model, or it is damaged already
    return model.SerializeToString()


def check(data: bytes, folder: Path) -> None:
    """As a user would: `check` for two targets, which imports, quantizes and schedules without running a tool."""
    from cuvil_hw.entry.check import check as look

    path = folder / "m.onnx"
    path.write_bytes(data)
    look(str(path), TARGETS)


def _bytes_changed(draw: random.Random, data: bytes) -> bytes:
    if draw.random() < 0.2:
        return data[: draw.randrange(len(data))]
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8))):
        at = draw.randrange(len(changed))
        changed[at] = draw.choice((0, 255, 127, 128, changed[at] ^ (1 << draw.randrange(8)), draw.randrange(256)))
    return bytes(changed)


def _graphs(model: onnx.ModelProto) -> list[onnx.GraphProto]:
    found = [model.graph]
    for graph in found:
        for node in graph.node:
            found += [a.g for a in node.attribute if a.HasField("g")]
    return found


def _node(draw: random.Random, model: onnx.ModelProto) -> onnx.NodeProto:
    return draw.choice([n for g in _graphs(model) for n in g.node])


def _attribute(draw: random.Random, model: onnx.ModelProto) -> AttributeProto:
    return draw.choice([a for g in _graphs(model) for n in g.node for a in n.attribute])


def _tensor(draw: random.Random, model: onnx.ModelProto) -> TensorProto:
    tensors = [t for g in _graphs(model) for t in g.initializer]
    tensors += [a.t for g in _graphs(model) for n in g.node for a in n.attribute if a.HasField("t")]
    return draw.choice(tensors)


def change_attribute(draw: random.Random, model: onnx.ModelProto) -> None:
    a = _attribute(draw, model)
    match a.type:
        case AttributeProto.INT:
            a.i = draw.choice(EVIL_INTS)
        case AttributeProto.FLOAT:
            a.f = draw.choice(EVIL_FLOATS)
        case AttributeProto.STRING:
            a.s = draw.choice(EVIL_TEXTS)
        case AttributeProto.INTS:
            _change_list(draw, a.ints, EVIL_INTS)
        case AttributeProto.FLOATS:
            _change_list(draw, a.floats, EVIL_FLOATS)
        case AttributeProto.STRINGS:
            _change_list(draw, a.strings, EVIL_TEXTS)
        case _:
            raise TypeError


def _change_list(draw: random.Random, values: list, evil: tuple) -> None:
    match draw.randrange(5):
        case 0:
            del values[draw.randrange(len(values)) :]
        case 1:
            values.append(draw.choice(evil))
        case 2:
            values.extend(list(values))
        case _:
            values[draw.randrange(len(values))] = draw.choice(evil)


def drop_attribute(draw: random.Random, model: onnx.ModelProto) -> None:
    node = draw.choice([n for g in _graphs(model) for n in g.node if n.attribute])
    del node.attribute[draw.randrange(len(node.attribute))]


def retype_attribute(draw: random.Random, model: onnx.ModelProto) -> None:
    a = _attribute(draw, model)
    fresh = onnx.helper.make_attribute(a.name, draw.choice([1, 1.5, "text", [1, 2], [0.5], 0]))
    a.CopyFrom(fresh)


def new_attribute(draw: random.Random, model: onnx.ModelProto) -> None:
    node = _node(draw, model)
    schema = onnx.defs.get_schema(node.op_type, node.domain)
    name = draw.choice(sorted(schema.attributes))
    several = [draw.choice(EVIL_INTS) for _ in range(draw.randrange(1, 5))]
    made = {"INT": several[0], "FLOAT": draw.choice(EVIL_FLOATS), "STRING": draw.choice(EVIL_TEXTS), "INTS": several}
    value = made.get(schema.attributes[name].type.name, several[0])
    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, onnx.helper.make_attribute(name, value)])


def rewire(draw: random.Random, model: onnx.ModelProto) -> None:
    graph = draw.choice(_graphs(model))
    node = draw.choice(graph.node)
    names = [o for n in graph.node for o in n.output] + [t.name for t in graph.initializer]
    names += [i.name for i in graph.input]
    node.input[draw.randrange(len(node.input))] = draw.choice([*names, "", "nowhere"])


def operand_count(draw: random.Random, model: onnx.ModelProto) -> None:
    node = _node(draw, model)
    if draw.random() < 0.5:
        del node.input[draw.randrange(len(node.input)) :]
    else:
        node.input.append(draw.choice(list(node.input)))


def change_op(draw: random.Random, model: onnx.ModelProto) -> None:
    node, other = _node(draw, model), _node(draw, model)
    node.op_type = draw.choice([other.op_type, "Range", "OneHot", "EyeLike", "Expand", "Tile", "Resize", "Foo"])


def reshape_tensor(draw: random.Random, model: onnx.ModelProto) -> None:
    t = _tensor(draw, model)
    if draw.random() < 0.3:
        t.dims.append(draw.choice((*EVIL_INTS, 1, 1)))
    else:
        t.dims[draw.randrange(len(t.dims))] = draw.choice(EVIL_INTS)


def retype_tensor(draw: random.Random, model: onnx.ModelProto) -> None:
    _tensor(draw, model).data_type = draw.choice((*range(25), 99))


def change_values(draw: random.Random, model: onnx.ModelProto) -> None:
    """Elements of a constant: extents, trip counts, scales, indices."""
    t = _tensor(draw, model)
    array = onnx.numpy_helper.to_array(t).copy()
    flat = array.reshape(-1)
    at = draw.randrange(flat.size)
    if array.dtype.kind == "f":
        flat[at if draw.random() < 0.5 else slice(None)] = draw.choice(EVIL_FLOATS)
    elif array.dtype.kind in "iu":
        bounds = onnx.numpy_helper.np.iinfo(array.dtype)
        flat[at] = max(bounds.min, min(bounds.max, draw.choice(EVIL_INTS)))
    else:
        flat[at] = not flat[at]
    t.CopyFrom(onnx.numpy_helper.from_array(array, t.name))


def cut_data(draw: random.Random, model: onnx.ModelProto) -> None:
    t = _tensor(draw, model)
    t.raw_data = t.raw_data[: draw.randrange(len(t.raw_data))] + b"\0" * draw.choice((0, 0, 7))


def externalize(draw: random.Random, model: onnx.ModelProto) -> None:
    t = _tensor(draw, model)
    t.ClearField("raw_data")
    t.data_location = TensorProto.EXTERNAL
    location = draw.choice(("m.onnx", "gone.bin", "../m.onnx", "/dev/zero", "\0", "", "m.onnx/x", "."))
    number = ("-1", "x", "", "1e3", "0x10", str(1 << 70), "\0", "0", "4", "18446744073709551615", "١")
    for key, values in (("location", (location,)), ("offset", number), ("length", number), ("checksum", number)):
        if key == "location" or draw.random() < 0.6:
            t.external_data.add(key=key, value=draw.choice(values))


def change_input(draw: random.Random, model: onnx.ModelProto) -> None:
    kind = draw.choice(model.graph.input).type.tensor_type
    if draw.random() < 0.2:
        kind.elem_type = draw.choice(range(25))
    elif draw.random() < 0.3:
        kind.shape.dim.add().dim_value = draw.choice(EVIL_INTS)
    else:
        kind.shape.dim[draw.randrange(len(kind.shape.dim))].dim_value = draw.choice(EVIL_INTS)


def change_output(draw: random.Random, model: onnx.ModelProto) -> None:
    graph = draw.choice(_graphs(model))
    graph.output[draw.randrange(len(graph.output))].name = draw.choice([n.output[0] for n in graph.node] + [""])


def change_versions(draw: random.Random, model: onnx.ModelProto) -> None:
    if draw.random() < 0.3:
        model.ir_version = draw.choice(EVIL_INTS)
    else:
        draw.choice(model.opset_import).version = draw.choice((*EVIL_INTS, *range(1, 27)))


def rename(draw: random.Random, model: onnx.ModelProto) -> None:
    """A name wherever it is used, so that the model stays whole."""
    names = [n.name for n in model.graph.node] + [i.name for i in model.graph.input]
    names += [o for n in model.graph.node for o in n.output]
    old, new = draw.choice(names), draw.choice(EVIL_NAMES)

    def walk(message: Message) -> None:
        for field, value in message.ListFields():
            if field.type == field.TYPE_MESSAGE:
                for inner in value if not isinstance(value, Message) else [value]:
                    walk(inner)
            elif field.type == field.TYPE_STRING and isinstance(value, str):
                if value == old:
                    setattr(message, field.name, new)
            elif field.type == field.TYPE_STRING:
                value[:] = [new if v == old else v for v in value]

    walk(model)


def move_nodes(draw: random.Random, model: onnx.ModelProto) -> None:
    nodes = draw.choice(_graphs(model)).node
    at = draw.randrange(len(nodes))
    node = onnx.NodeProto()
    node.CopyFrom(nodes[at])
    if draw.random() < 0.5:
        del nodes[at]
    if draw.random() < 0.5:
        nodes.append(node)


Change = Callable[[random.Random, onnx.ModelProto], None]
CHANGES: tuple[Change, ...] = (
    *(change_attribute,) * 5, *(change_values,) * 4, change_input, change_input, drop_attribute, retype_attribute,
    new_attribute, new_attribute, rewire, operand_count, change_op, reshape_tensor, retype_tensor, cut_data,
    externalize, change_output, change_versions, rename, move_nodes,
)  # fmt: skip
