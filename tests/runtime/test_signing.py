"""Signed artifacts: what no trusted key signed is refused before anything of it is parsed, whatever was done to it."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

import cuvil
from cuvil_hw.cli.main import main
from cuvil_hw.contract import canonical
from cuvil_hw.contract.device import Port
from cuvil_hw.errors import ArtifactError, CuvilError
from cuvil_hw.runtime import artifact as container
from cuvil_hw.runtime import trailer
from cuvil_hw.runtime.host import HostProgram
from cuvil_hw.runtime.manifest import Manifest
from cuvil_hw.runtime.signing import make_keys, sign
from cuvil_hw.runtime.trust import check, name_of, public_keys

PORTS = (Port("x", (1, 2), "f32"),)
AS_IS = HostProgram((), ("x",), ("x",))
MANIFEST = Manifest("m", "cpu", {}, PORTS, PORTS, PORTS, PORTS, AS_IS, AS_IS, "null")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A path without .key and .pub for each of two pairs of keys."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("ours", "foreign"):
        make_keys(folder / name)
    return {name: folder / name for name in ("ours", "foreign")}


def of(path: Path, ending: str) -> Path:
    return path.with_suffix(f".{ending}")


def plain(folder: Path, text: str = "module {}", name: str = "m.cuvil") -> Path:
    made = container.assemble(
        MANIFEST, level1=text, report={}, constants={"w": np.arange(3)}, sources={"a.c": b"int a;"}, products={}
    )
    container.write(folder / name, made)
    return folder / name


def signed(folder: Path, key: Path, release: int = 7, text: str = "module {}", name: str = "m.cuvil") -> Path:
    path = plain(folder, text, name)
    sign(path, of(key, "key"), release=release)
    return path


def resealed(data: bytes) -> bytes:
    """With the digest that a changed file would need, which anybody can compute."""
    return data[:-64] + hashlib.sha256(data[:-64]).hexdigest().encode()


def test_from_keys_to_a_checked_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, name = str(plain(tmp_path)), str(tmp_path / "release")
    assert main(["keygen", name]) == 0
    assert main(["sign", path, "--key", f"{name}.key", "--release", "7"]) == 0
    capsys.readouterr()
    assert main(["verify", path, "--signed-by", f"{name}.pub", "--min-release", "7", "--json"]) == 0
    shown = capsys.readouterr().out
    assert '"release": 7' in shown
    assert name_of(next(iter(public_keys(f"{name}.pub")))) in shown
    assert main(["verify", path, "--signed-by", f"{name}.pub", "--min-release", "8"]) == 1
    assert "release 7, and at least 8" in capsys.readouterr().err
    with cuvil.load(path, "null", trust=[f"{name}.pub"], min_release=7) as program:
        assert program.name == "m"
    with zipfile.ZipFile(path) as archive:  # still one that any tool lists
        assert archive.testzip() is None


def test_unsigned_foreign_and_older_ones_are_refused(tmp_path: Path, keys: dict[str, Path]) -> None:
    trust = [of(keys["ours"], "pub")]
    for path, why in (
        (plain(tmp_path, name="unsigned.cuvil"), "is not signed"),
        (signed(tmp_path, keys["foreign"], name="foreign.cuvil"), "none of which is trusted"),
        (signed(tmp_path, keys["ours"], 6, name="older.cuvil"), "release 6, and at least 7"),
    ):
        with pytest.raises(ArtifactError, match=why):
            cuvil.load(path, trust=trust, min_release=7)
        with cuvil.load(path, "null"):  # without trust, it is the caller's own business
            pass


def test_nothing_is_parsed_before_the_signature_is_checked(
    tmp_path: Path, keys: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = signed(tmp_path, keys["foreign"])

    def parsed(*_: object, **__: object) -> None:
        raise AssertionError("the file was parsed")

    monkeypatch.setattr(zipfile, "ZipFile", parsed)
    monkeypatch.setattr(canonical, "parse", parsed)
    with pytest.raises(ArtifactError, match="none of which is trusted"):
        cuvil.load(path, trust=of(keys["ours"], "pub"))
    with pytest.raises(AssertionError, match="was parsed"):
        cuvil.load(path, trust=of(keys["foreign"], "pub"))


def test_a_byte_changed_anywhere_is_refused(tmp_path: Path, keys: dict[str, Path]) -> None:
    data = signed(tmp_path, keys["ours"]).read_bytes()
    trust = public_keys(of(keys["ours"], "pub"))
    assert check(data, trust).release == 7
    ends = trailer.read(data, "m").content
    # Every byte of the trailer, and an even share of the content's; the digest made right again.
    for at in [*range(0, ends, 13), *range(ends, len(data) - 64)]:
        changed = bytearray(data)
        changed[at] ^= 1
        with pytest.raises(ArtifactError):
            check(resealed(bytes(changed)), trust)


def stripped(data: bytes, other: bytes) -> bytes:
    return trailer.end(data[: trailer.read(data, "m").content], "cuvil-artifact/1")


def transplanted(data: bytes, other: bytes) -> bytes:
    ended = trailer.read(other, "m")
    return trailer.end(data[: trailer.read(data, "m").content], "cuvil-artifact/1", ended.signatures)


def of_another_format(data: bytes, other: bytes) -> bytes:
    return resealed(data.replace(b"cuvil-artifact/1 ", b"cuvil-artifact/0 "))


def of_another_release(data: bytes, other: bytes) -> bytes:
    return resealed(data.replace(b"release:7", b"release:9"))


def of_an_older_scheme(data: bytes, other: bytes) -> bytes:
    return resealed(data.replace(b"cuvil-signature/1 ", b"cuvil-signature/0 "))


def under_another_name(data: bytes, other: bytes) -> bytes:
    """Our key's name before a signature of the foreign key."""
    ended = trailer.read(data, "m")
    (ours,), (theirs,) = ended.signatures, trailer.read(other, "m").signatures
    return trailer.end(
        other[: trailer.read(other, "m").content],
        "cuvil-artifact/1",
        [trailer.ArtifactSignature(ours.key, 7, theirs.value)],
    )


@pytest.mark.parametrize(
    "attack",
    [stripped, transplanted, of_another_format, of_another_release, of_an_older_scheme, under_another_name],
)
def test_what_an_attacker_can_do_without_our_key(
    attack: Callable[[bytes, bytes], bytes], tmp_path: Path, keys: dict[str, Path]
) -> None:
    """`other`: of another content, signed by the foreign key under `under_another_name`, else by ours."""
    by = keys["foreign" if attack is under_another_name else "ours"]
    data = signed(tmp_path, keys["ours"]).read_bytes()
    other = signed(tmp_path, by, text="module { }", name="other.cuvil").read_bytes()
    made = attack(data, other)
    (tmp_path / "made.cuvil").write_bytes(made)
    assert made not in (data, other)
    with pytest.raises(ArtifactError):
        cuvil.load(tmp_path / "made.cuvil", "null", trust=of(keys["ours"], "pub"))


@pytest.mark.needs("openssl")
def test_openssl_finds_the_signature_right(tmp_path: Path, keys: dict[str, Path]) -> None:
    data = signed(tmp_path, keys["ours"]).read_bytes()
    ended = trailer.read(data, "m")
    digest = hashlib.sha256(data[: ended.content]).hexdigest()
    (tmp_path / "sig").write_bytes(ended.signatures[0].value)
    for release, status in ((7, 0), (8, 1)):
        line = f"cuvil-signature/1 release:{release} cuvil-artifact/1 sha256:{digest}\n"
        (tmp_path / "line").write_text(line, encoding="ascii")
        command = ["openssl", "pkeyutl", "-verify", "-rawin", "-pubin", "-inkey", str(of(keys["ours"], "pub"))]
        files = ["-in", str(tmp_path / "line"), "-sigfile", str(tmp_path / "sig")]
        done = subprocess.run([*command, *files], capture_output=True, check=False)
        assert done.returncode == status, done.stderr


def test_several_keys_sign_one_artifact(tmp_path: Path, keys: dict[str, Path]) -> None:
    unsigned = plain(tmp_path).read_bytes()
    path = signed(tmp_path, keys["ours"], 3)
    sign(path, of(keys["foreign"], "key"), release=4)
    sign(path, of(keys["ours"], "key"), release=5)  # replaces release 3
    data = path.read_bytes()
    assert sorted(s.release for s in trailer.read(data, "m").signatures) == [4, 5]
    ours, theirs = (of(keys[n], "pub") for n in ("ours", "foreign"))
    assert [check(data, k).release for k in (ours, [theirs], [ours, theirs])] == [5, 4, 5]
    assert data.startswith(unsigned[: trailer.read(unsigned, "m").content])
    with cuvil.load(path, "null") as program:  # saving writes what was loaded, and nobody signed that
        program.save(tmp_path / "again.cuvil")
    assert (tmp_path / "again.cuvil").read_bytes() == unsigned


def test_a_private_key_is_for_its_owner(tmp_path: Path, keys: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    assert stat.S_IMODE(of(keys["ours"], "key").stat().st_mode) == 0o600
    with pytest.raises(CuvilError, match="never overwritten"):
        make_keys(keys["ours"])
    monkeypatch.setenv("CUVIL_KEY_PASSWORD", "open sesame")
    private, public = make_keys(tmp_path / "locked")
    assert b"ENCRYPTED" in private.read_bytes()
    path = plain(tmp_path)
    sign(path, private)
    assert check(path.read_bytes(), public).release == 0
    for password in ("", "wrong"):
        monkeypatch.setenv("CUVIL_KEY_PASSWORD", password)
        with pytest.raises(CuvilError, match="CUVIL_KEY_PASSWORD"):
            sign(path, private)


def test_what_is_no_key_or_no_artifact(tmp_path: Path, keys: dict[str, Path]) -> None:
    other = generate_private_key(SECP256R1())
    pem = other.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    for key, why in (
        (of(keys["ours"], "key"), "is a private key"),
        (pem, "another kind of key"),
        (b"nothing", "no public key in PEM form"),
        (tmp_path / "absent.pub", "could not be read"),
        ([], "trust is empty"),
    ):
        with pytest.raises(CuvilError, match=why):
            cuvil.load(plain(tmp_path), "null", trust=key)
    with pytest.raises(CuvilError, match="give trust"):
        cuvil.load(plain(tmp_path), "null", min_release=1)
    damaged = bytearray(plain(tmp_path).read_bytes())
    damaged[100] ^= 1
    (tmp_path / "m.cuvil").write_bytes(damaged)
    with pytest.raises(ArtifactError, match="damaged"):
        sign(tmp_path / "m.cuvil", of(keys["ours"], "key"))
    with pytest.raises(CuvilError, match="is no private key"):
        sign(plain(tmp_path), of(keys["ours"], "pub"))
    with pytest.raises(CuvilError, match="expected 0 to"):
        sign(plain(tmp_path), of(keys["ours"], "key"), release=-1)


def test_commands_refuse_before_they_run(
    tmp_path: Path, keys: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(signed(tmp_path, keys["foreign"]))
    np.save(tmp_path / "x.npy", np.zeros((1, 2), np.float32))
    x = ["-i", os.fspath(tmp_path / "x.npy"), "--interface", "null"]
    for command in (["run", path, *x], ["test", path, *x, "--expect", str(tmp_path / "x.npy")]):
        assert main([*command, "--signed-by", str(of(keys["ours"], "pub"))]) == 1
        assert "none of which is trusted" in capsys.readouterr().err
        assert main(["run", path, *x, "--signed-by", str(of(keys["foreign"], "pub"))]) == 0
        capsys.readouterr()
