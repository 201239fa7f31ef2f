"""Which artifacts are trusted: Ed25519 signatures (RFC 8032) are checked before anything else of a file is read.

Keys are PEM files, as `openssl` reads and writes them: PKCS #8 for private ones, SubjectPublicKeyInfo for public ones.
What is signed is the line

    cuvil-signature/1 release:<number> cuvil-artifact/<format> sha256:<digest of the content>

so that neither a byte of the content nor the format nor the release number can be changed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from cuvil_hw.errors import ArtifactError, CuvilError, ToolNotFound, pip_install
from cuvil_hw.runtime import trailer
from cuvil_hw.runtime.trailer import ArtifactSignature

_MOST_PEM = 1 << 16

Key = str | os.PathLike[str] | bytes
"""A public key: a PEM file's path, a PEM text as bytes, or the key's own 32 bytes."""


def check(data: bytes, trust: Iterable[Key] | Key, min_release: int = 0, origin: str = "artifact") -> ArtifactSignature:
    """The signature of a trusted key with the highest release. Nothing of `data` is read but its trailer.

    Raises ArtifactError when the artifact is unsigned, damaged, signed by other keys only, or when each trusted
    signature is of another content or of a release below `min_release`; CuvilError for what is no key, ToolNotFound
    without the extra `sign`."""
    keys = public_keys(trust)
    ended = trailer.read(data, origin)
    if not ended.signatures:
        raise ArtifactError(f"{origin}: is not signed, and only artifacts signed by a trusted key may be loaded")
    mine = [s for s in ended.signatures if s.key in keys]
    if not mine:
        signers = ", ".join(name_of(s.key) for s in ended.signatures)
        raise ArtifactError(f"{origin}: signed by {signers}, none of which is trusted; get it from a trusted source")
    content = memoryview(data)[: ended.content]
    good = [s for s in mine if _valid(s, message(content, ended.format, s.release))]
    if not good:
        raise ArtifactError(
            f"{origin}: the signature of {name_of(mine[0].key)} is not of this content: the file was changed after it "
            "was signed, or the signature is from another file; get it again from its source"
        )
    best = max(good, key=lambda s: s.release)
    if best.release < min_release:
        raise ArtifactError(
            f"{origin}: is release {best.release}, and at least {min_release} is asked for: an older artifact was put "
            "in the place of a newer one, or the newer one isn't there yet"
        )
    return best


def public_keys(trust: Iterable[Key] | Key) -> set[bytes]:
    """The 32 bytes of each key. Raises CuvilError for something else, or for none."""
    given = [trust] if isinstance(trust, str | bytes | os.PathLike) else list(trust)
    if not given:
        raise CuvilError("trust is empty: give at least one public key, or leave it out to load unsigned artifacts")
    return {_public(key) for key in given}


def name_of(key: bytes) -> str:
    """How a public key is shown: ed25519:<64 hex>."""
    return f"ed25519:{key.hex()}"


def message(content: memoryview, version: int, release: int) -> bytes:
    """The line that is signed."""
    digest = hashlib.sha256(content).hexdigest()
    return f"cuvil-signature/1 release:{release} cuvil-artifact/{version} sha256:{digest}\n".encode()


def _valid(signature: ArtifactSignature, message: bytes) -> bool:
    with needs_cryptography("verify a signature"):
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    try:
        Ed25519PublicKey.from_public_bytes(signature.key).verify(signature.value, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _public(key: Key) -> bytes:
    if isinstance(key, bytes) and len(key) == 32:
        return key
    with needs_cryptography("read a public key"):
        from cryptography.hazmat.primitives import serialization as s
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    data, origin = (key, "a key given as bytes") if isinstance(key, bytes) else (read_key(key), os.fspath(key))
    if b"PRIVATE KEY" in data:
        raise CuvilError(f"{origin}: is a private key, which stays where artifacts are signed; give the .pub file")
    try:
        found: Any = s.load_pem_public_key(data)
    except Exception as e:  # the library has a class for each way in which a file may be wrong
        raise CuvilError(f"{origin}: is no public key in PEM form ({e}); `cuvil keygen` writes .pub files") from e
    if not isinstance(found, Ed25519PublicKey):
        raise CuvilError(f"{origin}: is another kind of key than Ed25519; `cuvil keygen` makes one")
    return found.public_bytes_raw()


def read_key(path: str | os.PathLike[str]) -> bytes:
    """A PEM file's content. Raises CuvilError."""
    try:
        with open(path, "rb") as f:
            return f.read(_MOST_PEM)
    except (OSError, ValueError) as e:
        why = getattr(e, "strerror", None) or e
        raise CuvilError(f"{os.fspath(path)}: the key could not be read: {why}; check the path") from e


@contextmanager
def needs_cryptography(purpose: str) -> Iterator[None]:
    """Says what to install where the package is missing. Raises ToolNotFound."""
    try:
        yield
    except ImportError as e:
        raise ToolNotFound("Python package cryptography", purpose, pip_install("sign")) from e
