"""Constants and numbers with all components of a tensor beside them."""

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
    """A fixed-point number of `mcf.elementary.fixed` with the components of a tensor."""
    return tensor(fixed.to_fraction(value), like.terms, like.dtype, like.device)


def in_format(value: Any, like: MCFTensor) -> Any:
    """A number as the nearest expansion of a tensor's format; a tensor as it is."""
    if isinstance(value, Tensor):
        return value
    return tensor(value, like.terms, like.dtype, like.device)


@functools.cache
def _left(value: Fraction, fmt: Format, terms: int) -> Fraction:
    """What a number is more than its nearest expansion."""
    return value - sum(map(Fraction, components_of(value, fmt, terms)))


def beside(x: Any, value: Fraction) -> Any:
    """X less a number, relative to the result also where next to nothing is left."""
    left = _left(value, format_of(x.dtype), x.terms)
    return (x - in_format(value, x)) - in_format(left, x)
