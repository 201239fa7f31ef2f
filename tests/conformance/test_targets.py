"""Every target on the same small networks: each passes or is refused with a reason, as docs/targets.md says."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

import cuvil
from cuvil_hw.contract.constants import ConstantStore
from cuvil_hw.errors import CuvilError, DoesNotFit, ToolNotFound, Unsupported
from cuvil_hw.ir.program import evaluate, parse
from cuvil_hw.target.profile import load_profile
from tests.support.small_networks import NETWORKS, Array, Network

pytestmark = [pytest.mark.must_run, pytest.mark.needs("g++", "gcc", "ortools")]
DOCS = Path(__file__).resolve().parents[2] / "docs" / "targets.md"
# column: (target, what runs)
DEVICES = {
    "cpu": ("cpu", "the product itself"),
    "zynq": ("pynq-z2", "simulator of the HLS C++"),
    "agilex": ("agilex", "Intel's FPGA emulator"),
    "cuda": ("h100", "simulator of the CUDA C++"),
    "mlu270": ("mlu270", "simulated card"),
    "mlu370": ("mlu370-x4", "simulated card"),
}
PASSES = "passes"


@dataclass(frozen=True)
class Outcome:
    """`error`: why it did not run; None when `got` holds the outputs."""

    error: CuvilError | None
    got: Array | None = None
    wanted: Array | None = None


@cache
def compiled(tag: str) -> Mapping[str, cuvil.Executable | CuvilError]:
    """The network for all targets, by target."""
    network = next(n for n in NETWORKS if n.tag == tag)
    targets = [target for target, _ in DEVICES.values()]
    data = network.data() if network.precision.startswith("int") else None
    found: dict[str, cuvil.Executable | CuvilError] = {}
    example = torch.zeros(network.shape)
    try:
        cuvil.compile_all(network.module(), targets, example, data, network.precision, done=found.__setitem__)
    except Unsupported as e:  # by the front end, so for every target
        return dict.fromkeys(targets, e)
    return found


@cache
def outcome(device: str, tag: str) -> Outcome:
    network = next(n for n in NETWORKS if n.tag == tag)
    program = compiled(tag)[DEVICES[device][0]]
    if isinstance(program, CuvilError):
        return Outcome(program)
    store = ConstantStore()
    for digest, array in program.artifact.constants().items():
        store._arrays[digest] = array
    meaning = parse(program.ir, store)
    x = network.inputs()
    wanted = np.concatenate([evaluate(meaning, [sample[None]])[0] for sample in x])
    try:
        with program:
            return Outcome(None, program(x), wanted)
    except ToolNotFound as e:
        return Outcome(e)


@pytest.mark.share(network=2)
@pytest.mark.parametrize("network", NETWORKS, ids=lambda n: n.tag)
def test_network(network: Network) -> None:
    found = {device: outcome(device, network.tag) for device in DEVICES}
    for device, result in found.items():
        if not isinstance(result.error, ToolNotFound):
            right_or_refused(network, result, device)
    if absent := [str(r.error) for r in found.values() if isinstance(r.error, ToolNotFound)]:
        pytest.skip("; ".join(absent))


def right_or_refused(network: Network, found: Outcome, device: str) -> None:
    """Right, or refused as `Unsupported` or `DoesNotFit`; any other error fails."""
    if found.error is not None:
        known = isinstance(found.error, Unsupported | DoesNotFit)
        assert known, f"{device}: {type(found.error).__name__}: {found.error}"
        assert reason(found.error)
        return
    assert found.got is not None
    assert found.wanted is not None
    assert found.got.dtype == found.wanted.dtype
    if network.exact:
        np.testing.assert_array_equal(found.got, found.wanted, err_msg=device)
        assert len(np.unique(found.got)) > 1
    else:
        near = 1e-5 * np.abs(found.wanted).max()
        np.testing.assert_allclose(found.got, found.wanted, rtol=1e-5, atol=near, err_msg=device)


def reason(error: CuvilError, target: str = "") -> str:
    """What a user needs to know, on one line, without names of the target and places in the network."""
    if not isinstance(error, Unsupported):
        return " ".join(str(error).split())
    kinds: dict[str, list[str]] = {}
    for refusal in error.refusals:
        why = refusal.reason.replace(f"{refusal.op} ", "it ", 1)
        kinds.setdefault(why.replace(target, "the target") if target else why, []).append(f"`{refusal.op}`")
    return "; ".join(f"{', '.join(ops)}: {why}" for why, ops in kinds.items())


def document(networks: Sequence[Network]) -> str:
    """docs/targets.md from a run of these networks. Raises AssertionError when a device could not run."""
    notes: dict[str, int] = {}
    rows = []
    for network in networks:
        cells = []
        for device in DEVICES:
            found = outcome(device, network.tag)
            assert not isinstance(found.error, ToolNotFound), f"{device} can't run here: {found.error}"
            if found.error is None:
                cells.append(PASSES)
            else:
                why = reason(found.error, load_profile(DEVICES[device][0]).name)
                number = notes.setdefault(why, len(notes) + 1)
                cells.append(f"refused ({number})")
        rows.append(f"| {network.tag} | {network.what} | {' | '.join(cells)} |")
    heads = " | ".join(f"{name}" for name in DEVICES)
    runs = "; ".join(f"{name}: {target}, {what}" for name, (target, what) in DEVICES.items())
    return "\n".join(
        [
            "# Targets: what each can run",
            "",
            "Written by `make docs-targets` from tests/conformance/test_targets.py, which runs every network below on",
            "every device and compares the outputs with the NumPy meaning of the IR: bit for bit where it computes",
            "with integers, within 1e-5 of the largest value where floats remain. What a simulator proves is in",
            "[simulators.md](simulators.md).",
            "",
            f"Devices: {runs}.",
            "",
            f"| network | what is in it | {heads} |",
            f"|---|---|{'---|' * len(DEVICES)}",
            *rows,
            *(["", "Refused, and why:", "", *(f"{number}. {why}" for why, number in notes.items())] if notes else []),
            "",
        ]
    )


def cells_of(page: str) -> dict[str, list[str]]:
    """By network, what the page says of each device: passes, or why it is refused."""
    notes = dict(re.findall(r"^(\d+)\. (.+)$", page, re.M))
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| ")
    ]
    return {row[0]: [re.sub(r"refused \((\d+)\)", lambda m: notes[m[1]], cell) for cell in row[2:]] for row in rows[1:]}


def test_document_says_what_passes(request: pytest.FixtureRequest, full: bool) -> None:
    networks = NETWORKS if full else NETWORKS[::2]  # those of the share
    ran = [(d, outcome(d, n.tag)) for n in networks for d in DEVICES]
    absent = {device: o.error for device, o in ran if isinstance(o.error, ToolNotFound)}
    if absent and not request.config.getoption("--update-golden"):
        pytest.skip("; ".join(f"{device}: {error}" for device, error in absent.items()))
    text = document(networks)
    if request.config.getoption("--update-golden"):
        DOCS.write_text(text, encoding="utf-8")
    assert DOCS.is_file(), "docs/targets.md is missing; write it with: make docs-targets"
    page = DOCS.read_text(encoding="utf-8")
    found, said = cells_of(text), cells_of(page)
    assert found == {tag: said[tag] for tag in found}, (
        "docs/targets.md is out of date; write it with: make docs-targets"
    )
    assert text == page or not full, "docs/targets.md is not as it is written; write it with: make docs-targets"
