"""Accurate sums, dot products, norms and moments of plain tensors and of expansion tensors.

Every function takes a floating-point `torch.Tensor` or an `mcf.MCFTensor`. A plain tensor counts as
an expansion of one component. `terms` is the number of components of the result: by default those
of the arguments; 1 on plain tensors gives a plain tensor, anything else an `MCFTensor`.

A sum is computed like Sum2 and Dot2, or SumK and DotK for three components and more (Ogita, Rump,
Oishi 2005, doi:10.1137/030601818), in a fixed order of partial sums: the bits do not depend on the
executor, the number of threads, or the layout in memory. With T the sum of the absolute values of
the terms, the error is at most u |exact| + O(T u**2) for a plain result and O(T u**terms) for an
expansion; `mcf.bound("sum", terms, dtype, count=...)` has the constants.

With `reproducible=True` sums are exact, in integers as wide as the range of the format (Kulisch;
Neal 2015, arXiv:1505.05571), and rounded once: the result is the nearest one, whatever the order
of the elements is.

The functions are differentiable; gradients of expansions are computed in expansion arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mcf import reductions
from mcf.expansions.tensor import MCFTensor, wrap
from mcf.kernels.formats import format_of
from mcf.reductions.rows import Components, Dim, Rows

__all__ = ["dot", "mean", "norm", "std", "sum", "var"]


def components_of(function: str, name: str, x: Any) -> Components:
    """Return the components of an argument (a plain tensor is one); raise TypeError otherwise."""
    if isinstance(x, MCFTensor):
        return x.components
    if not isinstance(x, Tensor):
        raise TypeError(f"{function}: {name} must be a tensor, got {type(x).__name__}")
    format_of(x.dtype, f"{function}: {name}")
    return (x.detach(),)


def check_terms(function: str, terms: int | None) -> None:
    """Raise ValueError if `terms` is not a valid number of components."""
    if terms is not None and (not isinstance(terms, int) or not 1 <= terms <= 4):
        raise ValueError(f"{function}: terms must be an int from 1 to 4 or None, got {terms!r}")


def _result(components: Components, *arguments: Tensor) -> Tensor:
    """Return a plain tensor if there is one component and no argument is an expansion."""
    if len(components) == 1 and not any(isinstance(x, MCFTensor) for x in arguments):
        return components[0]
    return wrap(components)


def _gradient(value: Tensor, x: Tensor) -> Tensor:
    """Return a gradient as the type of x: rounded to a plain tensor if x is plain."""
    if isinstance(value, MCFTensor) and not isinstance(x, MCFTensor):
        return value.components[0]
    return value


class Reduction(torch.autograd.Function):
    """An autograd function that computes components and takes its derivative as an argument."""

    @staticmethod
    def forward(
        ctx: Any,
        compute: Callable[[], Components],
        backward: Callable[..., tuple[Tensor | None, ...]],
        *arguments: Tensor,
    ) -> Tensor:
        """Return `compute()`; `backward` is called with its gradient, it and the arguments."""
        result = _result(compute(), *arguments)
        ctx.save_for_backward(result, *arguments)
        ctx.derivative = backward
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Return gradients of the same types as the arguments."""
        result, *arguments = ctx.saved_tensors
        gradients = ctx.derivative(grad, result, *arguments)
        kind = [
            None if g is None else _gradient(g, x)
            for g, x in zip(gradients, arguments, strict=True)
        ]
        return None, None, *kind


def _spread(grad: Tensor, rows: Rows, keepdim: bool) -> Tensor:
    """Return the gradient of a sum: the result's gradient, expanded to every element."""
    if not keepdim:
        grad = grad.reshape(rows.result_shape(True))
    return grad.expand(rows.shape)


def sum(
    x: Tensor,
    dim: Dim = None,
    keepdim: bool = False,
    *,
    terms: int | None = None,
    reproducible: bool = False,
) -> Tensor:
    """Return the sum over dimensions.

    Args:
        x: the tensor.
        dim: the dimensions, all by default.
        keepdim: keep them with size 1.
        terms: components of the result.
        reproducible: sum exactly and round once.

    Raises:
        TypeError: for other dtypes.
        ValueError: for other numbers of terms.
        IndexError: for a dimension that x does not have.
    """
    check_terms("sum", terms)
    given, rows = components_of("sum", "x", x), Rows.of(x.shape, dim)
    return Reduction.apply(  # type: ignore[no-any-return, no-untyped-call]
        lambda: reductions.sum(given, dim, keepdim, terms=terms, reproducible=reproducible),
        lambda grad, result, x: (_spread(grad, rows, keepdim),),
        x,
    )


def mean(
    x: Tensor, dim: Dim = None, keepdim: bool = False, *, reproducible: bool = False
) -> Tensor:
    """Return the mean over dimensions (the sum over the count); arguments as in `sum`."""
    given, rows = components_of("mean", "x", x), Rows.of(x.shape, dim)
    return Reduction.apply(  # type: ignore[no-any-return, no-untyped-call]
        lambda: reductions.mean(given, dim, keepdim, reproducible=reproducible),
        lambda grad, result, x: (_spread(grad / rows.length, rows, keepdim),),
        x,
    )


def dot(x: Tensor, y: Tensor, *, terms: int | None = None, reproducible: bool = False) -> Tensor:
    """Return the dot product of two vectors of one dtype.

    Args:
        x: a vector, plain or of expansions.
        y: a vector of the same length, plain or of expansions.
        terms: components of the result.
        reproducible: sum the exact products exactly and round once; underflow cannot harm then.

    Without `reproducible` products should not be smaller than about the smallest normal number over
    u, below which the error of a product is lost (float64 only).

    Raises:
        TypeError: for other or mixed dtypes.
        ValueError: for other shapes or numbers of terms.
    """
    check_terms("dot", terms)
    a, b = components_of("dot", "x", x), components_of("dot", "y", y)
    return Reduction.apply(  # type: ignore[no-any-return, no-untyped-call]
        lambda: reductions.dot(a, b, terms=terms, reproducible=reproducible),
        lambda grad, result, x, y: (grad * y, grad * x),
        x,
        y,
    )


def norm(
    x: Tensor,
    p: float = 2,
    dim: Dim = None,
    keepdim: bool = False,
    *,
    terms: int | None = None,
    reproducible: bool = False,
) -> Tensor:
    """Return the p-norm over dimensions, for p = 0, 1, 2, inf or -inf, without spurious overflow.

    Arguments and errors as in `sum`; `ValueError` for another p. Only the 2-norm has a derivative,
    which is 0 where the norm is 0.
    """
    check_terms("norm", terms)
    if p not in (0, 1, 2, math.inf, -math.inf):
        raise ValueError(
            f"norm: p must be 0, 1, 2, inf or -inf, got {p}; torch.linalg.vector_norm takes any p "
            "on an expansion tensor"
        )
    given, rows = components_of("norm", "x", x), Rows.of(x.shape, dim)
    if p != 2 and x.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(f"norm: only p=2 has a derivative, got p={p} and x requires grad")

    def derivative(grad: Tensor, result: Tensor, x: Tensor) -> tuple[Tensor]:
        zero = result == 0
        share = grad.masked_fill(zero, 0) / result.masked_fill(zero, 1)
        return (x * _spread(share, rows, keepdim),)

    return Reduction.apply(  # type: ignore[no-any-return, no-untyped-call]
        lambda: reductions.norm(given, p, dim, keepdim, terms=terms, reproducible=reproducible),
        derivative,
        x,
    )


def _moment(
    name: str, x: Tensor, dim: Dim, correction: float, keepdim: bool, reproducible: bool
) -> Tensor:
    given = components_of(name, "x", x)
    if x.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(
            f"{name}: x requires grad, and mcf.{name} has no derivative; use torch.{name} on an "
            "expansion tensor, detach x or use torch.no_grad()"
        )
    compute: Callable[..., Components] = getattr(reductions, name)
    found = compute(given, dim, correction, keepdim=keepdim, reproducible=reproducible)
    return _result(found, x)


def var(
    x: Tensor,
    dim: Dim = None,
    *,
    correction: float = 1,
    keepdim: bool = False,
    reproducible: bool = False,
) -> Tensor:
    """Return the variance over dimensions: sum of squared deviations over count - correction.

    Arguments as in `torch.var`. There is no derivative: `RuntimeError` for an x that requires grad
    while grad mode is on.
    """
    return _moment("var", x, dim, correction, keepdim, reproducible)


def std(
    x: Tensor,
    dim: Dim = None,
    *,
    correction: float = 1,
    keepdim: bool = False,
    reproducible: bool = False,
) -> Tensor:
    """Return the square root of the variance; see `var`."""
    return _moment("std", x, dim, correction, keepdim, reproducible)
