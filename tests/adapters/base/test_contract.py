"""What adapters are told and what they state holds where their programs run: memory, forms, objectives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cuvil
from cuvil_hw import ops
from cuvil_hw.adapters import registry
from cuvil_hw.adapters.cpu import device as cpu_device
from cuvil_hw.adapters.cuda.simulator import SimulatedDriver
from cuvil_hw.adapters.mlu.device import LoadedProgram
from cuvil_hw.adapters.target_check import adapter_for, check_file
from cuvil_hw.api import compile_program
from cuvil_hw.errors import DoesNotFit, ProfileError
from cuvil_hw.ir.program import Builder, Program, evaluate
from cuvil_hw.schedule.resources import Resource
from cuvil_hw.target.profile import Profile, load_profile
from cuvil_hw.types import TensorType as T

X = np.ones((2, 3), np.float32)


def chain() -> Program:
    """Three dense layers and a softmax: more intermediate results than ports."""
    rng, b = np.random.default_rng(0), Builder([("x", T((1, 3), "f32"))], "chain")
    y = b.input(0)
    for _ in range(3):
        weights = b.const(rng.normal(size=(3, 3)).astype(np.float32))
        y = b.op(ops.Linear(), y, weights, b.const(rng.normal(size=3).astype(np.float32)))
    return b.finish([("y", b.op(ops.Softmax(1), y))])


def compiled(program: Program, profile: Profile) -> cuvil.Executable:
    adapter = registry.load_adapter(profile.adapter)
    return compile_program(program, profile, adapter, None, "float32", None, lambda what: None)


def sizes_of_calls(monkeypatch: pytest.MonkeyPatch, owner: type, method: str) -> list[int]:
    """The sizes that `owner.method(size)` is called with from here on."""
    asked, real = [], getattr(owner, method)

    def spy(self: Any, size: int) -> Any:
        asked.append(size)
        return real(self, size)

    monkeypatch.setattr(owner, method, spy)
    return asked


@pytest.mark.must_run
@pytest.mark.needs("g++", "gcc")
@pytest.mark.parametrize(
    ("target", "owner", "method", "samples"),
    [
        ("h100", SimulatedDriver, "allocate", 2),
        ("mlu270", LoadedProgram, "_allocate", 1),
        ("mlu370-x4", LoadedProgram, "_allocate", 1),
    ],
)
def test_the_arena_of_the_report_is_what_the_device_allocates(
    target: str, owner: type, method: str, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ports and constants have memory of their own; `samples`: how many a device holds at once."""
    program = compiled(chain(), load_profile(target))
    asked = sizes_of_calls(monkeypatch, owner, method)
    program(X)
    own = [36, 12] * 3 + [12 * samples] * 2
    for size in own:
        asked.remove(size)
    assert asked == [program.report["memory"]["arena_bytes"] * samples]


@pytest.mark.needs("gcc")
def test_the_arena_of_the_report_is_the_memory_of_a_call_on_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    real = cpu_device._Library._workspace

    def spy(self: Any) -> Any:
        made.append(real(self).nbytes)
        return real(self)

    monkeypatch.setattr(cpu_device._Library, "_workspace", spy)
    program = compiled(chain(), load_profile("cpu"))
    program(X)
    assert made == [program.report["memory"]["arena_bytes"] + cpu_device._ALIGN]  # room to start at a multiple


def test_memory_that_the_arena_alone_would_fit_is_refused() -> None:
    """On a card each intermediate result starts at a multiple of 128 bytes, so that three take 384; at multiples of 64
    they would fit."""
    profile = load_profile("mlu270")
    axes = tuple(replace(a, limit=430, utilisation=1.0) if a.name == "gdram" else a for a in profile.axes)
    with pytest.raises(DoesNotFit, match=r"needs [\d,]+ gdram where 430 may be used") as caught:
        compiled(chain(), replace(profile, axes=axes))
    assert caught.value.need == 3 * 128 + 3 * (36 + 12) + 2 * 12


def padded_convolution(weight: float) -> Program:
    """32 channels in and out, of 16 × 16: large enough for tiles in shared memory."""
    b = Builder([("x", T((1, 32, 16, 16), "f32"))], "padded")
    weights = np.full((32, 32, 3, 3), 0.5, np.float32)
    weights[3, 2, 0, 0] = weight  # which lies under padding at two edges
    return b.finish([("y", b.op(ops.Conv((1, 1), (1, 1, 1, 1), (1, 1)), b.input(0), b.const(weights)))])


@pytest.mark.must_run
@pytest.mark.needs("g++")
@pytest.mark.parametrize("weight", [0.25, np.inf])
def test_the_report_names_the_form_that_runs(weight: float) -> None:
    """Under padding a tile would multiply an infinite weight by 0, which gives NaN: it is not on offer then."""
    profile, model = load_profile("h100"), padded_convolution(weight)
    wanted = evaluate(model, [np.ones((1, 32, 16, 16), np.float32)])[0]
    program = compiled(model, profile)
    (layer,) = program.report["layers"]
    assert ("form=tile" in layer["schedule"]) == ("__syncthreads" in program.sources["model.cu"]) == (weight == 0.25)
    np.testing.assert_allclose(program(np.ones((1, 32, 16, 16), np.float32)), wanted, rtol=1e-5)
    assert np.isfinite(wanted).all() == (weight == 0.25)
    assert not np.isnan(wanted).any()


def test_a_shared_resource_does_not_make_a_target_a_fabric() -> None:
    """Kernels share the flash of a processor, and still run one after another."""
    profile = replace(load_profile("cpu"), axes=(Resource("flash", 4096, "sum", unit="B"),))
    report = compiled(chain(), profile).report
    assert report["style"] == "temporal"
    assert report["memory"]["arena_bytes"] > 0
    assert report["latency"]["cycles"] == sum(layer["cycles"] for layer in report["layers"])
    assert report["solver"]["objective_cycles"] == report["latency"]["cycles"]


def test_intermediate_results_that_stream_take_no_memory() -> None:
    profile = load_profile("pynq-z2")
    kept = 3 * (36 + 12) + 2 * 12
    axes = (*profile.axes, Resource("ddr", kept, "live", unit="B"))
    totals = compiled(chain(), replace(profile, axes=axes)).report["totals"]
    assert {t["axis"]: t["used"] for t in totals}["ddr"] == kept


def test_how_use_adds_up_is_the_adapters_to_say(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("schema: cuvil-profile/1\nname: mine\nextends: h100\nresources:\n  shared: {limit: 9, rule: sum}\n")
    said = r"mine.yaml:5: resources.shared.rule: use of shared adds up by max on cuda targets, found sum"
    with pytest.raises(ProfileError, match=said):
        check_file(path)
    with pytest.raises(ProfileError, match=said):
        adapter_for(load_profile(path), None)
