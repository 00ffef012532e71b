"""Bind the algorithms over rational numbers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from types import FunctionType
from typing import Any

from mcf.kernels.bind import Binder
from mcf.kernels.exact.rounding import Number, rounding, square_root
from mcf.kernels.exact.words import WORDS
from mcf.kernels.formats import Format


def bind(
    algorithm: FunctionType,
    fmt: Format,
    *,
    register: Format | None = None,
    roundings: Mapping[str, Format] | None = None,
    slots: Mapping[str, FunctionType] | None = None,
) -> Callable[..., Any]:
    """An algorithm as a function of exact numbers, in which each `rn` rounds correctly to `fmt`.

    Numbers are Fractions, which the caller has rounded to the formats they are stored in;
    infinities and NaN are Python floats. Zero has no sign, so signs of zeros, and of infinities
    from a division by zero, are not modelled.

    Args:
        algorithm: a function over the names of `mcf.kernels.algorithms.primitives`.
        fmt: the format of the arithmetic, real or a toy.
        register: None for the arithmetic of the theorems: every operation is rounded once, to
            `fmt`. A format models the executors, which compute each operation in registers of that
            format and then round to `fmt`: float32 for bf16 and fp16 (`Format.register`). The two
            agree where all operands are numbers of `fmt` and nothing overflows
            (tests/kernels/test_rounding.py); a float32 scalar among them may be rounded twice.
        roundings: the formats of `rc` and `rv` where they are not `fmt`.
        slots: algorithms for the names that `algorithm` leaves open.

    Returns:
        The function; its positional arguments and its results are those of `algorithm`.
    """
    formats = {"rc": fmt, "rv": fmt, **(roundings or {})}
    binder = _binder(fmt, register, tuple(formats.items()), tuple((slots or {}).items()))
    bound: Callable[..., Any] = binder(algorithm)
    return bound


@functools.cache
def _binder(fmt: Format, register: Format | None, roundings: Any, slots: Any) -> Binder:
    return Binder(lambda f: f, primitives(fmt, register, dict(roundings)), dict(slots))


def primitives(
    fmt: Format, register: Format | None, roundings: Mapping[str, Format]
) -> dict[str, Any]:
    """The exact version of every primitive."""
    in_register = rounding(register) if register is not None else _same

    def twice(to: Format) -> Callable[[Number], Number]:
        rn = rounding(to)
        return rn if register in (None, to) else lambda x: rn(in_register(x))

    rn = twice(fmt)

    def fms(a: Number, b: Number, c: Number) -> Number:
        if register in (None, fmt):
            return rn(_minus(a * b, c))
        return rn(_minus(in_register(a * b), c))

    return {
        "rn": rn,
        "rx": rn if register is None else in_register,
        "neg": lambda x: -x,
        "fms": fms,
        "div": lambda a, b: in_register(_quotient(a, b)),
        "sqrt": lambda x: square_root(x, register or fmt),
        "where": lambda condition, a, b: a if condition else b,
        **WORDS,
        "SPLITTER": Fraction(2 ** ((fmt.p + 1) // 2) + 1),
        "ZERO": Fraction(0),
        "ONE": Fraction(1),
        "LARGEST": roundings.get("rv", fmt).max,
        **{name: twice(to) for name, to in roundings.items()},
    }


def _same(x: Number) -> Number:
    return x


def _minus(exact: Number, c: Number) -> Number:
    # An exact product may be too large for the float that a Fraction becomes beside an infinity.
    return -c if isinstance(exact, Fraction) and not isinstance(c, Fraction) else exact - c


def _quotient(a: Number, b: Number) -> Number:
    if b == 0:
        return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a)
    if isinstance(a, Fraction) and math.isinf(b):
        return Fraction(0)
    return a / b
