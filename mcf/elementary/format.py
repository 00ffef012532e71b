"""The format of the components in which functions are computed, and what follows from its range."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from contextvars import ContextVar

from mcf.kernels.formats import FP32, FP64, Format


@dataclasses.dataclass(frozen=True)
class Working:
    """A format and the limits of programs in it.

    Args:
        format: of the components.
        exp_limit: beyond it exp is 0 or infinite in every format that is computed in this one.
        least: below it exp(x) - 1 is -1 to 4 components.
        one: beyond 2**one a 1 is below the last bit of 4 components.
        far: beyond it exp(-2 x) is.
        sinh_far: beyond it too, and exp of it is a number.
        tiny: below it sinh x = tanh x = sin x = x to 4 components.
        low: numbers below it are multiplied by 2**lift before their exponents are looked at.
        lift: so that what is multiplied is normal.
    """

    format: Format
    exp_limit: float
    least: float
    one: int
    far: float
    sinh_far: float
    tiny: float
    low: float
    lift: int


WORKING = {
    FP64: Working(FP64, 1100.0, -200.0, 400, 77.0, 231.0, 2.0**-250, 2.0**-900, 200),
    FP32: Working(FP32, 120.0, -80.0, 120, 40.0, 80.0, 2.0**-52, 2.0**-100, 48),
}

_chosen: ContextVar[Format] = ContextVar("working format", default=FP64)


def working() -> Working:
    """What functions compute with now: float64, but inside `computing_in`."""
    return WORKING[_chosen.get()]


@contextlib.contextmanager
def computing_in(fmt: Format) -> Iterator[None]:
    """Compute in components of float64 or float32 inside a `with` block."""
    token = _chosen.set(fmt)
    try:
        yield
    finally:
        _chosen.reset(token)
