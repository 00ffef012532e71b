"""Powers of two that keep the squares of a row's numbers in the range of their format.

A norm or a variance is as large as the numbers it is of, while their squares overflow, or have no
bits left, in the outer three quarters of the exponents. Multiplied by a power of two, the numbers
change in no bit. Rows in the middle of the range, which are almost all, have the factor 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mcf.expansions.dispatch.recorded import functorch, unseen
from mcf.expansions.tensor import MCFTensor
from mcf.kernels.formats import FP32, FP64, format_of
from mcf.kernels.scaling import power_of_two
from mcf.reductions.folds import row_exponents


def row_scale(x: Any, dims: int | Sequence[int], least: float = 0.0) -> Tensor | None:
    """Return a factor for each row that brings its largest number to [1/2, 1), or None.

    Args:
        x: the numbers.
        dims: the dimensions of a row, which the factors have with the size 1.
        least: a positive number that counts as one of each row.

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
        # A tensor of a transform may hold an expansion, which the operator does not take.
        exponent = torch.frexp(torch.where(largest.isfinite(), largest, 1.0))[1].long()
    if least > 0:
        exponent = exponent.clamp(min=math.frexp(least)[1])
    usual = exponent.abs() <= fmt.emax // 8
    if not unseen(first) and bool(usual.all()):
        return None
    limited = exponent.clamp(-fmt.emax, fmt.emax)
    return power_of_two(-torch.where(usual, 0, limited), register).to(x.dtype)


def beside(value: float, x: Any, scale: Tensor) -> Any:
    """Return a number times a row's factor, with the digits that it has beside x in a sum."""
    # torch.export follows expansions that are made of its inputs.
    return x.new_full(scale.shape, value) * scale


class MeanSquare(NamedTuple):
    """The numbers x of rows times a factor, and the mean of their squares.

    Args:
        x: the numbers times the factor.
        square: the mean of their squares.
        total: the sum of that and eps, which is multiplied by the factor's square.
        scale: the factor, or None for 1.
    """

    x: Any
    square: Any
    total: Any
    scale: Tensor | None


def mean_square(x: Any, dims: Sequence[int], eps: float = 0.0) -> MeanSquare:
    """Return the mean of squares over dimensions that stay, each row's in a range of its own."""
    scale = row_scale(x, dims, math.sqrt(max(eps, 0.0)))
    if scale is None:
        square = (x * x).mean(dims, keepdim=True)
        return MeanSquare(x, square, square + eps, None)
    x = x * scale
    square = (x * x).mean(dims, keepdim=True)
    return MeanSquare(x, square, square + beside(eps, x, scale) * scale, scale)
