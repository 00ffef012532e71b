"""Implement variances, standard deviations and correlations, with derivatives.

PyTorch's derivatives contain a factor rounded to double precision, or need operators that expansion
tensors lack.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from mcf.expansions.dispatch.recorded import recorded
from mcf.expansions.dispatch.registry import implements
from mcf.expansions.dispatch.torch_functions import forward
from mcf.expansions.dispatch.widening import fitted, roomy
from mcf.expansions.ops.arithmetic.powers_of_two import row_scale
from mcf.expansions.ops.reductions import reductions

Dims = int | tuple[int, ...] | list[int] | None


def _degrees(x: Tensor, dim: Dims, correction: float) -> float:
    dims = range(x.ndim) if dim is None or dim == () or dim == [] else dim
    dims = (dims,) if isinstance(dims, int) else dims
    count = math.prod(x.shape[d] for d in dims) if x.ndim else 1
    return max(0.0, count - correction)


def _gap(x: Tensor, dim: Dims) -> Tensor:
    mean = x.mean() if dim is None or dim == () else x.mean(dim, keepdim=True)
    return x - mean


def _kept(t: Tensor, x: Tensor, dim: Dims, keepdim: bool) -> Tensor:
    """Restore the reduced dimensions of a result as size 1."""
    if keepdim or dim is None or dim == () or x.ndim == 0:
        return t
    dims = {d % x.ndim for d in ((dim,) if isinstance(dim, int) else dim)}
    return t.reshape([1 if d in dims else s for d, s in enumerate(x.shape)])


class _Var(torch.autograd.Function):
    """Variance with the derivative 2 (x - mean) / (count - correction)."""

    computed = staticmethod(reductions.var)

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: Dims, correction: float, keepdim: bool) -> Tensor:
        ctx.save_for_backward(x)
        ctx.options = (dim, correction, keepdim)
        result: Tensor = torch.ops.aten.var.correction(
            x, dim, correction=correction, keepdim=keepdim
        )
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        dim, correction, keepdim = ctx.options
        slope = _gap(x, dim) * 2 / _degrees(x, dim, correction)
        return _kept(grad, x, dim, keepdim) * slope, None, None, None


class _Std(torch.autograd.Function):
    """Standard deviation with the derivative (x - mean) / ((count - correction) std).

    The derivative is 0 where std is 0.
    """

    computed = staticmethod(reductions.std)

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: Dims, correction: float, keepdim: bool) -> Tensor:
        result: Tensor = torch.ops.aten.std.correction(
            x, dim, correction=correction, keepdim=keepdim
        )
        ctx.save_for_backward(x, result)
        ctx.options = (dim, correction, keepdim)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, result = ctx.saved_tensors
        dim, correction, keepdim = ctx.options
        gap, result = _gap(roomy(x), dim), _kept(result, x, dim, keepdim)
        dims = list(range(x.ndim)) if dim in (None, ()) else dim
        scale = row_scale(gap, dims)
        if scale is not None:
            gap = gap * scale
        if gap.dtype is not x.dtype or scale is not None:
            # Recompute std from the scaled gap, in its format.
            result = torch.std(gap, dims, correction=correction, keepdim=True)
        zero = result == 0
        share = torch.where(zero, 0, _kept(roomy(grad), x, dim, keepdim))
        slope = gap / _degrees(x, dim, correction)
        found = share / torch.where(zero, 1, result) * slope
        return fitted(found, x), None, None, None


def _moment(
    function: Any,
    x: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: Any = None,
) -> Tensor:
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if unbiased is not None:
        correction = int(unbiased)
    degrees = 1.0 if correction is None else float(correction)
    if not recorded(x):
        return function.computed(x, dim, correction=degrees, keepdim=keepdim)  # type: ignore[no-any-return]
    return function.apply(x, dim, degrees, keepdim)  # type: ignore[no-any-return]


@implements(torch.var, Tensor.var)
def var(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Return the variance."""
    return _moment(_Var, input, *args, **kwargs)


@implements(torch.std, Tensor.std)
def std(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Return the standard deviation."""
    return _moment(_Std, input, *args, **kwargs)


def _with_mean(moment: Any, input: Tensor, args: Any, kwargs: Any) -> tuple[Tensor, Tensor]:
    value = moment(input, *args, **kwargs)
    dim = kwargs.get("dim", args[0] if args else None)
    if dim is None or isinstance(dim, bool):
        mean = input.mean().reshape(value.shape)
    else:
        mean = input.mean(dim, keepdim=value.ndim == input.ndim)
    return value, mean


@implements(torch.var_mean)
def var_mean(input: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """Return the variance and the mean."""
    return _with_mean(var, input, args, kwargs)


@implements(torch.std_mean)
def std_mean(input: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """Return the standard deviation and the mean."""
    return _with_mean(std, input, args, kwargs)


@implements(torch.corrcoef, Tensor.corrcoef)
def corrcoef(input: Tensor) -> Tensor:
    """Return the correlations of rows, even if their variances would overflow."""
    x = roomy(input)
    scale = row_scale(x, [-1]) if x.dim() else None
    found = forward(torch.corrcoef, (x if scale is None else x * scale,), {})
    return fitted(found, input)  # type: ignore[no-any-return]


@implements(torch.cumulative_trapezoid)
def cumulative_trapezoid(y: Any, x: Any = None, *, dx: Any = None, dim: int = -1) -> Any:
    """Return the running integral by trapezoids, computed in float32 for float16."""
    if x is not None and dx is not None:
        raise TypeError("cumulative_trapezoid: pass x or dx, not both")
    rest = {} if dx is None else {"dx": dx}
    given = (roomy(y),) if x is None else (roomy(y), roomy(x))
    found = forward(torch.cumulative_trapezoid, given, {**rest, "dim": dim})
    return fitted(found, y, x)
