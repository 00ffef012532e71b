"""Convert constants to a tensor's format, and provide powers of two for exact scaling.

A norm is as large as its values, while their squares overflow or underflow in the outer part of the
range of exponents. Scaling a row by a power of two is exact. Rows in the middle of the range, which
are almost all, have the factor 1.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mcf.convert.numbers import components_of
from mcf.elementary import fixed
from mcf.expansions.creation import tensor
from mcf.expansions.dispatch.recorded import functorch, unseen
from mcf.expansions.tensor import MCFTensor
from mcf.kernels.formats import FP32, FP64, Format, format_of, power_of_two
from mcf.reductions.folds import row_exponents


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


def difference(x: Any, value: Fraction) -> Any:
    """Return x - value with a small relative error, even under cancellation."""
    left = _left(value, format_of(x.dtype), x.terms)
    return (x - in_format(value, x)) - in_format(left, x)


def two_to(exponent: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 2^exponent for an integer tensor of exponents in the range of a dtype."""
    ones = torch.ones_like(exponent, dtype=torch.float64)
    return torch.ldexp(ones, exponent).to(dtype)


def exponents(x: Any) -> Tensor:
    """Return integers e with |first component| / 2^e in [1/2, 1); 0 for zero, inf and NaN."""
    first = x.detach().components[0]
    # PyTorch has no frexp for float16 and bfloat16.
    wide = first if first.dtype is torch.float64 else first.to(torch.float32)
    e = torch.frexp(wide)[1].to(torch.int64)
    return torch.where(first.isfinite(), e, 0)


def inverse_power(*x: Any) -> Tensor | None:
    """Return the power of two that scales the largest of some expansions to [1/2, 1).

    Subnormal numbers get the largest power; zero, inf and NaN get 1. Return None if no scaling is
    needed: even the fourth powers of all numbers are far from the ends of the range.
    """
    fmt = format_of(x[0].dtype)
    sizes = [v.detach().components[0].abs() for v in x]
    if not unseen(sizes[0]):
        largest = functools.reduce(torch.maximum, sizes)
        end = 2.0 ** (fmt.emax // 8)
        if bool(((largest <= end) & (largest >= 1 / end)).all()):
            return None
    found = exponents(x[0])
    for other in x[1:]:
        e = exponents(other)
        first, second = x[0].detach() == 0, other.detach() == 0
        found = torch.where(first, e, torch.where(second, found, torch.maximum(found, e)))
    return two_to(-found.clamp(min=-fmt.emax, max=-fmt.emin), x[0].dtype)


def row_scale(x: Any, dims: int | Sequence[int], least: float = 0.0) -> Tensor | None:
    """Return a factor for each row that scales its largest value to [1/2, 1), or None.

    Args:
        x: the values.
        dims: the dimensions of a row, which the factors have with size 1.
        least: a positive number that counts as a value of each row.

    Returns:
        Powers of two in the dtype of x; 1 for rows whose fourth powers stay far from the ends of
        the range, and for those with an infinity or a NaN. None where all are 1.
    """
    if x.numel() == 0:
        return None
    first = x.components[0] if isinstance(x, MCFTensor) else x.detach()
    fmt, register = format_of(x.dtype), FP64 if x.dtype is torch.float64 else FP32
    over = [dims] if isinstance(dims, int) else list(dims)
    largest = first.abs().amax(over, keepdim=True)
    if functorch() is None:
        rows = largest.to(register.dtype).reshape(-1, 1)
        exponent = row_exponents(rows).reshape(largest.shape)
    else:
        # A tensor of a transform may wrap an expansion, which the operator does not take.
        exponent = torch.frexp(torch.where(largest.isfinite(), largest, 1.0))[1].long()
    if least > 0:
        exponent = exponent.clamp(min=math.frexp(least)[1])
    usual = exponent.abs() <= fmt.emax // 8
    if not unseen(first) and bool(usual.all()):
        return None
    limited = exponent.clamp(-fmt.emax, fmt.emax)
    return power_of_two(-torch.where(usual, 0, limited), register).to(x.dtype)


def scaled_number(value: float, x: Any, scale: Tensor) -> Any:
    """Return a number times each row's factor, in the format of x."""
    # torch.export traces expansions that are created from its inputs, such as by `new_full`.
    return x.new_full(scale.shape, value) * scale


class MeanSquare(NamedTuple):
    """Scaled rows, and the mean of their squares.

    Args:
        x: the values times the factor.
        square: the mean of the squares of `x`.
        total: `square` plus eps times the square of the factor.
        scale: the factor, or None for 1.
    """

    x: Any
    square: Any
    total: Any
    scale: Tensor | None


def mean_square(x: Any, dims: Sequence[int], eps: float = 0.0) -> MeanSquare:
    """Return the mean of squares over dimensions (kept with size 1), with a scale for each row."""
    scale = row_scale(x, dims, math.sqrt(max(eps, 0.0)))
    if scale is None:
        square = (x * x).mean(dims, keepdim=True)
        return MeanSquare(x, square, square + eps, None)
    x = x * scale
    square = (x * x).mean(dims, keepdim=True)
    return MeanSquare(x, square, square + scaled_number(eps, x, scale) * scale, scale)
