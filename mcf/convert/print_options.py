"""Print options of expansion tensors, set here or by `torch.set_printoptions`."""

from __future__ import annotations

import dataclasses
import math

from torch._tensor_str import PRINT_OPTS


@dataclasses.dataclass
class Options:
    """The options set by `set_printoptions`; None where an option is not set."""

    precision: int | None = None
    threshold: float | None = None
    edgeitems: int | None = None
    linewidth: int | None = None
    sci_mode: bool | None = None


OPTIONS = Options()


@dataclasses.dataclass(frozen=True)
class Printing:
    """The effective options: `digits` are significant digits, `decimals` digits after the point."""

    digits: int | None
    decimals: int | None
    threshold: float
    edgeitems: int
    linewidth: int
    sci_mode: bool | None


def in_force() -> Printing:
    """Return the effective options: ours if set, else PyTorch's if not default, else defaults.

    So `torch.set_printoptions(precision=4)`, which is PyTorch's default, has no effect.
    """
    usual = type(PRINT_OPTS)()

    def of_torch(name: str) -> object:
        value = getattr(PRINT_OPTS, name)
        return None if value == getattr(usual, name) else value

    def either(name: str, default: object) -> object:
        for value in (getattr(OPTIONS, name), of_torch(name)):
            if value is not None:
                return value
        return default

    chosen = {
        "threshold": either("threshold", 1000),
        "edgeitems": either("edgeitems", 3),
        "linewidth": either("linewidth", 100),
        "sci_mode": either("sci_mode", None),
    }
    decimals = of_torch("precision") if OPTIONS.precision is None else None
    return Printing(digits=OPTIONS.precision, decimals=decimals, **chosen)  # type: ignore[arg-type]


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
