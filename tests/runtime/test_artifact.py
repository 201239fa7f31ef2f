"""The `.cuvil` container: same content, same bytes; anything else than what was written is refused."""

from __future__ import annotations

import errno
import functools
import hashlib
import io
import os
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

from cuvil_hw.contract import canonical, files
from cuvil_hw.contract.build import BuildPlan, Command
from cuvil_hw.contract.device import Port
from cuvil_hw.errors import ArtifactError, BuildFailed, CuvilError, ToolNotFound
from cuvil_hw.ops.integer import Quantize
from cuvil_hw.runtime.artifact import Artifact, assemble, extract, from_bytes, read, to_bytes, write
from cuvil_hw.runtime.host import HostProgram, HostStep
from cuvil_hw.runtime.manifest import Manifest

QUANTIZE = HostStep.of(Quantize((0.5,), (3,), "i8"), ["x"], ["q"])
MANIFEST = Manifest(
    model="m",
    adapter="toy",
    profile={"clock_hz": 1e8},
    inputs=(Port("x", (1, 2), "f32"),),
    outputs=(Port("y", (1, 2), "i8"),),
    device_inputs=(Port("q", (1, 2), "i8"),),
    device_outputs=(Port("y", (1, 2), "i8"),),
    prologue=HostProgram((QUANTIZE,), ("x",), ("q",)),
    epilogue=HostProgram((), ("y",), ("y",)),
    info={"limit": float("-inf")},
)


def make(**changes: object) -> Artifact:
    parts = {
        "level1": "module {}",
        "report": {"cycles": 7},
        "constants": {
            "w": np.arange(3, dtype=np.int16),
            "none": np.zeros((0, 4), np.float32),
            "a": np.float64(2).reshape(()),
        },
        "sources": {"top.cpp": b"int x;", "sub/table.h": b"0"},
        "products": {"lib.so": b"\x7fELF"},
    }
    return assemble(MANIFEST, **(parts | changes))  # type: ignore[arg-type]


def seal(archive: bytes) -> bytes:
    """A valid trailer for an archive whose comment has the trailer's length: what an author who means harm would do."""
    body = archive[:-64]
    return body + hashlib.sha256(body).hexdigest().encode()


def rezip(members: list[tuple[zipfile.ZipInfo, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for info, data in members:
            archive.writestr(info, data)
        archive.comment = b"cuvil-artifact/1 sha256:" + b"0" * 64
    return seal(buffer.getvalue())


def members(data: bytes) -> list[tuple[zipfile.ZipInfo, bytes]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return [(info, archive.read(info)) for info in archive.infolist()]


def listing(member: tuple[zipfile.ZipInfo, bytes], name: str, content: bytes) -> tuple[zipfile.ZipInfo, bytes]:
    """The manifest with one more member listed; any other member as it is."""
    info, data = member
    if info.filename != "manifest.json":
        return member
    manifest = canonical.parse(data)
    manifest["members"][name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return info, canonical.dump(manifest)


def test_round_trip_and_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "a.cuvil", tmp_path / "b.cuvil"
    write(first, make())
    write(second, make(sources={"sub/table.h": b"0", "top.cpp": b"int x;"}))
    assert first.read_bytes() == second.read_bytes()
    back = read(first)
    assert back == make()
    assert to_bytes(back) == first.read_bytes()
    constants = back.constants()
    assert constants["w"].tolist() == [0, 1, 2]
    assert (constants["none"].shape, constants["a"].shape, float(constants["a"])) == ((0, 4), (), 2.0)
    assert not constants["w"].flags.writeable
    assert zipfile.ZipFile(first).testzip() is None
    assert sorted(os.listdir(tmp_path)) == ["a.cuvil", "b.cuvil"]


def test_other_content_gives_other_bytes() -> None:
    assert to_bytes(make(report={"cycles": 8})) != to_bytes(make())


def test_every_flipped_byte_is_refused() -> None:
    data = to_bytes(make())
    for at in range(len(data)):
        bad = bytearray(data)
        bad[at] ^= 1 << (at % 8)
        with pytest.raises(ArtifactError):
            from_bytes(bytes(bad))


def test_every_flipped_byte_with_a_forged_digest_is_refused_or_harmless() -> None:
    """Whatever the archive's structures hold, nothing but ArtifactError comes out, and no member changes."""
    data, good = to_bytes(make()), make()
    for at in range(len(data) - 64):
        bad = bytearray(data)
        bad[at] ^= 0xFF >> (at % 7)
        try:
            got = from_bytes(seal(bytes(bad)))
        except ArtifactError:
            continue
        assert got.files == good.files


@pytest.mark.parametrize("cut", [0, 1, 50, 87, 88, 200])
def test_truncated_appended_and_foreign_files(tmp_path: Path, cut: int) -> None:
    data, path = to_bytes(make()), tmp_path / "x.cuvil"
    for bad in (data[:cut], data[: len(data) - 1 - cut], data + bytes(1 + cut), b"\0" + data, b"not an artifact" * cut):
        path.write_bytes(bad)
        with pytest.raises(ArtifactError, match=r"x\.cuvil"):
            read(path)


@pytest.mark.parametrize(
    "name",
    [
        "../evil",
        "/etc/evil",
        "sources/../../evil",
        "sources//x",
        "sources/a\\b",
        "stray.txt",
        "sources/C:x",
        "sources/",
    ],
)
def test_names_that_leave_their_folder(name: str) -> None:
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    info.create_system, info.external_attr = 3, 0o100644 << 16
    with pytest.raises(ArtifactError):
        from_bytes(rezip([*members(to_bytes(make())), (info, b"x")]))
    with pytest.raises(ArtifactError, match=r"manifest\.json: .*(plain relative path|no such member)"):
        from_bytes(rezip([*(listing(m, name, b"x") for m in members(to_bytes(make()))), (info, b"x")]))
    with pytest.raises(ArtifactError):
        to_bytes(Artifact(MANIFEST, {**make().files, name: b"x"}))


def test_unlisted_missing_and_doubled_members() -> None:
    whole = members(to_bytes(make()))
    extra = zipfile.ZipInfo("sources/more", (1980, 1, 1, 0, 0, 0))
    extra.create_system, extra.external_attr = 3, 0o100644 << 16
    with pytest.raises(ArtifactError, match="sources/more"):
        from_bytes(rezip([*whole, (extra, b"")]))
    with pytest.raises(ArtifactError, match=r"level1\.mlir"):
        from_bytes(rezip([m for m in whole if m[0].filename != "level1.mlir"]))
    with pytest.warns(UserWarning, match="Duplicate"):
        doubled = rezip([*whole, whole[0]])
    with pytest.raises(ArtifactError, match="twice"):
        from_bytes(doubled)
    swapped = [(i, b"module {?" if i.filename == "level1.mlir" else d) for i, d in whole]
    with pytest.raises(ArtifactError, match=r"level1\.mlir: differs from its digest"):
        from_bytes(rezip(swapped))


def test_links_and_compressed_members() -> None:
    whole = members(to_bytes(make()))
    whole[0][0].external_attr = 0o120777 << 16
    with pytest.raises(ArtifactError, match="link"):
        from_bytes(rezip(whole))
    whole = members(to_bytes(make()))
    bomb = [(i, bytes(1 << 20) if i.filename == "weights.bin" else d) for i, d in whole]
    for info, _ in bomb:
        info.compress_type = zipfile.ZIP_DEFLATED
    with pytest.raises(ArtifactError, match="compressed"):
        from_bytes(rezip(bomb))


def test_overlapping_members_can_not_multiply_the_size() -> None:
    """All central entries of equal names in length point to one stored member: a bomb without compression."""
    big, count = 5000, 40
    names = [f"sources/{k:02d}" for k in range(count)]
    template = zipfile.ZipInfo("sources/00", (1980, 1, 1, 0, 0, 0))
    template.create_system, template.external_attr = 3, 0o100644 << 16
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(template, bytes(big))
        only = archive.infolist()[0]
        for name in names[1:]:
            clone = zipfile.ZipInfo(name, only.date_time)
            for attribute in ("create_system", "external_attr", "CRC", "file_size", "compress_size", "header_offset"):
                setattr(clone, attribute, getattr(only, attribute))
            archive.filelist.append(clone)
        archive.comment = b"cuvil-artifact/1 sha256:" + b"0" * 64
    with pytest.raises(ArtifactError, match="larger than the file"):
        from_bytes(seal(buffer.getvalue()))


def test_newer_format_is_named() -> None:
    data = to_bytes(make()).replace(b"cuvil-artifact/1 sha256:", b"cuvil-artifact/2 sha256:")
    with pytest.raises(ArtifactError, match=r"newer Cuvil \(format 2, this one reads 1\).*upgrade"):
        from_bytes(seal(data))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"dtype": "f32"', b'"dtype": "x32"', "x32"),
        (b'"model": "m"', b'"model": 7.0', "model must be str"),
        (b'"model": "m"', b'"adapter":"m"', "a key is given twice"),
        (b'"clock_hz": 100000000.0', b'"clock_hz":         NaN', "NaN"),
    ],
)
def test_a_manifest_that_is_wrong(old: bytes, new: bytes, message: str) -> None:
    whole = members(to_bytes(make()))
    changed = [(i, d.replace(old, new, 1) if i.filename == "manifest.json" else d) for i, d in whole]
    assert changed != whole
    with pytest.raises(ArtifactError, match=rf"manifest\.json: .*{message}"):
        from_bytes(rezip(changed))


@pytest.mark.parametrize(
    "index", [b"[]", b'{"w": {}}', b'{"w": {"dtype": "i8", "shape": [9], "offset": 0, "size": 900}}']
)
def test_a_weight_index_that_is_wrong(index: bytes) -> None:
    with pytest.raises(ArtifactError, match=r"weights\.json"):
        Artifact(MANIFEST, {**make().files, "weights.json": index}).constants()


def test_read_refuses_what_is_no_plain_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    write(tmp_path / "x.cuvil", make())
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "absent"):
        with pytest.raises(ArtifactError, match=str(path)):
            read(path)
    with pytest.raises(ArtifactError, match="limit of 100"):
        read(tmp_path / "x.cuvil", max_bytes=100)


def test_full_disk_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.cuvil"
    write(path, make())
    old = path.read_bytes()

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ArtifactError, match=r"No space left.*is unchanged.*free space"):
        write(path, make(report={}))
    assert path.read_bytes() == old
    assert os.listdir(tmp_path) == ["x.cuvil"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_short_write_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = functools.partial(open, "/dev/full", "wb", buffering=0)
    monkeypatch.setattr(files, "open", lambda path, mode, buffering: full(), raising=False)
    with pytest.raises(ArtifactError, match="No space left"):
        write(tmp_path / "x.cuvil", make())
    assert os.listdir(tmp_path) == []


def test_write_to_a_folder_or_nowhere(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for path in (tmp_path / "d", tmp_path / "absent" / "x.cuvil"):
        with pytest.raises(ArtifactError, match="could not be written"):
            write(path, make())
    assert os.listdir(tmp_path) == ["d"]


def test_extract_is_private_and_stays_inside(tmp_path: Path) -> None:
    extract(make(), tmp_path)
    assert (tmp_path / "sub/table.h").read_bytes() == b"0"
    assert (tmp_path / "lib.so").stat().st_mode & 0o077 == 0
    outside = tmp_path / "outside"
    outside.mkdir()
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "sub").symlink_to(outside)
    with pytest.raises(CuvilError, match="outside"):
        extract(make(), inside)
    assert os.listdir(outside) == []


def test_same_path_as_source_and_product() -> None:
    with pytest.raises(ArtifactError, match="given twice"):
        make(products={"top.cpp": b""})
    with pytest.raises(ArtifactError, match="both a file and a folder"):
        make(products={"sub": b""})


def test_values_without_json_form() -> None:
    with pytest.raises(ArtifactError, match="object has no canonical JSON form"):
        make(report={"x": object()})


def test_canonical_json_keeps_floats_and_refuses_depth() -> None:
    value = {"b": [1.5, float("inf"), float("-inf")], "a": (True, None, "é"), "n": float("nan")}
    back = canonical.parse(canonical.dump(value))
    assert back["b"] == [1.5, float("inf"), float("-inf")]
    assert back["a"] == [True, None, "é"]
    assert np.isnan(back["n"])
    with pytest.raises(ValueError, match="deep"):
        canonical.parse(b"[" * 100_000)


def test_build_plan_reports_what_went_wrong(tmp_path: Path) -> None:
    def command(*argv: str, timeout_s: float = 20) -> Command:
        return Command(argv, "test", "install it", timeout_s=timeout_s)

    with pytest.raises(ToolNotFound, match="no-such-tool-x"):
        BuildPlan({"a": b""}, (command("no-such-tool-x"),)).execute(tmp_path)
    assert os.listdir(tmp_path) == []
    with pytest.raises(BuildFailed, match=r"exited with 3\n.*why"):
        BuildPlan({}, (command("sh", "-c", "echo why; exit 3"),)).execute(tmp_path)
    with pytest.raises(BuildFailed, match=r"'out' was not made"):
        BuildPlan({}, (command("true"),), ("out",)).execute(tmp_path)
    started = time.monotonic()
    with pytest.raises(BuildFailed, match=r"stopped after 0\.1 s"):
        BuildPlan({}, (command("sh", "-c", "sleep 30 | cat", timeout_s=0.1),)).execute(tmp_path)
    assert time.monotonic() - started < 15, "the children of a stopped tool were waited for"
    with pytest.raises(CuvilError, match="plain relative path"):
        BuildPlan({"../x": b""}).execute(tmp_path)
    made = BuildPlan({"in": b"1"}, (command("cp", "in", "out"),), ("out",))
    assert made.execute(tmp_path) == {"out": b"1"}
    assert made.digest() != BuildPlan({"in": b"1"}, made.commands, ()).digest()
