"""JSON files that are read back: each ends with a checksum of its bytes, so that a changed bit is noticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def sealed(facts: Mapping[str, Any]) -> bytes:
    """A JSON object whose last entry is a checksum of all before it."""
    return _with_checksum(json.dumps(facts).encode()[:-1])


def unsealed(content: bytes) -> dict[str, Any]:
    """What was sealed; a ValueError where a byte has changed since."""
    body = content[: -len(_with_checksum(b""))]
    if content != _with_checksum(body):
        raise ValueError("its checksum does not match")
    return dict(parsed(body + b"}"))


def _with_checksum(body: bytes) -> bytes:
    return body + b', "checksum": "' + hashlib.sha256(body).hexdigest().encode() + b'"}'


def parsed(content: bytes) -> Any:
    """What JSON says; a ValueError where it is none, or nested too deeply."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
