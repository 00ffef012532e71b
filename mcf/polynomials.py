"""Evaluation of polynomials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.convert.rounding import convert
from mcf.expansions.dispatch.widening import Valued
from mcf.expansions.tensor import MCFTensor, wrap
from mcf.kernels import operations
from mcf.kernels.formats import format_of
from mcf.kernels.register_choice import registers_for
from mcf.reductions.rows import operator


def polyval(coefficients: Tensor | Sequence[Any], x: Tensor) -> Tensor:
    """c[0] x**(n-1) + ... + c[n-2] x + c[n-1], by Horner's rule.

    On plain tensors and on expansions of one component it is the compensated rule: the rounding
    errors of Horner's rule are themselves coefficients of a polynomial, whose value is added. It
    is computed in the format of the registers (`mcf.set_registers`), float64 with v = 2**-53 or
    float32 with v = 2**-24, and rounded once to x's format: with p~ the polynomial of the absolute
    values

        |error| <= u |p(x)| + (1 + u) gamma_2n**2 p~(|x|),  gamma_2n = 2 n v / (1 - 2 n v)

    (Graillat, Langlois, Louvet 2009, "Algorithms for accurate, validated and fast polynomial
    evaluation", doi:10.1007/BF03186531), and half the smallest subnormal number besides in formats
    narrower than the registers; in that of the registers without overflow and underflow.

    On longer expansions it is Horner's rule in their arithmetic, of which each multiplication and
    addition has its own bound.

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
        sums = result if isinstance(result, MCFTensor) else wrap((result,))
        result = sums.expand(torch.broadcast_shapes(sums.shape, x.shape))  # type: ignore[no-untyped-call]
        if sums.terms > 1:
            return result
        # With one component there is no room for the errors: the value is that of the compensated
        # rule, the derivatives are those of Horner's rule.
        value = _compensated([_plain(c, result) for c in terms], _plain(x, result))
        return Valued.apply(wrap((value,)), result)  # type: ignore[no-any-return,no-untyped-call]
    return _compensated([_plain(c, x) for c in terms], x)


def _plain(c: Any, like: Tensor) -> Tensor:
    """Return a coefficient as a plain tensor."""
    if isinstance(c, MCFTensor):
        return c.components[0].detach()
    if isinstance(c, Tensor):
        return c.detach() if isinstance(like, MCFTensor) else c
    return torch.tensor(c, dtype=like.dtype, device=like.device)


def _compensated(values: list[Tensor], x: Tensor) -> Tensor:
    """Evaluate Horner's rule and the polynomial of its errors in registers, rounded once."""
    fmt = x.dtype
    format_of(fmt, "polyval: x")
    for c in values:
        if c.dtype != fmt:
            raise TypeError(
                f"polyval: a coefficient has dtype {c.dtype} and x has {fmt}; convert one, nothing "
                "is rounded silently"
            )
    [result] = _horner(values, x)
    return result  # type: ignore[no-any-return]


def _like(values: list[Tensor], x: Tensor) -> list[Tensor]:
    shape = torch.broadcast_shapes(x.shape, *(c.shape for c in values))  # type: ignore[no-untyped-call]
    return [x.new_empty(shape)]


@operator("compensated_horner(Tensor[] values, Tensor x)", _like)
def _horner(values: list[Tensor], x: Tensor) -> list[Tensor]:
    fmt, register = format_of(x.dtype), registers_for(format_of(x.dtype), x.device)
    assert fmt.dtype is not None
    shape = torch.broadcast_shapes(x.shape, *(c.shape for c in values))  # type: ignore[no-untyped-call]
    x, (first, *rest) = x.to(register.dtype), [c.to(register.dtype) for c in values]
    value = first.expand(shape)
    error = torch.zeros_like(value)
    for c in rest:
        product, low = operations.two_prod(value, x)
        value, high = operations.two_sum(product, c)
        both = operations.two_sum(low, high)[0]
        scaled = operations.two_prod(error, x)[0]
        error = operations.two_sum(scaled, both)[0]
    high, low = operations.two_sum(value, error)
    # The error of an infinite value is NaN.
    finite = torch.isfinite(value)
    pair = torch.where(finite, high, value), torch.where(finite, low, torch.zeros_like(low))
    return [pair[0] if fmt == register else convert(pair, fmt.dtype, 1)[0]]
