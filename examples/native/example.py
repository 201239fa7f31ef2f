"""Calls a saved model by ctypes, without Cuvil, PyTorch or NumPy.

python examples/native/example.py --make   # compiles a small network and saves ./model.so, model.h (needs Cuvil)
python examples/native/example.py          # calls ./model.so
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path


class Port(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_char_p),
        ("rank", ctypes.c_int),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("bytes", ctypes.c_size_t),
    ]


def make(path: Path) -> None:
    import torch
    from torch import nn

    import cuvil

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 5), nn.Softmax(1)).eval()
    with cuvil.compile(model, "cpu", torch.zeros(1, 16)) as program:
        program.save(path)


def main() -> None:
    path = Path("model.so").absolute()
    if "--make" in sys.argv[1:]:
        make(path)
    library = ctypes.CDLL(str(path))
    library.model_arena_bytes.restype = ctypes.c_size_t
    library.model_error.restype = ctypes.c_char_p
    for describe in (library.model_input, library.model_output):
        describe.restype = ctypes.POINTER(Port)

    ins = [library.model_input(n).contents for n in range(library.model_inputs())]
    outs = [library.model_output(n).contents for n in range(library.model_outputs())]
    given = [ctypes.create_string_buffer(port.bytes) for port in ins]  # zeros; fill them here
    made = [ctypes.create_string_buffer(port.bytes) for port in outs]
    arena = ctypes.create_string_buffer(library.model_arena_bytes() + 1)

    code = library.model_run(
        (ctypes.c_void_p * len(given))(*map(ctypes.addressof, given)),
        (ctypes.c_void_p * len(made))(*map(ctypes.addressof, made)),
        arena,
    )
    if code != 0:
        raise SystemExit(f"the model refused its input: {library.model_error(code).decode()}")
    for port, values in zip(outs, made, strict=True):
        shape = "×".join(str(port.shape[d]) for d in range(port.rank))
        print(f"{port.name.decode()}: {port.dtype.decode()} {shape}")
        if port.dtype == b"f32":
            print(*memoryview(values).cast("B").cast("f")[:10])


if __name__ == "__main__":
    main()
