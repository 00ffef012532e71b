"""Decimal digits of expansions: as many as tell a value from every other."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from fractions import Fraction

from mcf.convert.numbers import components_of
from mcf.kernels.formats import Format

Number = Fraction | float


@dataclasses.dataclass
class Options:
    """How tensors are printed."""

    precision: int | None = None
    threshold: int = 1000
    edgeitems: int = 3
    linewidth: int = 100


OPTIONS = Options()


def set_printoptions(
    precision: int | None = None,
    threshold: float | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    profile: str | None = None,
) -> None:
    """Set how expansion tensors are printed; what is not given stays as it is.

    Args:
        precision: significant decimal digits. By default a number has as many as it takes to read
            back to the same components; `profile="default"` restores that.
        threshold: elements above which a tensor is summarised (1000); infinity for none.
        edgeitems: elements at each end of a summarised dimension (3).
        linewidth: characters on a line (100).
        profile: "default" resets everything first.

    Raises:
        TypeError: for what is no whole number.
        ValueError: for a precision or linewidth below 1, a negative threshold or edgeitems, or
            another profile.
    """
    limits = {"precision": (precision, 1), "threshold": (threshold, 0),
              "edgeitems": (edgeitems, 0), "linewidth": (linewidth, 1)}  # fmt: skip
    given = {name: value for name, (value, _) in limits.items() if value is not None}
    for name, value in given.items():
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole and (name, value) != ("threshold", math.inf):
            raise TypeError(f"{name} must be an integer, got {value!r}")
        if value < limits[name][1]:
            raise ValueError(f"{name} must be at least {limits[name][1]}, got {value}")
    if profile not in (None, "default"):
        raise ValueError(f"profile must be 'default', got {profile!r}")
    if profile is not None:
        for field in dataclasses.fields(Options):
            setattr(OPTIONS, field.name, field.default)
    for name, value in given.items():
        setattr(OPTIONS, name, value)


def decimal(value: Number, digits: int) -> str:
    """The number rounded to significant decimal digits, ties to even."""
    if isinstance(value, float):
        return "-0." if value == 0 else repr(value)
    if value == 0:
        return "0."
    # More are zeros: numbers of these formats have 1400 digits at most.
    digits = min(digits, 1500)
    sign, size = ("-", -value) if value < 0 else ("", value)
    power = _magnitude(size)
    scaled = round(size * Fraction(10) ** (digits - 1 - power))
    if scaled == 10**digits:
        scaled, power = scaled // 10, power + 1
    text = str(scaled).rstrip("0")
    if -5 <= power < max(16, len(text)) and power < 40:
        if power < 0:
            return f"{sign}0.{'0' * (-power - 1)}{text}"
        text = text.ljust(power + 1, "0")
        return f"{sign}{text[: power + 1]}.{text[power + 1 :]}"
    return f"{sign}{text[0]}.{text[1:]}e{power:+03d}"


def _magnitude(size: Fraction) -> int:
    """floor(log10(size)) of a positive number."""
    power = math.floor((size.numerator.bit_length() - size.denominator.bit_length()) * 0.30103)
    while Fraction(10) ** power > size:
        power -= 1
    while Fraction(10) ** (power + 1) <= size:
        power += 1
    return power


def shortest(value: Number, fmt: Format, terms: int) -> str:
    """The fewest digits that read back to the nearest expansion of the value."""
    if isinstance(value, float) or value == 0:
        return decimal(value, 1)
    wanted = components_of(value, fmt, terms)

    def reads_back(digits: int) -> bool:
        return components_of(Fraction(decimal(value, digits)), fmt, terms) == wanted

    high = math.ceil(terms * fmt.p * math.log10(2)) + 1
    low = 0
    while not reads_back(high):
        # A gap between the components: one far below the other.
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reads_back(middle) else (middle, high)
    return decimal(value, high)


def body(shape: tuple[int, ...], element: Callable[[tuple[int, ...]], str], indent: int) -> str:
    """The nested brackets of a tensor of a shape whose elements print themselves."""
    summarise = math.prod(shape) > OPTIONS.threshold
    edge = OPTIONS.edgeitems

    def indices(size: int) -> list[int | None]:
        if summarise and size > 2 * edge:
            return [*range(edge), None, *range(size - edge, size)]
        return list(range(size))

    texts: dict[tuple[int, ...], str] = {}

    def collect(prefix: tuple[int, ...]) -> None:
        if len(prefix) == len(shape):
            texts[prefix] = element(prefix)
            return
        for k in indices(shape[len(prefix)]):
            if k is not None:
                collect((*prefix, k))

    collect(())
    width = max(map(len, texts.values()), default=0)

    def show(prefix: tuple[int, ...], indent: int) -> str:
        if len(prefix) == len(shape):
            return texts[prefix].rjust(width)
        parts = [
            "..." if k is None else show((*prefix, k), indent + 1)
            for k in indices(shape[len(prefix)])
        ]
        depth = len(shape) - len(prefix)
        if depth > 1:
            between = "," + "\n" * (depth - 1) + " " * (indent + 1)
            return f"[{between.join(parts)}]"
        per_line = max(1, (OPTIONS.linewidth - indent - 1) // (width + 2))
        rows = [parts[k : k + per_line] for k in range(0, len(parts), per_line)]
        return "[" + (",\n" + " " * (indent + 1)).join(", ".join(r) for r in rows) + "]"

    return show((), indent)
