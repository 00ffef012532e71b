"""What users give as a number: Python's, decimal strings, Fraction, Decimal, mpmath's, NumPy's."""

from __future__ import annotations

import decimal
import json
import math
import operator
import re
from fractions import Fraction
from typing import Any

import numpy as np

# Decimal exponents beyond every format, above and below: such numbers are not expanded into digits.
_HUGE, _TINY = 400, -1300
# What stands for them: finite and not zero, so that they compare right, and rounded to inf and 0.
_BEYOND, _BENEATH = Fraction(2) ** 10000, Fraction(1, 2**10000)


def beyond(value: int | float | Fraction) -> bool:
    """Whether a number from `exact` is larger than those of every format, and perhaps inexact."""
    return isinstance(value, Fraction) and abs(value) >= 10**_HUGE


def exact(value: Any) -> int | float | Fraction:
    """A number exactly; infinities, NaN and -0 as floats.

    Decimal and binary exponents far beyond every format give a huge or tiny number in its place.

    Args:
        value: int, float, Fraction, Decimal, a string ("0.1", "1e-400", "1/3", "inf", "0x1.8p3"),
            an mpmath real, a NumPy scalar (longdouble too).

    Raises:
        TypeError: for anything else; ValueError: for a string that is no number.
    """
    if isinstance(value, (bool, int, float, Fraction)):
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, decimal.Decimal):
        return _decimal(value)
    if isinstance(value, np.bool_ | np.integer):
        return int(value)
    if isinstance(value, np.longdouble):
        return _longdouble(value)
    if isinstance(value, np.floating):
        return float(value)
    if hasattr(value, "_mpf_"):
        return _mpf(value._mpf_)
    if hasattr(value, "_mpc_") or isinstance(value, (complex, np.complexfloating)):
        raise TypeError(f"data must be real numbers, got the complex number {value!r}")
    if hasattr(value, "__index__") and not hasattr(value, "detach"):
        return operator.index(value)
    raise TypeError(
        "data must be numbers, decimal strings, Fraction, Decimal, mpmath or NumPy numbers, "
        f"tensors, or nested lists of them, got {type(value).__name__}"
    )


def _text(text: str) -> float | Fraction:
    plain = text.strip().replace("_", "")
    lowered = plain.lower().lstrip("+-")
    if lowered in ("inf", "infinity", "nan"):
        return float(plain)
    sign = -1.0 if plain.startswith("-") else 1.0
    try:
        if lowered.startswith("0x"):
            value = _hexadecimal(plain)
        elif "/" in plain:
            value = Fraction(plain)
        else:
            return _decimal(decimal.Decimal(_clipped(plain)))
    except (decimal.InvalidOperation, ValueError, ZeroDivisionError):
        raise ValueError(
            f"data has the string {text!r}; allowed are decimal numbers such as '-1.5e-3', "
            "fractions '1/3', hexadecimal '0x1.8p3', 'inf' and 'nan'"
        ) from None
    return value if value else math.copysign(0.0, sign)


def _clipped(text: str) -> str:
    """The decimal string with an exponent that `Decimal` can hold; far beyond every format."""
    match = re.fullmatch(r"(.*)[eE]([+-]?\d{7,})", text)
    return text if match is None else f"{match[1]}e{'-' if match[2][0] == '-' else ''}999999999"


def _hexadecimal(text: str) -> Fraction:
    match = re.fullmatch(r"([+-]?)0[xX]([0-9a-fA-F]*)\.?([0-9a-fA-F]*)(?:[pP]([+-]?\d+))?", text)
    if match is None or not match[2] + match[3]:
        raise ValueError(text)
    exponent = int(match[4] or 0) - 4 * len(match[3])
    value = Fraction(int(match[2] + match[3], 16)) * Fraction(2) ** max(-9999, min(9999, exponent))
    return -value if match[1] == "-" else value


def _decimal(value: decimal.Decimal) -> float | Fraction:
    sign = -1.0 if value.is_signed() else 1.0
    if value.is_nan():
        return math.nan
    if value.is_infinite():
        return sign * math.inf
    if not value:
        return sign * 0.0
    if not _TINY <= value.adjusted() <= _HUGE:
        return int(sign) * (_BEYOND if value.adjusted() > 0 else _BENEATH)
    return Fraction(value)


def _mpf(parts: tuple[int, int, int, int]) -> float | Fraction:
    sign, mantissa, exponent, bits = parts
    if not mantissa:
        # mpmath's infinities and NaN have no mantissa and these exponents.
        return {0: 0.0, -456: math.inf, -789: -math.inf}.get(exponent, math.nan)
    if not 4 * _TINY <= exponent + bits <= 4 * _HUGE:
        outside = _BEYOND if exponent + bits > 0 else _BENEATH
        return -outside if sign else outside
    value = Fraction(int(mantissa)) * Fraction(2) ** exponent
    return -value if sign else value


def _longdouble(value: np.longdouble) -> float | Fraction:
    if value == 0 or not np.isfinite(value):
        return float(value)
    mantissa, exponent = np.frexp(value)
    # 2**64 holds the mantissa of x87's format; platforms with more bits take a second part.
    high = int(mantissa * np.longdouble(2.0**64))
    low = (mantissa * np.longdouble(2.0**64) - np.longdouble(high)) * np.longdouble(2.0**64)
    if not -3000 <= int(exponent) <= 2000:
        return (1 if mantissa > 0 else -1) * (_BEYOND if exponent > 0 else _BENEATH)
    return (Fraction(high) + Fraction(int(low), 2**64)) * Fraction(2) ** (int(exponent) - 64)


def printed(text: str) -> Any:
    """The nested lists of strings in a printed tensor, `[[1.5, 2], [inf, 0.1]]`."""
    try:
        return json.loads(re.sub(r"[^\[\],\s]+", r'"\g<0>"', text))
    except json.JSONDecodeError:
        raise ValueError(f"data has the string {text!r}; its brackets are not a list") from None


def flatten(data: Any) -> tuple[tuple[int, ...], list[Any]]:
    """Shape and elements of nested lists or tuples.

    Raises:
        ValueError: where lists of one level differ in length.
    """
    if not isinstance(data, (list, tuple)):
        return (), [data]
    parts = [flatten(item) for item in data]
    shapes = {shape for shape, _ in parts}
    if len(shapes) > 1:
        raise ValueError(f"data has nested lists of different shapes: {sorted(shapes)}")
    inner = shapes.pop() if shapes else ()
    return (len(parts), *inner), [leaf for _, leaves in parts for leaf in leaves]
