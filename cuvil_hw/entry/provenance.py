"""Where an artifact came from, in the forms that other tools read: an in-toto statement with SLSA v1 provenance, and a
CycloneDX 1.6 bill of materials. Both are made of the lock of the compilation (entry/lock.py)."""

from __future__ import annotations

import datetime
import hashlib
import os
import re
import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from cuvil_hw.errors import CuvilError
from cuvil_hw.version import VERSION

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:cuvil-hw:compile:1"
LOCAL = "urn:cuvil-hw:builder:local"  # somebody's machine: it promises nothing
_NAMES = uuid.UUID("c2f7a1d0-6f0c-5b0e-9a40-6d1f6a3b6f10")  # of bills of materials, made up once
_NOT_PYPI = ("python", "cc")


def statement(
    lock: Mapping[str, Any], name: str, artifact: bytes, *, builder: str = LOCAL, started: str = ""
) -> dict[str, Any]:
    """The in-toto statement (v1) of an artifact's file. `builder`: a URI that names who compiled, as SLSA has it;
    `started`: RFC 3339. Raises CuvilError for a builder that is no URI."""
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:\S+\Z", builder):
        raise CuvilError(f"builder is {builder!r}, expected a URI that names who compiles, such as {LOCAL}")
    finished = now()
    return {
        "_type": STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": hashlib.sha256(artifact).hexdigest()}}],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "model": lock["model"]["file"],
                    "target": lock["target"]["name"],
                    "options": lock["options"],
                },
                "internalParameters": {"profileSha256": lock["target"]["sha256"]},
                "resolvedDependencies": [*_inputs(lock), *_tools(lock)],
            },
            "runDetails": {
                "builder": {"id": builder, "version": {"cuvil-hw": VERSION}},
                "metadata": {"startedOn": started or finished, "finishedOn": finished},
            },
        },
    }


def bill_of_materials(lock: Mapping[str, Any], name: str, artifact: bytes) -> dict[str, Any]:
    """The CycloneDX 1.6 document of an artifact's file. What only compiled it has the scope "excluded": it isn't in the
    artifact. Equal compilations give equal documents where SOURCE_DATE_EPOCH is set."""
    digest = hashlib.sha256(artifact).hexdigest()
    own = {"type": "library", "name": "cuvil-hw", "version": VERSION, "bom-ref": f"pkg:pypi/cuvil-hw@{VERSION}"}
    parts: list[dict[str, Any]] = [
        {
            "type": "machine-learning-model",
            "bom-ref": "model",
            "name": lock["model"]["file"],
            "scope": "required",
            "hashes": _hashes(lock["model"]["sha256"]),
        }
    ]
    parts += [
        {"type": "data", "bom-ref": f"data:{n}", "name": n, "scope": "excluded", "hashes": _hashes(sha256)}
        for n, sha256 in sorted(lock["data"].items())
    ]
    for tool, version in sorted(lock["tools"].items()):
        if tool != "cuvil-hw":
            part = {"type": "library", "name": tool, "version": version, "scope": "excluded"}
            known = {} if tool in _NOT_PYPI else {"purl": _purl(tool, version)}
            parts.append({**part, **known, "bom-ref": known.get("purl", f"tool:{tool}")})
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMES, digest)}",
        "version": 1,
        "metadata": {
            "timestamp": now(),
            "tools": {"components": [own]},
            "component": {"type": "application", "bom-ref": "artifact", "name": name, "hashes": _hashes(digest)},
        },
        "components": parts,
        "dependencies": [
            {"ref": "artifact", "dependsOn": ["model"]},
            {"ref": "model", "dependsOn": [p["bom-ref"] for p in parts if p["type"] == "data"]},
        ],
    }


def now() -> str:
    """RFC 3339 in UTC; the time of SOURCE_DATE_EPOCH if that is set. Raises CuvilError where it is no number."""
    given = os.environ.get("SOURCE_DATE_EPOCH", "")
    try:
        seconds = int(given) if given else None
        zone = datetime.timezone.utc
        at = datetime.datetime.now(zone) if seconds is None else datetime.datetime.fromtimestamp(seconds, zone)
    except (ValueError, OverflowError, OSError) as e:
        raise CuvilError(f"SOURCE_DATE_EPOCH is {given!r}, expected seconds since 1970") from e
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def _inputs(lock: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = [{"name": lock["model"]["file"], "digest": {"sha256": lock["model"]["sha256"]}}]
    return found + [{"name": n, "digest": {"sha256": sha256}} for n, sha256 in sorted(lock["data"].items())]


def _tools(lock: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name, said in sorted(lock["tools"].items()):
        version, _, digest = said.partition(" sha256:")
        uri = f"pkg:generic/{name}@{quote(version, safe='')}" if name in _NOT_PYPI else _purl(name, version)
        found.append({"name": name, "uri": uri} | ({"digest": {"sha256": digest}} if digest else {}))
    return found


def _purl(name: str, version: str) -> str:
    return f"pkg:pypi/{name.lower().replace('_', '-')}@{quote(version, safe='')}"


def _hashes(sha256: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": sha256}]
