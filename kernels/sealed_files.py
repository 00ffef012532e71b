"""Pack a header and bytes of a cache file under a checksum and a key."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def packed(magic: bytes, key: str, header: dict[str, Any], data: bytes) -> bytes:
    """A file's content: a line of magic, a checksum of all the rest, a line of JSON, the data."""
    rest = json.dumps({"key": key, **header}).encode() + b"\n" + data
    return magic + hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest


def unpacked(magic: bytes, key: str, content: bytes) -> tuple[dict[str, Any], bytes] | None:
    """The header and data that `packed` was given; None of anything else, and of another key's."""
    start = len(magic) + 65
    rest = content[start:]
    if content[:start] != magic + hashlib.sha256(rest).hexdigest().encode() + b"\n":
        return None
    line, _, data = rest.partition(b"\n")
    header = json.loads(line)
    return (header, data) if header["key"] == key else None
