"""Convert constants and Python numbers to the format of a tensor."""

from __future__ import annotations

import functools
from fractions import Fraction
from typing import Any

from torch import Tensor

from mcf.convert.numbers import components_of
from mcf.elementary import fixed
from mcf.expansions.creation import tensor
from mcf.expansions.tensor import MCFTensor
from mcf.kernels.formats import Format, format_of


def constant(value: int, like: MCFTensor) -> MCFTensor:
    """Convert a fixed-point number of `mcf.elementary.fixed` to the format of a tensor."""
    return tensor(fixed.to_fraction(value), like.terms, like.dtype, like.device)


def in_format(value: Any, like: MCFTensor) -> Any:
    """Round a number to the nearest expansion in a tensor's format; return a tensor unchanged."""
    if isinstance(value, Tensor):
        return value
    return tensor(value, like.terms, like.dtype, like.device)


@functools.cache
def _left(value: Fraction, fmt: Format, terms: int) -> Fraction:
    """Return the rounding error: value minus its nearest expansion."""
    return value - sum(map(Fraction, components_of(value, fmt, terms)))


def beside(x: Any, value: Fraction) -> Any:
    """Return x - value with a small relative error, even under cancellation."""
    left = _left(value, format_of(x.dtype), x.terms)
    return (x - in_format(value, x)) - in_format(left, x)
