"""The end of a `.cuvil` file: the archive's comment, one line a signature and then the digest of all bytes before it.

    cuvil-signature/1 ed25519 key:<64 hex> release:<number> sig:<128 hex>      any number up to MOST, or none
    cuvil-artifact/1 sha256:<64 hex>

What is signed is everything but this comment and its length (the two bytes before it): the content. A signature can
therefore be added or taken away without touching another, and all of it is read with one pattern, before any archive,
JSON or IR is looked at.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from cuvil_hw.errors import ArtifactError

MOST = 16
HEX = 64  # digits of the digest that ends the file
_SIGNATURE = rb"cuvil-signature/1 ed25519 key:([0-9a-f]{64}) release:(0|[1-9][0-9]{0,8}) sig:([0-9a-f]{128})\n"
_LINE = re.compile(_SIGNATURE)
_BARE = re.sub(rb"\((?!\?)", rb"(?:", _SIGNATURE)
_COMMENT = re.compile(rb"((?:%b){0,%d})cuvil-artifact/([0-9]{1,9}) sha256:([0-9a-f]{64})\Z" % (_BARE, MOST))
_LONGEST = 8192
_END = b"PK\x05\x06"  # of the archive's last record, whose last two bytes are the comment's length
_END_BYTES = 22


@dataclass(frozen=True, slots=True)
class ArtifactSignature:
    """`key`: the public key's 32 bytes; `release`: the number that the signer gave this artifact; `value`: 64 bytes."""

    key: bytes
    release: int
    value: bytes

    def line(self) -> bytes:
        return b"cuvil-signature/1 ed25519 key:%b release:%d sig:%b\n" % (
            self.key.hex().encode(),
            self.release,
            self.value.hex().encode(),
        )


@dataclass(frozen=True, slots=True)
class Trailer:
    """`content`: number of bytes before the comment's length; `format`: the artifact's format version."""

    content: int
    format: int
    signatures: tuple[ArtifactSignature, ...]


def read(data: bytes, origin: str) -> Trailer:
    """The end of an artifact, its digest compared with all bytes before. Raises ArtifactError; `origin` names the
    data."""
    match = _COMMENT.search(data[-_LONGEST:])
    if match is None:
        why = "not a Cuvil artifact, or its start is damaged"
        if data.startswith(b"PK\x03\x04"):
            why = "cut off, appended to, or another kind of zip archive"
        raise ArtifactError(f"{origin}: does not end with an artifact's digest ({why}); copy it again or recompile")
    if hashlib.sha256(memoryview(data)[:-HEX]).hexdigest() != match[3].decode():
        raise ArtifactError(f"{origin}: damaged, its SHA-256 does not match its content; copy it again or recompile")
    comment = match[0]
    content = len(data) - len(comment) - 2
    if data[content + 2 - _END_BYTES :][:4] != _END or int.from_bytes(data[content : content + 2], "little") != len(
        comment
    ):
        raise ArtifactError(
            f"{origin}: the archive's comment has other text than signatures of version 1, at most {MOST}; "
            "upgrade cuvil-hw if a newer one signed it, else get the file again"
        )
    lines = _LINE.findall(match[1])
    signatures = tuple(
        ArtifactSignature(bytes.fromhex(k.decode()), int(r), bytes.fromhex(s.decode())) for k, r, s in lines
    )
    return Trailer(content, int(match[2]), signatures)


def end(content: bytes | memoryview, format_line: str, signatures: Iterable[ArtifactSignature] = ()) -> bytes:
    """A whole file from the bytes before the comment's length: the inverse of `read`."""
    lines = b"".join(s.line() for s in signatures)
    head = lines + f"{format_line} sha256:".encode()
    body = b"".join((content, (len(head) + HEX).to_bytes(2, "little"), head))
    return body + hashlib.sha256(body).hexdigest().encode()
