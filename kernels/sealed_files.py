"""Container format of cache files: a header and bytes with a checksum and a key."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def packed(magic: bytes, key: str, header: dict[str, Any], data: bytes) -> bytes:
    """Pack a file: a magic line, a checksum of all that follows, a line of JSON, the data."""
    rest = json.dumps({"key": key, **header}).encode() + b"\n" + data
    return magic + hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest


def unpacked(magic: bytes, key: str, content: bytes) -> tuple[dict[str, Any], bytes] | None:
    """Return the header and data of a file; None if it is invalid or has another key."""
    start = len(magic) + 65
    rest = content[start:]
    if content[:start] != magic + hashlib.sha256(rest).hexdigest().encode() + b"\n":
        return None
    line, _, data = rest.partition(b"\n")
    header = json.loads(line)
    return (header, data) if header["key"] == key else None
