"""Artifacts whose manifest or index of weights was changed in one to three places and sealed again with right digests.

Case n is for target n mod 5; of those with `seed` 0, the first five are the artifacts as they were compiled.
"""

from __future__ import annotations

import copy
import io
import json
import random
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import cuvil
from cuvil_hw import dtypes, ops
from cuvil_hw.ir.program import Builder, Program
from cuvil_hw.runtime import artifact as container
from cuvil_hw.runtime import manifest as described
from cuvil_hw.runtime.executable import Executable
from cuvil_hw.types import TensorType

# By target: the interface that runs the program here.
TARGETS = {"cpu": "hw", "cuda:sm_75": "sim", "pynq-z2": "sim", "agilex": "sim-sycl", "mlu370-x4": "sim"}
# Where changes are made, and how often.
PLACES = {
    "info": 12, "device_inputs": 1, "device_outputs": 1, "inputs": 1, "outputs": 1, "prologue": 2, "epilogue": 2,
    "calling": 1, "profile": 1, "weights": 2, "abi": 1, "": 1,
}  # fmt: skip
EVIL: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 64, 255, 4096, 1 << 20, 1 << 31, -(1 << 31), 1 << 40, 1 << 62, 1 << 70,
    0.5, -1.0, 1e300, {"$float": "nan"}, {"$float": "inf"}, "", "x", "y", "f32", "i8", "../x", "\0", "a" * 300, "é",
    [], [0], [1, 2], [[]], {}, {"x": 1},
)  # fmt: skip


def network() -> Program:
    """Two integer layers between floats, whose ends are the processor's on a fabric."""
    draw = np.random.default_rng(0)
    b = Builder([("x", TensorType((1, 2, 6, 6), "f32"))], "records")
    x = b.op(ops.Quantize((0.05,), (3,), "i8"), b.input(0))
    weights = b.const(draw.integers(-90, 90, (4, 2, 3, 3)).astype(np.int8))
    bias = b.const(draw.integers(-99, 99, 4).astype(np.int32))
    y = b.op(ops.Conv((1, 1), (1, 1, 1, 1), (1, 1), x_zp=3, acc="i32"), x, weights, bias)
    y = b.op(ops.Relu(), b.op(ops.Rescale((1 << 30,), (38,), "i8"), y))
    y = b.op(ops.MaxPool((2, 2), (2, 2), (0, 0, 0, 0), (1, 1)), y)
    dense = b.const(draw.integers(-9, 9, (5, 36)).astype(np.int8))
    y = b.op(ops.Linear(0, (0,), "i32"), b.op(ops.Reshape((1, 36)), y), dense)
    y = b.op(ops.Dequantize((0.1,), (0,)), b.op(ops.Rescale((1 << 30,), (36,), "i8"), y))
    return b.finish([("y", y)])


@cache
def base() -> tuple[bytes, ...]:
    """An artifact for each target."""
    made = []
    for target in TARGETS:
        program = cuvil.compile(network(), target)
        assert isinstance(program, Executable)
        made.append(container.to_bytes(program.artifact))
    return tuple(made)


def case(seed: int, n: int) -> bytes:
    data = base()[n % len(TARGETS)]
    if seed == 0 and n < len(TARGETS):
        return data
    draw = random.Random(f"{seed}:{n}")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    manifest, weights = json.loads(files[container.MANIFEST]), json.loads(files[container.WEIGHT_INDEX])
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        (place,) = draw.choices(list(PLACES), list(PLACES.values()))
        if place == "weights":
            change(draw, weights)
        else:
            change(draw, manifest[place] if place else manifest)
    files[container.WEIGHT_INDEX] = json.dumps(weights).encode()
    return sealed(manifest, files)


def change(draw: random.Random, root: Any) -> None:
    """One change somewhere below `root`: another value, a key or an element less, more or twice, two values swapped."""
    places = list(_places(root))
    if not places:
        if isinstance(root, dict):
            root["more"] = draw.choice(EVIL)
        elif isinstance(root, list):
            root.append(draw.choice(EVIL))
        return
    holder, key = draw.choice(places)
    match draw.randrange(8):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            name = draw.choice(("more", "", key + "x"))
            holder[name] = copy.deepcopy(holder[key] if draw.random() < 0.5 else draw.choice(EVIL))
        case 1:
            holder.insert(key, copy.deepcopy(holder[key]))
        case 2:
            other, name = draw.choice(places)
            if not isinstance(holder[key], dict | list) and not isinstance(other[name], dict | list):
                holder[key], other[name] = other[name], holder[key]
        case 3 if isinstance(holder[key], int):
            holder[key] += draw.choice((-64, -8, -1, 1, 8, 64))
        case _:
            holder[key] = copy.deepcopy(draw.choice(EVIL))


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    keys = node.keys() if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
    for key in list(keys):
        yield node, key
        yield from _places(node[key])


def sealed(manifest: Any, files: dict[str, bytes]) -> bytes:
    """An artifact with this manifest, whatever it says, and right digests of everything."""
    if isinstance(manifest.get("members"), dict):
        for name, member in manifest["members"].items():
            if name in files and isinstance(member, dict):
                member |= {"size": len(files[name]), "sha256": container._sha256(files[name])}
    files = {**files, container.MANIFEST: json.dumps(manifest).encode()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            info = zipfile.ZipInfo(name, container._DATE)
            info.create_system, info.external_attr = container._UNIX, container._MODE
            archive.writestr(info, files[name])
        archive.comment = f"{described.FORMAT} sha256:{'0' * 64}".encode()
    body = buffer.getvalue()[:-64]
    return body + container._sha256(body).encode()


def check(data: bytes, folder: Path, interface: str = "") -> None:
    """Read it, look at its report and graph, run it with three samples."""
    path = folder / "p.cuvil"
    path.write_bytes(data)
    program = container.read(path)
    adapters = dict(zip(("cpu", "cuda", "zynq", "agilex", "mlu"), TARGETS.values(), strict=True))
    chosen = interface or adapters.get(program.manifest.adapter, "null")
    with cuvil.load(path, chosen) as loaded:
        assert loaded.report is not None
        rng = np.random.default_rng(0)
        inputs = []
        for port in loaded.inputs:
            one = tuple(int(str(n)) for n in port.shape)
            several = (3 * one[0], *one[1:]) if one else ()
            inputs.append(rng.normal(size=several).astype(dtypes.to_numpy(port.dtype)))
        loaded(*inputs)
