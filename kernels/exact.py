"""Run the algorithms over rational numbers, for tests and for reading: every rounding is exact."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Mapping
from fractions import Fraction
from types import FunctionType
from typing import Any

from mcf.kernels.bind import Binder
from mcf.kernels.formats import Format

# A finite number is a Fraction. Infinities and NaN are Python floats, which mix with Fractions.
Number = Fraction | float


def is_finite(x: Number) -> bool:
    """Return whether x is neither an infinity nor NaN."""
    return isinstance(x, Fraction)


def exponent(x: Fraction) -> int:
    """Return floor(log2 |x|) for x other than 0."""
    n, d = abs(x.numerator), x.denominator
    e = n.bit_length() - d.bit_length()
    return e if (n << max(-e, 0)) >= (d << max(e, 0)) else e - 1


def _power_of_two(e: int) -> Fraction:
    return Fraction(1 << e) if e >= 0 else Fraction(1, 1 << -e)


@functools.cache
def rounding(fmt: Format) -> Callable[[Number], Number]:
    """Return the function that rounds x to nearest even in `fmt`, with gradual underflow.

    Overflow gives an infinity, as in IEEE 754: for |x| >= (2 - 2**-p) * 2**emax. Infinities
    and NaN are returned as they are. Zero has no sign.
    """
    largest = fmt.max

    def rn(x: Number) -> Number:
        if not isinstance(x, Fraction):
            return x
        if x == 0:
            return x
        ulp = _power_of_two(max(exponent(x), fmt.emin) - fmt.p + 1)
        # Python rounds a Fraction to the nearest integer, ties to even.
        y = round(x / ulp) * ulp
        if abs(y) > largest:
            return math.inf if y > 0 else -math.inf
        return y

    return rn


def square_root(x: Number, fmt: Format) -> Number:
    """Return sqrt(x) rounded once to `fmt`; NaN for x < 0."""
    if not isinstance(x, Fraction):
        return x if x > 0 else math.nan
    if x <= 0:
        return x if x == 0 else math.nan
    # Compute at least p + 2 bits of the root. The truncated part cannot reach a midpoint of the
    # format, so any value strictly between two neighbouring roots rounds like the exact one.
    shift = max(0, fmt.p + 2 - exponent(x) // 2)
    scaled = (x.numerator << 2 * shift) // x.denominator
    root = math.isqrt(scaled)
    exact = root * root * x.denominator == x.numerator << 2 * shift
    between = Fraction(2 * root + (not exact), 2 << shift)
    return rounding(fmt)(between)


# 32-bit words are Python integers in [-2**31, 2**31).


def _wrap(w: int) -> int:
    return (w + (1 << 31)) % (1 << 32) - (1 << 31)


def _bits(x: Number, kind: str = ">f") -> int:
    """Return the bits of a float32, or float64 (">d"), which holds a finite number exactly."""
    return int.from_bytes(struct.pack(kind, float(x)), "big", signed=True)


def _from_bits(w: int, kind: str = ">f") -> Number:
    (x,) = struct.unpack(kind, w.to_bytes(struct.calcsize(kind), "big", signed=True))
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


# 64-bit words are Python integers in [-2**63, 2**63).
LONGS: dict[str, Any] = {
    "const": lambda x: Fraction(x) if math.isfinite(x) else x,
    "whole": int,
    "bits64": functools.partial(_bits, kind=">d"),
    "from_bits64": functools.partial(_from_bits, kind=">d"),
    "long": int,
    "floating": Fraction,
    "floor": lambda x: Fraction(math.floor(x)) if is_finite(x) else x,
    "rint": lambda x: Fraction(round(x)) if is_finite(x) else x,
    "absolute": abs,
    "gather": lambda table, index: table[index],
    "invert": lambda condition: not condition,
}


def bind(
    algorithm: FunctionType,
    fmt: Format,
    *,
    register: Format | None = None,
    roundings: Mapping[str, Format] | None = None,
    slots: Mapping[str, FunctionType] | None = None,
) -> Callable[..., Any]:
    """Return an algorithm as a function of exact numbers, in which `rn` rounds correctly to `fmt`.

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
        roundings: the formats of `rc` and `rv` if they are not `fmt`.
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
    """Return the exact version of every primitive."""
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
        "signed": lambda x: x < 0,
        "fms": fms,
        "linear": lambda x, a, b: rn(x * a + b),
        "div": lambda a, b: in_register(_quotient(a, b)),
        "sqrt": lambda x: square_root(x, register or fmt),
        "where": lambda condition, a, b: a if condition else b,
        "lesser": lambda a, b: a if a < b else b,
        "greater": lambda a, b: a if a > b else b,
        "unless_payload": lambda x, rounded, quiet: rounded if x == x else quiet,
        **WORDS,
        **LONGS,
        "SPLITTER": Fraction(2 ** ((fmt.p + 1) // 2) + 1),
        "ZERO": Fraction(0),
        "ONE": Fraction(1),
        "LARGEST": roundings.get("rv", fmt).max,
        **{name: twice(to) for name, to in roundings.items()},
    }


def _same(x: Number) -> Number:
    return x


def _minus(exact: Number, c: Number) -> Number:
    # An exact product may overflow when Python converts it to a float to combine it with an
    # infinity.
    return -c if isinstance(exact, Fraction) and not isinstance(c, Fraction) else exact - c


def _quotient(a: Number, b: Number) -> Number:
    if b == 0:
        return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a)
    if isinstance(a, Fraction) and math.isinf(b):
        return Fraction(0)
    return a / b
