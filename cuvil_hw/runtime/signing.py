"""Makes keys and signs artifacts; runtime/trust.py says what a signature is of and checks it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuvil_hw.contract.files import replace
from cuvil_hw.errors import ArtifactError, CuvilError
from cuvil_hw.runtime import artifact, trailer
from cuvil_hw.runtime.trailer import MOST, ArtifactSignature
from cuvil_hw.runtime.trust import message, needs_cryptography, read_key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

MOST_RELEASE = 999_999_999


def make_keys(name: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Write a new pair of keys, NAME.key (only its owner may read it) and NAME.pub, and return the two paths.

    The private key is encrypted if CUVIL_KEY_PASSWORD is set. Raises CuvilError when one of the files is there or can't
    be written, ToolNotFound without the extra `sign`."""
    with needs_cryptography("make keys"):
        from cryptography.hazmat.primitives import serialization as s
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    private = Ed25519PrivateKey.generate()
    password = _password()
    guard = s.BestAvailableEncryption(password) if password else s.NoEncryption()
    paths = Path(f"{os.fspath(name)}.key"), Path(f"{os.fspath(name)}.pub")
    for path in paths:
        if path.exists():
            raise CuvilError(f"{path}: is there already, and a key is never overwritten; choose another name")
    texts = (
        private.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, guard),
        private.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo),
    )
    for path, text, mode in zip(paths, texts, (0o600, 0o644), strict=True):
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(fd, "wb") as f:
                f.write(text)
        except OSError as e:
            raise CuvilError(f"{path}: could not be written: {e.strerror or e}; choose another place") from e
    return paths


def sign(
    path: str | os.PathLike[str],
    key: str | os.PathLike[str],
    *,
    release: int = 0,
    output: str | os.PathLike[str] | None = None,
) -> ArtifactSignature:
    """Sign the artifact at `path` with the private key in the file `key`; the file is replaced in one step, or `output`
    is written. Signatures of other keys stay, one of the same key is replaced.

    `release`: a number that grows from one version of a model to the next (0 to 999,999,999): who loads may ask for a
    least one. Raises ArtifactError for a file that is no artifact or is damaged, CuvilError for a bad key."""
    if not 0 <= release <= MOST_RELEASE:
        raise CuvilError(f"release is {release}, expected 0 to {MOST_RELEASE:,}")
    private = _private(key)
    data = artifact.read_bytes(path)
    artifact.from_bytes(data, os.fspath(path))  # nothing is signed that could not be loaded
    ended = trailer.read(data, os.fspath(path))
    content = memoryview(data)[: ended.content]
    public = private.public_key().public_bytes_raw()
    made = ArtifactSignature(public, release, private.sign(message(content, ended.format, release)))
    kept = [s for s in ended.signatures if s.key != public]
    if len(kept) >= MOST:
        raise ArtifactError(f"{os.fspath(path)}: has {MOST} signatures, as many as an artifact may have")
    signed = trailer.end(content, f"cuvil-artifact/{ended.format}", [*kept, made])
    target = os.fspath(path if output is None else output)
    try:
        replace(target, signed, durable=True)
    except (OSError, ValueError) as e:
        raise ArtifactError(f"{target}: could not be written: {getattr(e, 'strerror', None) or e}") from e
    return made


def _private(path: str | os.PathLike[str]) -> Ed25519PrivateKey:
    with needs_cryptography("read a private key"):
        from cryptography.hazmat.primitives import serialization as s
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    origin, data = os.fspath(path), read_key(path)
    try:
        found: Any = s.load_pem_private_key(data, _password() if b"ENCRYPTED" in data else None)
    except Exception as e:  # as in _public
        raise CuvilError(
            f"{origin}: is no private key in PEM form, or $CUVIL_KEY_PASSWORD doesn't open it ({e}); "
            "`cuvil keygen` writes .key files"
        ) from e
    if not isinstance(found, Ed25519PrivateKey):
        raise CuvilError(f"{origin}: is another kind of key than Ed25519; `cuvil keygen` makes one")
    return found


def _password() -> bytes | None:
    return os.environ.get("CUVIL_KEY_PASSWORD", "").encode() or None
