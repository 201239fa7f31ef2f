"""The programs that `tools/replay.py` compiles: together every op class and every form of kernel.

Older revisions are replayed with these definitions too, so nothing but `cuvil`'s public names may be imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np
from torch import nn

import cuvil
from tools import replay_models as m
from tools.replay_models import IMAGE, ROW, Of, conv, exact, linear

SAMPLES = 16  # of calibration data


@dataclass(frozen=True)
class Program:
    """`make`: what is compiled; `inputs`: shapes of its f32 inputs, empty for a model that says them itself;
    `precision`: with "int8" the inputs are calibrated; `options`: those that `cuvil.compile` has alone, so that each
    target compiles by itself."""

    name: str
    make: Callable[[], Any]
    inputs: tuple[tuple[int, ...], ...] = (IMAGE,)
    precision: str | None = "int8"
    options: Callable[[], Mapping[str, Any]] = dict
    state: Mapping[str, str] | None = None

    def compile(self, targets: Sequence[str], began: Callable[[str], None], done: Callable[[str, Any], None]) -> None:
        """`began` is called before a target, once the model is imported, `done` with what `cuvil.compile` gives or
        raises. Raises what importing the model raises."""
        model, options = self.make(), dict(self.options())
        if isinstance(model, nn.Module):
            model = m.settled(model)
        common = {**self._data(), "precision": self.precision, "name": self.name.replace("-", "_")}
        if self.state:
            common["state"] = self.state
        if not options and not isinstance(model, FunctionType):
            cuvil.compile_all(model, targets, **common, progress=lambda t: (began(t), _quiet)[1], done=done)
            return
        for target in targets:
            began(target)
            try:
                done(target, cuvil.compile(model, target, **common, **options))
            except cuvil.CuvilError as e:
                done(target, e)

    def _data(self) -> dict[str, Any]:
        rng = np.random.default_rng(7)
        if not self.inputs:
            return {}
        found: dict[str, Any] = {"example_inputs": tuple(exact(rng, *shape) for shape in self.inputs)}
        if self.precision is not None and self.precision.startswith("int"):
            data = tuple(exact(rng, SAMPLES * batch, *rest) for batch, *rest in self.inputs)
            found["calibration"] = data if len(data) > 1 else data[0]
        return found


def _quiet(what: str, done: int, steps: int) -> None:
    """Progress that nobody sees."""


def floats(name: str, function: Callable[..., Any], *parts: nn.Module, inputs: Any = (IMAGE,)) -> Program:
    return Program(name, lambda: Of(function, *parts), inputs, "float32")


def tensors(name: str, make: Callable[[], Any], precision: str | None = None, **state: str) -> Program:
    """A model that says the shapes of its inputs itself; `state`: outputs by the input that they become."""
    return Program(name, make, (), precision, state=state)


SEQUENCE = ((1, 6, 8),)
PROGRAMS = (
    Program("mlp-int8", lambda: linear(12, 9, 7, 3), (ROW,)),
    Program("mlp-int4", lambda: linear(12, 9, 7, 3), (ROW,), "int4"),
    Program("mlp-fixed16-6", lambda: linear(12, 9, 7, 3), (ROW,), "fixed<16,6>"),
    Program("mlp-float", lambda: linear(12, 9, 7, 3), (ROW,), "float32"),
    Program("digits-int8", m.digits, ((1, 1, 8, 8),)),
    Program("digits-int8-O0", m.digits, ((1, 1, 8, 8),), "int8", lambda: {"opt_level": 0}),
    Program("digits-int8-O3", m.digits, ((1, 1, 8, 8),), "int8", lambda: {"opt_level": 3}),
    Program("digits-float", m.digits, ((1, 1, 8, 8),), "float32"),
    Program("conv-grouped-int8", lambda: nn.Sequential(conv(6, stride=2, groups=2), nn.ReLU(), conv(3, 1, 6))),
    Program("conv-dilated-int8", lambda: conv(6, dilation=2, bias=False)),
    Program("conv-depthwise-int8", m.depthwise),
    Program("conv-1d-int8", lambda: nn.Conv1d(4, 5, 3, stride=2), ((1, 4, 12),)),
    Program("conv-3d-float", lambda: nn.Conv3d(2, 3, 3, padding=1), ((1, 2, 4, 4, 4),), "float32"),
    Program("conv-transposed-int8", lambda: nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1)),
    Program("conv-wide-int8", lambda: conv(32, into=32), ((1, 32, 12, 12),)),
    Program("conv-wide-float", lambda: conv(64, into=64), ((1, 64, 16, 16),), "float32"),
    Program("conv-infinite-float", m.Infinite, (IMAGE,), "float32"),
    Program("linear-wide-int8", lambda: nn.Linear(128, 96), ((64, 128),)),
    Program("linear-wide-float", lambda: nn.Linear(128, 96), ((64, 128),), "float32"),
    Program("pools-int8", lambda: Of(m.pools)),
    Program("residual-int8", lambda: Of(lambda x, f: (x + f(x)).relu(), conv())),
    Program("gate-int8", lambda: Of(m.gate, conv(), conv(4, 1))),
    Program("unet-int8", lambda: Of(m.unet, conv(4), conv(6), conv(2, into=10))),
    Program("views-int8", lambda: Of(m.views, conv(8))),
    Program("tables-int8", lambda: nn.Sequential(conv(), nn.SiLU(), conv(), nn.Tanh(), conv(), nn.GELU())),
    Program("softmax-int8", lambda: nn.Sequential(linear(12, 7), nn.Softmax(1)), (ROW,)),
    Program("norm-between-int8", lambda: nn.Sequential(nn.Linear(12, 8), nn.LayerNorm(8), nn.Linear(8, 3)), (ROW,)),
    Program("attention-int8", lambda: Of(m.attention, nn.Linear(8, 24), nn.Linear(8, 8)), SEQUENCE),
    floats("attention-float", m.attention, nn.Linear(8, 24), nn.Linear(8, 8), inputs=SEQUENCE),
    floats("norms-float", m.norms, nn.GroupNorm(2, 4), nn.InstanceNorm2d(4), nn.BatchNorm2d(4), nn.LayerNorm(8)),
    floats("activations-float", m.activations, inputs=(ROW,)),
    floats("scalars-float", m.scalars, inputs=(ROW,)),
    floats("trigonometry-float", m.trigonometry, inputs=(ROW,)),
    floats("reductions-float", m.reductions, inputs=((1, 5, 6),)),
    floats("sorting-float", m.sorting, inputs=((7,),)),
    floats("indexing-float", m.indexing, nn.Embedding(7, 6), inputs=((1, 5),)),
    floats("warped-float", m.warped, inputs=((1, 2, 6, 6), (1, 4, 4, 2))),
    Program("lstm-float", lambda: m.Recurrent(nn.LSTM, bidirectional=True), ((1, 4, 4),), "float32"),
    Program("gru-float", lambda: m.Recurrent(nn.GRU), ((1, 4, 4),), "float32"),
    Program("state-buffer-float", m.Counter, (ROW,), "float32"),
    Program(
        "open-batch-float",
        lambda: linear(12, 7, 3),
        (ROW,),
        "float32",
        lambda: {"shapes": {"input": (cuvil.Dim("n", 1, 8, sizes=(1, 4)), 12)}},
    ),
    tensors("onnx-qdq", m.qdq),
    tensors("onnx-qoperator", m.qoperator),
    tensors("onnx-bits", m.bits),
    tensors("onnx-widths", m.widths),
    tensors("onnx-scattered", m.scattered, "float32"),
    tensors("onnx-branches", m.branches, "float32"),
    tensors("onnx-state", m.filter_, "float32", state="new"),
    tensors("onnx-forest", m.forest, "float32"),
    Program("python-polynomial", lambda: m.polynomial, (ROW,), "float32"),
    Program("python-while", lambda: m.halved, (ROW,), "float32", lambda: {"max_trips": 4}),
)
