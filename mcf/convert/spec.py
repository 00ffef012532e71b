"""Format exact numbers by Python's float format specifications: `f"{x:.50f}"`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from mcf.convert import digits
from mcf.convert.few import ratio

# Python's "Format Specification Mini-Language" for floats.
_SPEC = re.compile(
    r"(?:(?P<fill>.)?(?P<align>[<>=^]))?(?P<sign>[-+ ])?(?P<z>z)?(?P<alternate>\#)?(?P<zero>0)?"
    r"(?P<width>\d+)?(?P<group>[_,])?(?:\.(?P<precision>\d+))?(?P<type>[eEfFgG%])?",
    re.DOTALL,
)


def formatted(parts: Sequence[float], spec: str, usual: Callable[[Sequence[float]], str]) -> str:
    """Format a number, given by its components, as Python formats a float of the same value.

    Args:
        parts: the components.
        spec: a format specification.
        usual: the digits of a number, for a specification without precision and type.

    Raises:
        ValueError: for a specification that floats do not have.
    """
    found = _SPEC.fullmatch(spec)
    if found is None:
        raise ValueError(
            f"invalid format specification {spec!r}; use one of Python's "
            "float with e, E, f, F, g, G or %, such as '.30f', '+.6e', '>40.20g'"
        )
    kind, exponent = found["type"] or "", ""
    n, d = ratio(parts) if math.isfinite(parts[0]) else (1, 1)
    negative = n < 0 or (n == 0 and math.copysign(1.0, parts[0]) < 0)
    if not math.isfinite(parts[0]):
        negative = parts[0] < 0
        body = repr(abs(parts[0])) + ("%" if kind == "%" else "")
        body = body.upper() if kind.isupper() else body
    elif not kind and found["precision"] is None:
        body = pythonic(usual(parts)).lstrip("-")
        body, e, exponent = body.partition("e")
        exponent = e + exponent
    else:
        body, exponent = _body(abs(n), d, found)
    if found["z"] and not re.search("[1-9a-zA-Z]", body):
        negative = False
    sign = "-" if negative else (found["sign"] or "-").replace("-", "")
    return _aligned(sign, body, exponent, found)


def pythonic(text: str) -> str:
    """Convert a number as PyTorch prints it (`1.`, `1.e-30`) to Python's form."""
    return text.replace(".e", "e") if ".e" in text else text + "0" * text.endswith(".")


def _body(n: int, d: int, found: re.Match[str]) -> tuple[str, str]:
    """Return the digits with a point, and the exponent, of n / d >= 0."""
    kind = found["type"] or ""
    precision = 6 if found["precision"] is None else int(found["precision"])
    keep = bool(found["alternate"])
    if kind in ("f", "F", "%"):
        body = _fixed(n * (100 if kind == "%" else 1), d, precision)
        return _pointed(body, keep) + ("%" if kind == "%" else ""), ""
    if kind in ("e", "E"):
        body, power = _significant(n, d, precision + 1)
        return _pointed(_after(body, 1), keep), _exponent(power, kind)
    # Python's general format; without a type, one digit after the point is kept.
    count = max(1, precision)
    body, power = _significant(n, d, count)
    if -4 <= power < count - (not kind):
        body = body.rjust(len(body) - min(power, 0), "0")
        body, exponent = _after(body, 1 + max(power, 0)), ""
    else:
        body, exponent = _after(body, 1), _exponent(power, "E" if kind == "G" else "e")
    if not keep and "." in body:
        body = body.rstrip("0")
    if not kind and not exponent and body.endswith("."):
        body += "0"
    return _pointed(body, keep), exponent


def _fixed(n: int, d: int, precision: int) -> str:
    # Further decimals are zeros.
    more = max(0, precision - digits.MOST)
    precision -= more
    q, rest = divmod(n * digits.ten(precision), d)
    if 2 * rest > d or (2 * rest == d and q & 1):
        q += 1
    text = str(q).rjust(precision + 1, "0")
    return _after(text, len(text) - precision) + "0" * more


def _significant(n: int, d: int, count: int) -> tuple[str, int]:
    if n == 0:
        return "0" * count, 0
    q, power = digits.significant(n, d, min(count, digits.MOST))
    return str(q).ljust(count, "0"), power


def _after(text: str, places: int) -> str:
    return f"{text[:places]}.{text[places:]}"


def _pointed(body: str, keep: bool) -> str:
    return body if keep or not body.endswith(".") else body[:-1]


def _exponent(power: int, letter: str) -> str:
    return f"{letter}{power:+03d}"


def _aligned(sign: str, body: str, exponent: str, found: re.Match[str]) -> str:
    """Pad the number to its width and group its integer part."""
    whole = body[: len(body) - len(body.lstrip("0123456789"))]
    tail = body[len(whole) :] + exponent
    width = int(found["width"] or 0)
    fill = found["fill"] or ("0" if found["zero"] else " ")
    align = found["align"] or ("=" if found["zero"] else ">")
    if found["group"] and whole:
        # Leading zeros are grouped, too.
        zeros = (fill, align) == ("0", "=")
        room = max(0, width - len(sign) - len(tail)) if zeros else 0
        whole = format(int(whole), f"0{room}{found['group']}")
    if align == "=":
        return sign + (whole + tail).rjust(width - len(sign), fill)
    text = sign + whole + tail
    return format(text, f"{fill}{align}{width}") if width else text
