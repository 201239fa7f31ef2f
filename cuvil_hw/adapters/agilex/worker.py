"""The process that talks OpenCL: builds one program and runs its kernels, for the process that started it.

It is a process of its own because the OpenCL loader reads where drivers are when it is loaded, and because a kernel
that waits for a channel for ever can only be ended with its process. It imports NumPy and pyopencl and nothing of this
package, so that it also runs in another Python environment. A message is a length (4 bytes), JSON, then the bytes whose
sizes stand under "blobs".
"""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

Message = dict[str, Any]


def pack(message: Message, blobs: Sequence[bytes] = ()) -> bytes:
    head = json.dumps({**message, "blobs": [len(b) for b in blobs]}).encode()
    return b"".join([struct.pack(">I", len(head)), head, *blobs])


def unpack(read: Callable[[int], bytes]) -> tuple[Message, list[bytes]]:
    """`read(n)` gives exactly n bytes, or raises EOFError."""
    (length,) = struct.unpack(">I", read(4))
    message: Message = json.loads(read(length))
    return message, [read(n) for n in message["blobs"]]


def read_exactly(fd: int, count: int) -> bytes:
    parts = []
    while count:
        part = os.read(fd, min(count, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


class Session:
    """One context, one built program, one queue for all kernels, or one for each when they run at once."""

    def __init__(self, message: Message, source: str) -> None:
        import pyopencl as cl

        self.cl = cl
        self.kernels = message["kernels"]
        self.streams = message["streams"]
        self.buffers = bool(message["buffers"])
        devices = [d for p in cl.get_platforms() if message["platform"] in p.name for d in p.get_devices()]
        if not devices:
            have = ", ".join(p.name for p in cl.get_platforms())
            raise LookupError(f"no OpenCL device of platform {message['platform']!r}; there are: {have or 'none'}")
        self.context = cl.Context(devices[:1])
        program = cl.Program(self.context, source).build(options=["-cl-std=CL1.2", *message["options"]])
        self.handles = [cl.Kernel(program, k["name"]) for k in self.kernels]
        shared = cl.CommandQueue(self.context) if message["ordered"] else None
        self.queues = [shared or cl.CommandQueue(self.context) for _ in self.kernels]
        self.name = devices[0].name

    def run(self, message: Message, inputs: Sequence[bytes]) -> tuple[Message, list[bytes]]:
        cl, np = self.cl, __import__("numpy")
        flags = cl.mem_flags
        samples = message["samples"]
        ports = [cl.Buffer(self.context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=bytearray(b)) for b in inputs]
        ports += [cl.Buffer(self.context, flags.WRITE_ONLY, n) for n in message["outputs"]]
        between = {}
        if self.buffers:
            for name, s in self.streams.items():
                between[name] = cl.Buffer(self.context, flags.READ_WRITE, s["words"] * s["bytes"] * samples)
        start = time.perf_counter()
        events = []
        for kernel, handle, queue in zip(self.kernels, self.handles, self.queues, strict=True):
            args = [np.int32(samples)]
            if kernel["port"] >= 0:
                args.append(ports[kernel["port"]])
            if self.buffers:
                args += [between[s] for s in kernel["streams"]]
            handle.set_args(*args)
            events.append(cl.enqueue_nd_range_kernel(queue, handle, (1,), (1,)))
        for queue in self.queues:
            queue.flush()
        waiting = self._wait(events, message["wait_s"])
        if waiting:
            return {"stalled": waiting}, []
        seconds = time.perf_counter() - start
        blobs = []
        for n, size in enumerate(message["outputs"]):
            out = bytearray(size)
            cl.enqueue_copy(self.queues[0], out, ports[len(inputs) + n])
            blobs.append(bytes(out))
        return {"seconds": seconds}, blobs

    def _wait(self, events: Sequence[Any], limit_s: float) -> list[int]:
        """Numbers of the kernels that aren't done when for `limit_s` none has finished."""
        status = self.cl.command_execution_status
        done, since, pause = -1, time.monotonic(), 0.0002
        while True:
            states = [e.command_execution_status for e in events]
            failed = [self.kernels[n]["name"] for n, s in enumerate(states) if s < 0]
            if failed:
                raise RuntimeError(f"kernels failed: {', '.join(failed)}")
            finished = sum(s == status.COMPLETE for s in states)
            if finished == len(events):
                return []
            if finished != done:
                done, since = finished, time.monotonic()
            elif time.monotonic() - since > limit_s:
                return [n for n, s in enumerate(states) if s != status.COMPLETE]
            time.sleep(pause)
            pause = min(pause * 1.2, 0.01)


def main() -> None:
    """Serve requests on standard input until it ends. Drivers that print go to standard error."""
    answers = os.dup(1)
    os.dup2(2, 1)
    session: Session | None = None
    out: list[bytes]
    while True:
        try:
            message, blobs = unpack(lambda n: read_exactly(0, n))
        except EOFError:
            os._exit(0)  # without waiting for kernels that never end
        try:
            if message["op"] == "build":
                session = Session(message, blobs[0].decode())
                answer, out = {"device": session.name}, []
            elif session is not None:
                answer, out = session.run(message, blobs)
            else:
                raise LookupError("no program is built yet")
        except Exception as e:  # whatever a driver raises goes to the other side, which turns it into its own error
            answer, out = {"error": f"{type(e).__name__}: {e}"}, []
        write_all(answers, pack(answer, out))


if __name__ == "__main__":
    main()
