"""A worker process: one program on one device, for one version of a model.

    python -m cuvil_hw.serve.worker SOCKET PROGRAM.cuvil MAX_BATCH [INTERFACE]

It opens the program, checks it against the golden vectors in the artifact, measures a call of one sample and one of
MAX_BATCH, says "ready" with its ports, and then answers calls until the socket ends. What a generated library does to a
process stays in here: the server sees a socket that ends, and starts another one.
"""

from __future__ import annotations

import os
import socket
import sys
from time import perf_counter
from typing import Any, BinaryIO, cast

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw.contract.device import one_sample
from cuvil_hw.errors import CuvilError
from cuvil_hw.runtime import vectors
from cuvil_hw.runtime.dynamic import DynamicExecutable
from cuvil_hw.runtime.executable import Executable
from cuvil_hw.runtime.inputs import as_array
from cuvil_hw.runtime.load import load
from cuvil_hw.serve import wire


def main(argv: list[str]) -> int:
    """Exit code 0: the server closed the socket; 1: the program can't be served, and the server was told why."""
    channel = socket.socket(fileno=int(argv[0]))
    os.dup2(2, 1)  # what libraries print is no answer
    with channel, cast(BinaryIO, channel.makefile("rwb", buffering=1 << 16)) as stream:

        def say(message: dict[str, Any], arrays: Any = ()) -> None:
            for part in wire.pack(message, arrays):
                stream.write(part)
            stream.flush()

        try:
            program, about = _opened(argv[1], int(argv[2]), argv[3] if len(argv) > 3 else None)
        except CuvilError as e:
            say({"refused": str(e)})
            return 1
        say({"ready": about})
        with program:
            while (asked := wire.read(stream)) is not None:
                message, arrays = _answer(program, asked[1])
                say(message, arrays)
    return 0


def _answer(program: Executable, arrays: list[wire.Array]) -> tuple[dict[str, Any], list[wire.Array]]:
    try:
        run = program.run({p.name: a for p, a in zip(program.inputs, arrays, strict=True)})
        made = [as_array(a, p) for a, p in zip(run.outputs, program.outputs, strict=True)]
    except CuvilError as e:
        return {"failed": str(e), "kind": type(e).__name__}, []
    return {"device_s": run.device_seconds}, made


def _opened(path: str, max_batch: int, interface: str | None) -> tuple[Executable, dict[str, Any]]:
    """The program, checked and warm, and what the server has to know of it. Raises CuvilError."""
    program = load(path, interface)
    if isinstance(program, DynamicExecutable):
        raise CuvilError(f"{program.name}: has open shapes; serve the program of one size, program.at(…)")
    if program.state:
        raise CuvilError(f"{program.name}: keeps state from call to call, and requests of several clients would mix it")
    golden = vectors.check_kept(program)
    batched = one_sample(*program.inputs, *program.outputs)
    about = {
        "program": program.name,
        "adapter": program.artifact.manifest.adapter,
        "interface": program.interface,
        "golden": golden,
        "batched": batched,
        "inputs": [[p.name, p.dtype, list(p.shape)] for p in program.inputs],
        "outputs": [[p.name, p.dtype, list(p.shape)] for p in program.outputs],
        "times": [[n, _time(program, n)] for n in ((1, max_batch) if batched and max_batch > 1 else (1,))],
    }
    return program, about


def _time(program: Executable, samples: int) -> float:
    """Seconds of a call of so many samples of zeros: the least of three, after a first one that isn't counted."""
    inputs = {}
    for p in program.inputs:
        shape = p.shape if samples == 1 else (samples, *p.shape[1:])
        inputs[p.name] = np.zeros(shape, dtypes.to_numpy(p.dtype))
    times = []
    for _ in range(4):
        start = perf_counter()
        program.run(inputs)
        times.append(perf_counter() - start)
    return min(times[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
