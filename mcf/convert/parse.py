"""Parse numbers: Python's, decimal strings, Fraction, Decimal, mpmath's and NumPy's."""

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
# Decimals beyond these are far below the last place of every format: one sticky digit replaces
# them.
_DECIMALS = 4000
DIMENSIONS = 128
# Substitutes for huge and tiny numbers: finite and not zero, so that they compare correctly, and
# round to inf and 0.
_BEYOND, _BENEATH = Fraction(2) ** 10000, Fraction(1, 2**10000)


def beyond(value: int | float | Fraction) -> bool:
    """Return whether a number from `exact` exceeds every format, so that it may be inexact."""
    return isinstance(value, Fraction) and abs(value) >= 10**_HUGE


def cut(value: int | float | Fraction) -> bool:
    """Return whether a number has so many digits that `exact` may have truncated it."""
    return isinstance(value, Fraction) and value.denominator.bit_length() > 3 * _DECIMALS


def exact(value: Any) -> int | float | Fraction:
    """Return a number exactly; infinities, NaN and -0 as floats.

    Decimal and binary exponents far beyond every format give a huge or tiny number instead, and one
    sticky digit replaces decimals beyond the 4000th. The replacement is on the same side of every
    number of a format, and of every midpoint of two. So conversion and comparison are exact, and
    take time proportional to the number of digits.

    Args:
        value: int, float, Fraction, Decimal, a string ("0.1", "1e-400", "1/3", "inf", "0x1.8p3"),
            an mpmath real, a NumPy scalar (longdouble too).

    Raises:
        TypeError: for any other type.
        ValueError: for a string that is not a number.
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
        return _mpf(_constant(value) or value._mpf_)
    if hasattr(value, "_mpc_") or isinstance(value, (complex, np.complexfloating)):
        raise TypeError(f"data must be real numbers, got the complex number {value!r}")
    if hasattr(value, "__index__") and not hasattr(value, "detach"):
        return operator.index(value)
    raise TypeError(
        "data must be numbers, decimal strings, Fraction, Decimal, mpmath or NumPy numbers, "
        f"tensors, or nested lists of them, got {type(value).__name__}"
    )


# Underscores may stand only between digits, as in Python's numbers.
_STRAY = re.compile(r"(?<!\d)_|_(?!\d)")
_STRAY_HEXADECIMAL = re.compile(r"(?<![\da-fA-FxX])_|_(?![\da-fA-F])")


def _text(text: str) -> float | Fraction:
    plain = text.strip()
    stray = _STRAY_HEXADECIMAL if "x" in plain[:3].lower() else _STRAY
    if stray.search(plain):
        raise _no_number(text)
    plain = plain.replace("_", "")
    lowered = plain.lower().lstrip("+-")
    if lowered in ("inf", "infinity", "nan"):
        if len(plain) - len(lowered) > 1:
            raise _no_number(text)
        return float(plain)
    sign = -1.0 if plain.startswith("-") else 1.0
    try:
        if lowered.startswith("0x"):
            value: int | float | Fraction = _hexadecimal(plain)
        elif "/" in plain:
            value = _quotient(plain)
        else:
            number = decimal.Decimal(_clipped(plain))
            if number.is_nan():
                # Refuse payloads and signaling NaNs, as `float` does.
                raise ValueError(text)
            return _decimal(number)
    except (decimal.InvalidOperation, ValueError, ZeroDivisionError):
        raise _no_number(text) from None
    return value if value else math.copysign(0.0, sign)


def _no_number(text: str) -> ValueError:
    return ValueError(
        f"cannot parse the string {_shown(text)}; use decimal numbers such as '-1.5e-3', "
        "fractions '1/3', hexadecimal '0x1.8p3', 'inf' and 'nan'"
    )


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 200 else f"{text[:100]!r}... of {len(text)} characters"


def _clipped(text: str) -> str:
    """Return the decimal string with its exponent clipped to one that `Decimal` can hold."""
    match = re.fullmatch(r"(.*)[eE]([+-]?)0*([1-9]\d{15,})", text, re.DOTALL)
    return text if match is None else f"{match[1]}e{match[2]}{10**16}"


# Sticky rounding: a last digit of 0 or 5 becomes another one if lower digits are not zero.
_ROUND_ODD: dict[str, Any] = {
    "rounding": decimal.ROUND_05UP,
    "Emax": decimal.MAX_EMAX,
    "Emin": decimal.MIN_EMIN,
    "traps": [decimal.InvalidOperation, decimal.DivisionByZero],
}


def _quotient(text: str) -> int | float | Fraction:
    match = re.fullmatch(r"([+-]?\d+)/(\d+)", text)
    if match is None or max(len(match[1]), len(match[2])) <= _DECIMALS:
        return Fraction(text)
    # Python refuses to parse integers of so many digits, and their gcd takes long.
    context = decimal.Context(prec=2 * _DECIMALS, **_ROUND_ODD)
    return _decimal(context.divide(decimal.Decimal(match[1]), decimal.Decimal(match[2])))


def _hexadecimal(text: str) -> Fraction:
    match = re.fullmatch(
        r"([+-]?)0[xX]([0-9a-fA-F]*)\.?([0-9a-fA-F]*)(?:[pP]([+-]?)0*(\d+))?", text
    )
    if match is None or not match[2] + match[3]:
        raise ValueError(text)
    # Exponents with more digits are equally far beyond every format.
    power = int(match[5][:16]) if match[5] and len(match[5]) <= 16 else 10**16 * bool(match[5])
    exponent = (-power if match[4] == "-" else power) - 4 * len(match[3])
    value = _scaled(int(match[2] + match[3], 16), exponent)
    return -value if match[1] == "-" else value


def _scaled(mantissa: int, exponent: int) -> Fraction:
    """Return mantissa 2**exponent for a mantissa that is not negative."""
    top = exponent + mantissa.bit_length()
    if not 4 * _TINY <= top <= 4 * _HUGE:
        return (_BEYOND if top > 0 else _BENEATH) if mantissa else Fraction(0)
    below = -exponent - 4 * _DECIMALS
    if below > 0:
        # Round to odd, as for decimals.
        lost = mantissa & ((1 << below) - 1) != 0
        mantissa, exponent = (mantissa >> below) | lost, -4 * _DECIMALS
    return Fraction(mantissa << max(exponent, 0), 1 << max(-exponent, 0))


def _decimal(value: decimal.Decimal) -> float | Fraction:
    sign = -1.0 if value.is_signed() else 1.0
    if value.is_snan():
        raise ValueError("cannot convert a signaling NaN; use a quiet NaN")
    if value.is_nan():
        return math.nan
    if value.is_infinite():
        return sign * math.inf
    if not value:
        return sign * 0.0
    if not _TINY <= value.adjusted() <= _HUGE:
        return int(sign) * (_BEYOND if value.adjusted() > 0 else _BENEATH)
    if int(value.as_tuple().exponent) < -_DECIMALS:
        last = decimal.Decimal((0, (1,), -_DECIMALS))
        value = value.quantize(last, context=decimal.Context(prec=2 * _DECIMALS, **_ROUND_ODD))
    return Fraction(value)


# Bits of mpmath's constants: enough for every nearest expansion.
_CONSTANT_BITS = 4096


def _constant(value: Any) -> tuple[int, int, int, int] | None:
    """Return a constant of mpmath (pi, e, ...) to 4096 bits; None for another number.

    Its value is otherwise that of mpmath's working precision. `mpmath.eps` is that precision.
    """
    digits = getattr(value, "func", None)
    if digits is None or str(getattr(value, "name", "")).startswith("epsilon"):
        return None
    found: tuple[int, int, int, int] = digits(_CONSTANT_BITS, "n")
    return found


def _mpf(parts: tuple[int, int, int, int]) -> float | Fraction:
    sign, mantissa, exponent, _ = parts
    if not mantissa:
        # mpmath's infinities and NaN have no mantissa and these exponents.
        return {0: 0.0, -456: math.inf, -789: -math.inf}.get(exponent, math.nan)
    value = _scaled(int(mantissa), int(exponent))
    return -value if sign else value


def _longdouble(value: np.longdouble) -> float | Fraction:
    if value == 0 or not np.isfinite(value):
        return float(value)
    n, d = value.as_integer_ratio()
    found = _scaled(abs(n), 1 - d.bit_length())
    return -found if n < 0 else found


def printed(text: str) -> Any:
    """Return the nested lists of strings in a printed tensor, `[[1.5, 2], [inf, 0.1]]`."""
    try:
        return json.loads(re.sub(r"[^\[\],\s]+", r'"\g<0>"', text))
    except (json.JSONDecodeError, RecursionError):
        raise ValueError(
            f"cannot parse the string {_shown(text)}: its brackets do not form a list"
        ) from None


def flatten(data: Any, depth: int = 0) -> tuple[tuple[int, ...], list[Any]]:
    """Return shape and elements of nested lists or tuples.

    Raises:
        ValueError: if lists of one level differ in length, or are nested deeper than a tensor has
            dimensions.
    """
    if not isinstance(data, (list, tuple)):
        return (), [data]
    if depth >= DIMENSIONS:
        raise ValueError(f"data has more than {DIMENSIONS} nested lists")
    parts = [flatten(item, depth + 1) for item in data]
    shapes = {shape for shape, _ in parts}
    if len(shapes) > 1:
        raise ValueError(f"data has nested lists of different shapes: {sorted(shapes)}")
    inner = shapes.pop() if shapes else ()
    return (len(parts), *inner), [leaf for _, leaves in parts for leaf in leaves]
