"""`cuvil serve` under load: throughput and latency with merging and without, interleaved, over gRPC.

    python benchmarks/serve.py [--seconds 3] [--rounds 5] [--clients 8]

Both servers run the same program (an MLP, 256-512-512-10, float) and are loaded in turn by the same clients, each of
which sends a sample, waits for its answer and sends the next. Clients and servers share the machine's cores, so that
figures are of that machine and of these clients; the ratio is what to read.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as rpc
from onnx import TensorProto, helper, numpy_helper

from cuvil_hw import api

ROOT = Path(__file__).resolve().parents[1]
SIZES = (256, 512, 512, 10)


def model() -> Any:
    draw, nodes, weights, name = np.random.default_rng(0), [], [], "x"
    for n, (a, b) in enumerate(pairwise(SIZES)):
        weights.append(numpy_helper.from_array((draw.normal(size=(a, b)) / a**0.5).astype(np.float32), f"w{n}"))
        nodes += [
            helper.make_node("MatMul", [name, f"w{n}"], [f"h{n}"]),
            helper.make_node("Relu", [f"h{n}"], [f"y{n}"]),
        ]
        name = f"y{n}"
    ends = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, s]) for n, s in (("x", SIZES[0]), (name, SIZES[-1]))
    ]
    graph = helper.make_graph(nodes, "mlp", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def start(models: Path, max_batch: int) -> tuple[subprocess.Popen[str], str]:
    argv = ["serve", str(models), "--port", "0", "--grpc-port", "0", "--json", "--max-batch", str(max_batch)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-m", "cuvil_hw.cli.main", *argv], env=env, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, f"127.0.0.1:{json.loads(process.stdout.readline())['grpc']}"


def load(url: str, clients: int, seconds: float) -> list[float]:
    """Seconds of every request that was answered within `seconds`."""
    times: list[float] = []
    end = time.monotonic() + seconds

    def client(seed: int) -> None:
        x = rpc.InferInput("x", [1, SIZES[0]], "FP32")
        x.set_data_from_numpy(np.random.default_rng(seed).normal(size=(1, SIZES[0])).astype(np.float32))
        with rpc.InferenceServerClient(url) as connection:
            while (began := time.monotonic()) < end:
                connection.infer("mlp", [x])
                times.append(time.monotonic() - began)

    threads = [threading.Thread(target=client, args=(n,)) for n in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=8)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        api.compile(model(), "cpu", golden=2).save(Path(folder) / "mlp.cuvil")
        servers = {batch: start(Path(folder), batch) for batch in (1, 32)}
        try:
            found: dict[int, list[list[float]]] = {batch: [] for batch in servers}
            for _, url in servers.values():
                load(url, options.clients, 1.0)
            for _ in range(options.rounds):
                for batch, (_, url) in servers.items():
                    found[batch].append(load(url, options.clients, options.seconds))
        finally:
            for process, _ in servers.values():
                process.send_signal(signal.SIGTERM)
            for process, _ in servers.values():
                process.wait(30)
    rates = {batch: [len(t) / options.seconds for t in rounds] for batch, rounds in found.items()}
    for batch, rounds in found.items():
        every = np.concatenate(rounds)
        p50, p99 = np.quantile(every, (0.5, 0.99)) * 1e3
        print(f"max-batch {batch}: {np.median(rates[batch]):.0f} requests/s, p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    ratios = [b / a for a, b in zip(rates[1], rates[32], strict=True)]
    print(
        f"merging gives {np.median(ratios):.2f} times the throughput ({min(ratios):.2f} to {max(ratios):.2f} by round)"
    )


if __name__ == "__main__":
    main()
