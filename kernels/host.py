"""The algorithms on Python's own floats, for the few numbers that a host computes with."""

from __future__ import annotations

import functools
import math
from types import FunctionType
from typing import Any

from mcf.kernels.bind import Binder

_SPLITTER = 2.0**27 + 1


def _same(x: float) -> float:
    return x


def _div(a: float, b: float) -> float:
    """The quotient as IEEE 754 has it, also by zero."""
    if b == 0:
        if a == 0 or a != a:
            return math.nan
        return math.copysign(math.inf, a) * math.copysign(1.0, b)
    return a / b


def _sqrt(x: float) -> float:
    return math.sqrt(x) if x >= 0 else math.nan


def _fms(a: float, b: float, c: float) -> float:
    """RN(a * b - c) where c = RN(a * b), by Dekker's product; far from overflow and underflow."""
    t, s = _SPLITTER * a, _SPLITTER * b
    ah, bh = t - (t - a), s - (s - b)
    al, bl = a - ah, b - bh
    return al * bl - (((c - ah * bh) - al * bh) - ah * bl)


def _where(condition: bool, a: Any, b: Any) -> Any:
    return a if condition else b


def divided(x: float, size: float, inverse: float) -> tuple[float, float]:
    """`powers.divided`, which is exact, in Python's words."""
    q = x // size
    return q, x - q * size


# What steps ask for again and again; see `powers.power`.
_KEPT = ("small_power", "large_power", "raised")


def wrap(function: FunctionType) -> Any:
    """A bound function, which keeps its results where it is asked for them again."""
    return functools.lru_cache(4096)(function) if function.__name__ in _KEPT else function


PRIMITIVES: dict[str, Any] = {
    "rn": _same,
    "rc": _same,
    "rx": _same,
    "fms": _fms,
    "div": _div,
    "sqrt": _sqrt,
    "where": _where,
    "neg": lambda x: -x,
    "ZERO": 0.0,
    "ONE": 1.0,
}

bind = Binder(wrap, PRIMITIVES, {"divided": divided})
