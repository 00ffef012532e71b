"""Words over Python's integers, kept in [-2**31, 2**31)."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from mcf.kernels.exact.rounding import Number


def _wrap(w: int) -> int:
    return (w + (1 << 31)) % (1 << 32) - (1 << 31)


def _bits(x: Number) -> int:
    # A finite number is one of float32 and so is the float.
    return int.from_bytes(struct.pack(">f", float(x)), "big", signed=True)


def _from_bits(w: int) -> Number:
    (x,) = struct.unpack(">f", w.to_bytes(4, "big", signed=True))
    return Fraction(x) if math.isfinite(x) else x


def _wrapped(operation: Callable[[int, int], int]) -> Callable[[int, int], int]:
    return lambda a, b: _wrap(operation(a, b))


WORDS: dict[str, Any] = {
    "bits": _bits,
    "from_bits": _from_bits,
    "word": int,
    "number": Fraction,
    "wadd": _wrapped(lambda a, b: a + b),
    "wsub": _wrapped(lambda a, b: a - b),
    "wmul": _wrapped(lambda a, b: a * b),
    "wand": _wrapped(lambda a, b: a & b),
    "wor": _wrapped(lambda a, b: a | b),
    "wxor": _wrapped(lambda a, b: a ^ b),
    "wshl": _wrapped(lambda a, count: a << count),
    "wshr": _wrapped(lambda a, count: (a % (1 << 32)) >> count),
    "wsar": _wrapped(lambda a, count: a >> count),
}
