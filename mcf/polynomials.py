"""Evaluation of polynomials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.kernels import functions
from mcf.tensor.tensor import MCFTensor, wrap


def polyval(coefficients: Tensor | Sequence[Any], x: Tensor) -> Tensor:
    """c[0] x**(n-1) + ... + c[n-2] x + c[n-1], by Horner's rule.

    On plain tensors it is the compensated rule: the rounding errors of Horner's rule are themselves
    coefficients of a polynomial, whose value is added. The result is as accurate as with twice the
    precision, rounded: |error| <= u |p(x)| + gamma_2n**2 p~(|x|) with p~ of the absolute values
    (Graillat, Langlois, Louvet 2009, "Algorithms for accurate, validated and fast polynomial
    evaluation", doi:10.1007/BF03186531), without overflow and underflow.

    On expansions it is Horner's rule in their arithmetic, of which each multiplication and addition
    has its own bound.

    Args:
        coefficients: highest power first, along the first dimension of a tensor or in a sequence of
            tensors or Python numbers (rounded to x's format); the rest broadcasts against x.
        x: the points.

    Returns:
        A tensor of x's dtype; an `MCFTensor` if x or a coefficient is one.

    Raises:
        ValueError: for no coefficients.
        TypeError: for plain tensors of different dtypes.
        RuntimeError: for plain tensors that require grad while grad mode is on; make x an
            expansion, detach it or use torch.no_grad().
    """
    terms = list(coefficients)
    if not terms:
        raise ValueError("polyval: at least one coefficient is needed")
    if not isinstance(x, Tensor):
        raise TypeError(f"polyval: x must be a tensor, got {type(x).__name__}")
    if isinstance(x, MCFTensor) or any(isinstance(c, MCFTensor) for c in terms):
        result = x * 0 + terms[0] if not isinstance(terms[0], Tensor) else terms[0]
        for c in terms[1:]:
            result = result * x + c
        if not isinstance(result, MCFTensor):
            result = wrap((result,))
        return result.expand(torch.broadcast_shapes(result.shape, x.shape))  # type: ignore[no-untyped-call]
    values = [
        c if isinstance(c, Tensor) else torch.tensor(c, dtype=x.dtype, device=x.device)
        for c in terms
    ]
    shape = torch.broadcast_shapes(x.shape, *(c.shape for c in values))  # type: ignore[no-untyped-call]
    value = values[0].expand(shape)
    error = torch.zeros_like(value)
    for c in values[1:]:
        # One operation at a time through opaque operators, which no compiler can contract.
        product, low = functions.apply(functions.TWO_PROD, value, x)
        value, high = functions.apply(functions.TWO_SUM, product, c)
        both = functions.apply(functions.TWO_SUM, low, high)[0]
        scaled = functions.apply(functions.TWO_PROD, error, x)[0]
        error = functions.apply(functions.TWO_SUM, scaled, both)[0]
    result = functions.apply(functions.TWO_SUM, value, error)[0]
    # The error of an infinite value is NaN.
    return torch.where(torch.isfinite(value), result, value)
