"""Artifacts that say what no adapter wrote, sealed with right digests: CuvilError, no signal, no hang; and what looking
at an artifact does."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cuvil
from cuvil_hw.contract import registry
from cuvil_hw.errors import ArtifactError, CuvilError, DeviceError
from cuvil_hw.runtime import artifact as container
from cuvil_hw.runtime import scratch
from cuvil_hw.runtime.executable import Executable
from cuvil_hw.version import VERSION
from tests.support.programs import DEVICES, data, program
from tools import fuzz_harness
from tools.fuzz_records import TARGETS, sealed

pytestmark = [pytest.mark.needs("g++"), pytest.mark.must_run]
EACH = 500  # changed artifacts of a target; unless `--full` is given, a tenth
SEED = 20_260_101


def test_changed_records_of_every_target(full: bool) -> None:
    count = (EACH if full else EACH // 10) * len(TARGETS)
    halves = (range(count // 2), range(count // 2, count))
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda numbers: list(fuzz_harness.hunt("fuzz_records", SEED, numbers)), halves)
        findings = [finding for half in found for finding in half]
    assert not findings, "\n".join(map(str, findings[:3]))


def _edited(exe: Executable, edit: Any) -> Executable:
    """The program with a manifest that `edit` has changed, read as a file is read."""
    files = {name: bytes(content) for name, content in exe.artifact.files.items()}
    with zipfile.ZipFile(io.BytesIO(container.to_bytes(exe.artifact))) as archive:
        manifest = json.loads(archive.read(container.MANIFEST))
    edit(manifest, files)
    return Executable(container.from_bytes(sealed(manifest, files)), exe.interface)


@pytest.mark.parametrize("device", [d for d in DEVICES if d not in ("null", "zynq-count")])
def test_another_size_beside_the_code_is_refused_before_anything_runs(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first number of the record, one more or less: no compiler, no library."""
    from cuvil_hw.runtime import cache

    def number(node: Any) -> tuple[Any, Any]:
        for key in node if isinstance(node, dict) else range(len(node)):
            if type(node[key]) is int and key not in ("abi_version", "axis_bits", "cycles"):
                return node, key
            if isinstance(node[key], dict | list) and node[key]:
                found = number(node[key])
                if found[0] is not None:
                    return found
        return None, None

    def edit(manifest: Any, _: Any) -> None:
        holder, key = number(manifest["info"])
        holder[key] += 64

    changed = _edited(program(device), edit)
    monkeypatch.setattr(scratch.ctypes, "CDLL", None)
    monkeypatch.setattr(cache, "_build", None)
    with pytest.raises(ArtifactError, match=r"its record for the device is wrong|is not the one that its code"):
        changed.open()


@pytest.mark.parametrize(("key", "value"), [("cycles", 7), ("packets", False), ("layers", ["x"])])
def test_what_only_the_record_of_an_hls_design_says_is_sealed(
    key: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cuvil_hw.runtime import cache

    def edit(manifest: Any, _: Any) -> None:
        assert manifest["info"][key] != value
        manifest["info"][key] = value

    monkeypatch.setattr(cache, "_build", None)
    with pytest.raises(ArtifactError, match="is not the one that its code was generated with"):
        _edited(program("zynq"), edit).open()


def test_an_hls_design_without_a_seal_is_of_another_version() -> None:
    def edit(manifest: Any, files: Any) -> None:
        name = f"{container.SOURCES}src/{manifest['info']['project']}.cpp"
        head, _, files[name] = files[name].partition(b"\n")
        assert head.startswith(b"// Record ")

    with pytest.raises(ArtifactError, match="comes from another version; compile the model again"):
        _edited(program("zynq"), edit).open()


def test_ports_that_changed_everywhere_are_refused() -> None:
    """All lists of ports say the same, but the code was generated for others."""

    def edit(manifest: Any, _: Any) -> None:
        for key in ("inputs", "device_inputs"):
            manifest[key][0]["shape"] = [1, 2, 600, 600]

    with pytest.raises(ArtifactError, match="is not the one that its code was generated with"):
        _edited(program("cpu"), edit).open()


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda m: m.update(product_version="99.0.0"), f"written by cuvil-hw 99.0.0, and this is {VERSION}: upgrade"),
        (lambda m: m.update(product_version="soon"), "product_version is 'soon', no version"),
        (lambda m: m.update(engine=1), "engine is unknown to cuvil-hw"),
        (lambda m: m["inputs"][0].update(layout="nhwc"), r"inputs\[0\]\.layout is unknown"),
        (lambda m: m["calling"].update(streams=[]), r"calling\.streams is unknown"),
        (lambda m: m.update(abi=[]), "abi must be dict"),
    ],
)
def test_versions_and_entries_that_are_not_known(edit: Any, message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        _edited(program("cpu"), lambda m, _: edit(m))


def test_entries_of_a_record_that_are_not_known() -> None:
    with pytest.raises(ArtifactError, match="record for the device is wrong: threads is unknown"):
        _edited(program("cpu"), lambda m, _: m["info"].update(threads=4)).open()


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_a_library_that_is_cut_short(share: float) -> None:
    """The loader would map what isn't there, and the process end by SIGBUS."""

    def edit(_: Any, files: dict[str, bytes]) -> None:
        library = files["products/model.so"]
        files["products/model.so"] = library[: int(len(library) * share)]

    with pytest.raises((DeviceError, ArtifactError), match=r"cut short|is not the one that its code"):
        _edited(program("cpu"), edit).open()


def test_files_that_are_no_libraries(tmp_path: Path) -> None:
    path = tmp_path / "x.so"
    whole = program("cpu").artifact.files["products/model.so"]
    for content, why in (
        (b"", "no shared library"),
        (b"\x7fELF", "no shared library"),
        (whole[:63], "cut short"),
        (whole[:80], "cut short"),
        (whole[: len(whole) // 4], "cut short"),
        (whole[:54] + struct.pack("<H", 3) + whole[56:], "damaged"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=why):
            scratch.whole(path)
    path.write_bytes(whole)
    scratch.whole(path)


@pytest.mark.parametrize("device", [d for d in DEVICES if d != "null"])
def test_looking_executes_nothing(device: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`report`, the graph and interface="null": no library is loaded, no tool started, no device opened."""
    import ctypes
    import subprocess

    path = tmp_path / "p.cuvil"
    program(device).save(path)

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("something is executed")

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    with cuvil.load(path, "null") as exe:
        assert exe.report["target"]
        assert exe.report.text()
        assert "<svg" in exe.report.html() or exe.report.html()
        assert exe.sources
        assert exe.ir
        assert exe(data(0)).shape == (8, 5)
    monkeypatch.setattr(registry, "open_device", refuse)
    assert container.read(path).manifest.model == "records"
    from cuvil_hw.runtime.load import program_in

    assert program_in(container.read(path)).report["target"]


def test_host_steps_that_fail_are_told() -> None:
    def edit(manifest: Any, _: Any) -> None:
        (step,) = manifest["prologue"]["steps"]
        step["attrs"]["scale"] = [0.0]

    exe = program("zynq")
    try:
        changed = _edited(exe, edit)
    except CuvilError:
        return
    with pytest.raises(CuvilError):
        changed(data(0))


def test_an_index_of_weights_that_is_off() -> None:
    exe = program("cpu")
    index = json.loads(exe.artifact.files[container.WEIGHT_INDEX])
    name = sorted(index)[0]
    for key, value in (("offset", 1), ("offset", -64), ("size", 1 << 70), ("shape", [-1]), ("dtype", "i64"), ("x", 1)):
        changed = {**index, name: {**index[name], key: value}}
        files = {**exe.artifact.files, container.WEIGHT_INDEX: json.dumps(changed).encode()}
        with pytest.raises(ArtifactError, match="weights"):
            Executable(replace(exe.artifact, files=files)).open()
