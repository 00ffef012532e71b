"""The format of the components in which functions are computed, and limits of its range."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from contextvars import ContextVar

from torch import Tensor

from mcf.kernels.formats import FP32, FP64, Format


@dataclasses.dataclass(frozen=True)
class Working:
    """A format and the limits of programs in it.

    Args:
        format: of the components.
        exp_limit: beyond it exp is 0 or infinite in every format computed in this one.
        least: below it exp(x) - 1 is -1 to 4 components.
        one: beyond 2**one a 1 is below the last bit of 4 components.
        far: beyond it exp(-2 x) is below the last bit of 4 components.
        sinh_far: likewise, and exp(x) is finite there.
        tiny: below it sinh x = tanh x = sin x = x to 4 components.
        low: numbers below it are multiplied by 2**lift before their exponents are read.
        lift: an exponent that makes these products normal.
        huge: beyond it x^2 + 1 is x^2 to 4 components, and x^2 is finite.
        small: numbers below it are multiplied by 2**raised for their roots and for logarithms of
            their products.
        raised: see `small`; even.
        apart: numbers further apart than 2**apart do not affect each other in a sum.
        slope: if y / x is below 2**-slope it equals its arc tangent.
        above: x and y are multiplied by 2**above, so that low components of y do not underflow.
        erf_far: beyond it erfc is 0, and erf of four components 1.
        gauss_far: beyond it exp(-x^2 / 2), also times its cofactors, is 0.
        tanh_far: beyond it gelu_tanh is 0 or its argument.
        faint: numbers below 2**-faint, whose squares vanish next to 1, are multiplied by 2**faint.
        thin: for d below 2**-thin, log(1 + d) is d to the last bit.
        vast: beyond it 1 / x vanishes next to 1.
        addend: numbers below 2**-addend vanish next to the other term; 2**-addend and 2**addend
            are numbers of the format.
        start_bits: -log2 of |x d| if a float x is d away from the inverse error function: the
            accuracy of its start, with some bits to spare.
        angle_lift: fractional parts below `tiny` are multiplied by 2**angle_lift.
        alone: next to 1 / x of a number below it 1 vanishes.
        many: next to x log x of a number beyond it 1 vanishes; it is computed from x / 2**fewer.
        fewer: see `many`.
        bottom: 2**bottom is 0 in every format, and in the range of `working.scale`.
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
    huge: float
    small: float
    raised: int
    apart: int
    slope: int
    above: int
    bottom: int
    erf_far: float
    gauss_far: float
    tanh_far: float
    faint: int
    thin: int
    vast: float
    addend: int
    start_bits: int
    angle_lift: int
    alone: float
    many: float
    fewer: int


WORKING = {
    FP64: Working(
        FP64, 1100.0, -200.0, 400, 77.0, 231.0, 2.0**-250, 2.0**-900, 200,
        huge=2.0**300, small=2.0**-300, raised=600, apart=600, slope=260, above=0, bottom=-2000,
        erf_far=30.0, gauss_far=40.0, tanh_far=24.0, faint=500,
        thin=240, vast=2.0**300, addend=700, start_bits=38,
        angle_lift=600, alone=2.0**-250, many=2.0**600, fewer=400,
    ),
    FP32: Working(
        FP32, 120.0, -80.0, 120, 40.0, 80.0, 2.0**-52, 2.0**-100, 48,
        huge=2.0**56, small=2.0**-40, raised=100, apart=110, slope=53, above=40, bottom=-250,
        erf_far=10.5, gauss_far=15.0, tanh_far=11.0, faint=60,
        thin=110, vast=2.0**110, addend=120, start_bits=14,
        angle_lift=60, alone=2.0**-110, many=2.0**112, fewer=40,
    ),
}  # fmt: skip

_chosen: ContextVar[Format] = ContextVar("working format", default=FP64)


def working() -> Working:
    """Return the working format's limits: float64, unless inside `computing_in`."""
    return WORKING[_chosen.get()]


@contextlib.contextmanager
def computing_in(fmt: Format) -> Iterator[None]:
    """Compute in components of float64 or float32 inside a `with` block."""
    token = _chosen.set(fmt)
    try:
        yield
    finally:
        _chosen.reset(token)


# While a formula is recorded (`mcf.elementary.formula_recording`): the conditions of skipped steps.
left_out: ContextVar[list[Tensor] | None] = ContextVar("left_out", default=None)
