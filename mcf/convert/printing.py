"""Format numbers and tensors as text, by options set here or by `torch.set_printoptions`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch._tensor_str import PRINT_OPTS

from mcf.convert import digits, spec
from mcf.convert.few import ratio
from mcf.kernels.formats import Format


@dataclasses.dataclass
class Options:
    """The options of printing; None where one is not set.

    `precision` counts significant digits, and `decimals`, which only PyTorch sets, digits after the
    point.
    """

    precision: int | None = None
    threshold: Any = None
    edgeitems: Any = None
    linewidth: Any = None
    sci_mode: bool | None = None
    decimals: int | None = None


# The options set by `set_printoptions`, and the defaults.
OPTIONS, DEFAULTS = Options(), Options(threshold=1000, edgeitems=3, linewidth=100)


def in_force() -> Options:
    """Return the effective options: ours if set, else PyTorch's if not default, else defaults.

    So `torch.set_printoptions(precision=4)`, which is PyTorch's default, has no effect.
    """
    found, usual = dataclasses.replace(OPTIONS), type(PRINT_OPTS)()
    for ours in ("decimals", "threshold", "edgeitems", "linewidth", "sci_mode"):
        name = "precision" if ours == "decimals" else ours
        if getattr(OPTIONS, name) is None:
            value = getattr(PRINT_OPTS, name)
            default = getattr(DEFAULTS, ours)
            setattr(found, ours, default if value == getattr(usual, name) else value)
    return found


def set_printoptions(
    precision: int | None = None,
    threshold: float | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    profile: str | None = None,
    sci_mode: bool | None = None,
) -> None:
    """Set how expansion tensors are printed; options that are not given stay as they are.

    An option that was never set here follows `torch.set_printoptions`, unless that has PyTorch's
    default value; its `precision` counts the digits after the point.

    Args:
        precision: significant decimal digits, in `str` and in `repr`. By default `repr` has as many
            as it takes to read back to the same components, `str` at most as many as every
            expansion of the format holds; `profile="default"` restores that.
        threshold: elements above which a tensor is summarised (1000); infinity for none.
        edgeitems: elements at each end of a summarised dimension (3).
        linewidth: characters on a line (100).
        profile: "default" resets everything first.
        sci_mode: True for an exponent in every number, False for none in any; by default large and
            small numbers have one.

    Raises:
        TypeError: for a value that is not an integer, or a sci_mode that is not a bool.
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
    if sci_mode is not None:
        if not isinstance(sci_mode, bool):
            raise TypeError(f"sci_mode must be True, False or None, got {sci_mode!r}")
        given["sci_mode"] = sci_mode
    if profile is not None:
        for field in dataclasses.fields(Options):
            setattr(OPTIONS, field.name, None)
    for name, value in given.items():
        setattr(OPTIONS, name, value)


Element = Callable[[Sequence[float]], str]


def placed(negative: bool, found: digits.Digits, sci_mode: bool | None = None) -> str:
    """Return digits with sign and point, and an exponent if the number is large or small."""
    sign, power = "-" if negative else "", found[1]
    text = str(found[0]).rstrip("0")
    usual = -5 <= power < max(16, len(text)) and power < 40
    if usual if sci_mode is None else not sci_mode:
        if power < 0:
            return f"{sign}0.{'0' * (-power - 1)}{text}"
        text = text.ljust(power + 1, "0")
        return f"{sign}{text[: power + 1]}.{text[power + 1 :]}"
    return f"{sign}{text[0]}.{text[1:]}e{power:+03d}"


def element(fmt: Format, exact: bool, options: Options) -> Element:
    """Return the function that prints one number, given its components.

    Args:
        fmt: the format of the components.
        exact: whether to print enough digits to read back the same components; else at most as many
            as all expansions of the format hold.
        options: the print options of the user.
    """

    def show(parts: Sequence[float]) -> str:
        if not math.isfinite(parts[0]):
            return repr(parts[0])
        n, d = ratio(parts)
        if n == 0:
            return "-0." if math.copysign(1.0, parts[0]) < 0 else "0."
        negative, n = n < 0, abs(n)
        if options.precision is not None:
            found = digits.significant(n, d, min(options.precision, digits.MOST))
        elif exact:
            found = digits.shortest([-x for x in parts] if negative else parts, fmt)
        else:
            found = digits.significant(n, d, digits.held(n, d, fmt, len(parts)))
        return placed(negative, found, options.sci_mode)

    return show


def _decimals(rows: Sequence[Sequence[float]], options: Options) -> Element:
    """Return the function that prints numbers with a fixed count of digits after the point.

    All get an exponent if the largest is above 1e8 or 1000 times the smallest, or the smallest
    nonzero one is below 1e-4 (PyTorch's rule).
    """
    sizes = [abs(r[0]) for r in rows if math.isfinite(r[0]) and r[0] != 0]
    large, small = max(sizes, default=1.0), min(sizes, default=1.0)
    exponent = options.sci_mode
    if exponent is None:
        exponent = large / small > 1000 or large > 1e8 or small < 1e-4
    form = f".{options.decimals}{'e' if exponent else 'f'}"
    return lambda parts: spec.formatted(parts, form, repr)


def usual(rows: Sequence[Sequence[float]], fmt: Format, exact: bool) -> Element:
    """Return the function that prints elements by the user's options."""
    options = in_force()
    if options.decimals is not None:
        return _decimals(rows, options)
    return element(fmt, exact, options)


def brackets(
    shape: tuple[int, ...],
    rows: Sequence[Sequence[float]],
    show: Element | None,
    fmt: Format,
    exact: bool,
    indent: int = 0,
) -> str:
    """Return the nested brackets of a tensor.

    Args:
        shape: of the tensor.
        rows: the components of each element that is shown (`shown`), in order.
        show: the format of an element; None for the user's print options.
        fmt: of the components.
        exact: as in `element`.
        indent: characters before the first bracket.
    """
    options = in_force()
    show = usual(rows, fmt, exact) if show is None else show
    texts = [show(parts) for parts in rows]
    width = max(map(len, texts), default=0)
    return _nested(shape, iter([t.rjust(width) for t in texts]), width, indent, options)


def shown(shape: Sequence[int]) -> list[list[int | None]]:
    """Return, for each dimension, the indices that are shown; None marks those left out."""
    options = in_force()
    edge, summarise = options.edgeitems, math.prod(shape) > options.threshold
    return [
        [*range(edge), None, *range(n - edge, n)] if summarise and n > 2 * edge else [*range(n)]
        for n in shape
    ]


def _nested(
    shape: tuple[int, ...], texts: Iterator[str], width: int, indent: int, options: Options
) -> str:
    places = shown(shape)

    def show(depth: int, indent: int) -> str:
        if depth == len(shape):
            return next(texts)
        parts = ["..." if k is None else show(depth + 1, indent + 1) for k in places[depth]]
        inner = len(shape) - depth
        if inner > 1:
            between = "," + "\n" * (inner - 1) + " " * (indent + 1)
            return f"[{between.join(parts)}]"
        per_line = max(1, (options.linewidth - indent - 1) // (width + 2))
        rows = [parts[k : k + per_line] for k in range(0, len(parts), per_line)]
        return "[" + (",\n" + " " * (indent + 1)).join(", ".join(r) for r in rows) + "]"

    return show(0, indent)
