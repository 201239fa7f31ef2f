"""Models that read clocks or draw numbers: a warning says with its line that what they read is fixed."""

from __future__ import annotations

import cProfile
import datetime
import random
import sys
import time
import warnings

import numpy as np
import pytest
import torch

from cuvil_hw.frontend.torch.export import load_torch

GENERATOR = np.random.default_rng(0)


class Model(torch.nn.Module):
    def __init__(self, read) -> None:
        super().__init__()
        self.read, self.drawn = read, random.Random(0)

    def forward(self, x):
        return x * float(self.read(self))


class Held(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(0)

    def forward(self, x):
        return x * float(self.generator.random()) + float(GENERATOR.random())


READS = {
    "random": (lambda m: random.random(), r"test_torch_impure\.py:\d+: random\.random draws"),
    "randint": (lambda m: random.randint(1, 5), r"test_torch_impure\.py:\d+: random\.getrandbits draws"),
    "own": (lambda m: m.drawn.random(), r"test_torch_impure\.py:\d+: random\.random draws"),
    "numpy": (lambda m: np.random.rand(), r"np\.random draws"),
    "time": (lambda m: time.time(), r"test_torch_impure\.py:\d+: time\.time reads the clock"),
    "datetime": (lambda m: datetime.datetime.now().year, r"datetime\.now reads the clock"),
}


@pytest.mark.parametrize("what", READS)
def test_what_is_read_while_tracing_is_told(what: str) -> None:
    read, text = READS[what]
    with pytest.warns(UserWarning, match=text):
        load_torch(Model(read), torch.ones(2))


def test_generators_that_a_model_holds() -> None:
    with pytest.warns(UserWarning, match=r"generator of Held draws.*") as told:
        load_torch(Held(), torch.ones(2))
    assert "GENERATOR of Held draws" in str(told[0].message)


def test_other_models_say_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_torch(Model(lambda m: 2.0), torch.ones(2))


def test_a_profiler_keeps_running() -> None:
    profile = cProfile.Profile()
    with profile:
        load_torch(Model(lambda m: 2.0), torch.ones(2))
        assert sys.getprofile() is profile
