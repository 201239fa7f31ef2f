"""One runtime on this machine's processor, in a process of its own: benchmarks/cpu.py asks for one time after another.

    python benchmarks/peers/cpu_worker.py RUNTIME THREADS

Reads a JSON object a line, answers a line each: {"load": name, "model": file, "inputs": file.npz} gives {"compile_s"},
{"time": name, "seconds": s} runs it for about s seconds and gives {"us"}, the fastest tenth of its calls' mean time of
a call, in microseconds. A failure is {"error"}. Needs NumPy and the runtime alone: it also runs in another environment.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Call = Callable[[], Any]
Inputs = dict[str, Any]


def cuvil(model: str, inputs: Inputs, threads: int) -> Call:
    from cuvil import compile as compile_model

    program = compile_model(model, target="cpu")
    arrays = list(inputs.values())
    return lambda: program(*arrays)


def onnxruntime(model: str, inputs: Inputs, threads: int) -> Call:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, inputs)


def openvino(model: str, inputs: Inputs, threads: int) -> Call:
    import openvino as ov

    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    compiled = ov.Core().compile_model(model, "CPU", settings)
    request = compiled.create_infer_request()
    arrays = list(inputs.values())
    return lambda: request.infer(arrays, share_inputs=True, share_outputs=True)


def _torch(model: str, inputs: Inputs, threads: int) -> tuple[Any, list[Any]]:
    """Raises LookupError for a model that is a file alone."""
    import torch
    from cpu_models import MODULES

    torch.set_num_threads(threads)
    return MODULES[Path(model).stem](), [torch.from_numpy(x) for x in inputs.values()]


def torch_eager(model: str, inputs: Inputs, threads: int) -> Call:
    import torch

    module, tensors = _torch(model, inputs, threads)

    def call() -> Any:
        with torch.inference_mode():
            return module(*tensors)

    return call


def torch_compile(model: str, inputs: Inputs, threads: int) -> Call:
    import torch

    module, tensors = _torch(model, inputs, threads)
    compiled = torch.compile(module)

    def call() -> Any:
        with torch.inference_mode():
            return compiled(*tensors)

    return call


RUNTIMES = {f.__name__: f for f in (cuvil, onnxruntime, openvino, torch_eager, torch_compile)}


def timed(call: Call, seconds: float) -> float:
    """Microseconds of a call: the fastest tenth of batches of about a millisecond or one call."""
    start = time.perf_counter()
    call()
    many = max(1, int(1e-3 / max(time.perf_counter() - start, 1e-7)))
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter()
        for _ in range(many):
            call()
        times.append((time.perf_counter() - start) / many)
    fastest = sorted(times)[: max(1, len(times) // 10)]
    return 1e6 * sum(fastest) / len(fastest)


def main() -> None:
    runtime, threads = sys.argv[1], int(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what runtimes print
    calls: dict[str, Call] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if "load" in asked:
                start = time.perf_counter()
                call = RUNTIMES[runtime](asked["model"], dict(np.load(asked["inputs"])), threads)
                call()
                answer = {"compile_s": time.perf_counter() - start}
                calls[asked["load"]] = call
            else:
                answer = {"us": timed(calls[asked["time"]], asked["seconds"])}
        except Exception as e:  # a peer's failure is a missing figure, not the end of the run
            answer = {"error": f"{type(e).__name__}: {e}".splitlines()[0]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
