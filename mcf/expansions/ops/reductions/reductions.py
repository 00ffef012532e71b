"""Implement sums, products, norms, moments and correlations over dimensions, with derivatives.

PyTorch's derivatives of moments contain a factor rounded to double precision, or need operators
that expansion tensors lack.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from mcf import reductions
from mcf.convert.rounding import convert
from mcf.expansions.conversion import plain
from mcf.expansions.dispatch.recorded import recorded
from mcf.expansions.dispatch.registry import UnsupportedError, forms, implements
from mcf.expansions.dispatch.torch_functions import forward
from mcf.expansions.dispatch.widening import fitted, roomy
from mcf.expansions.launch.reductions import reduced
from mcf.expansions.launch.row_functions import arranged
from mcf.expansions.ops.arithmetic.constants import row_scale
from mcf.expansions.promotion import operands
from mcf.expansions.tensor import Components, MCFTensor, wrap
from mcf.kernels.formats import FORMATS
from mcf.reductions.rows import Rows

aten = torch.ops.aten


def _components(x: MCFTensor, dtype: torch.dtype | None, name: str) -> Components:
    if dtype is None or dtype is x.dtype:
        return x.components
    if dtype not in FORMATS:
        raise UnsupportedError(f"{name}: dtype must be a floating-point format, got {dtype}")
    return convert(x.components, dtype, x.terms)


def _reduce(
    name: str,
    func: Any,
    few: Callable[..., Any],
    x: MCFTensor,
    dtype: torch.dtype | None,
    *args: Any,
) -> Tensor:
    """Return a reduction or running reduction.

    Args:
        name: its name in `mcf.reductions`.
        func: PyTorch's operator, for integer and bool dtypes.
        few: reduces a small tensor in one native call, or returns None.
        x: the tensor.
        dtype: the dtype of the result; None for that of x.
        *args: the dimensions, and whether they remain with size 1.
    """
    if dtype is None or dtype is x.dtype:
        found: Tensor | None = few(name, x, *args)
        if found is not None:
            return found
    elif not dtype.is_floating_point and not dtype.is_complex:
        whole: Tensor = func(plain(x, dtype), *args, dtype=dtype)
        return whole
    return wrap(getattr(reductions, name)(_components(x, dtype, name), *args))


def _of_rows(name: str, x: MCFTensor, dim: Any = None, keepdim: bool = False) -> Any:
    """Return products or running sums and products of rows, or None."""
    found = arranged(name, x, dim, keepdim=keepdim)
    return None if found is None else found[0]


def _registered(
    name: str, few: Callable[..., Any], over: OpOverload, whole: OpOverload | None = None
) -> Any:
    """Register a reduction over dimensions, and of all elements; or a running reduction."""

    def reduction(x: MCFTensor, *args: Any, dtype: torch.dtype | None = None) -> Any:
        return _reduce(name, over, few, x, dtype, *args)

    implements(over)(reduction)
    if whole is not None:
        implements(whole)(lambda x, *, dtype=None: _reduce(name, whole, few, x, dtype))
    return reduction


sum_dims = _registered("sum", reduced, aten.sum.dim_IntList, aten.sum.default)
mean_dims = _registered("mean", reduced, aten.mean.dim, aten.mean.default)
_registered("prod", _of_rows, aten.prod.dim_int, aten.prod.default)
_registered("cumsum", _of_rows, aten.cumsum.default)
_registered("cumprod", _of_rows, aten.cumprod.default)


@implements(aten.trace.default)
def trace(x: MCFTensor) -> Tensor:
    """Return the sum of a matrix's diagonal."""
    if x.dim() != 2:
        raise RuntimeError(f"trace: expected a matrix, got {x.dim()} dimensions")
    return sum_dims(x.diagonal())  # type: ignore[no-any-return]


def _spread(name: str) -> Any:
    """Register the variance or the standard deviation over dimensions, alone and with the mean."""

    def spread(
        x: MCFTensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False
    ) -> Tensor:
        less = 1.0 if correction is None else float(correction)
        few = reduced(name, x, dim, keepdim, less)
        if few is not None:
            return few
        return wrap(getattr(reductions, name)(x.components, dim, less, keepdim))

    def with_mean(
        x: MCFTensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False
    ) -> tuple[Tensor, Tensor]:
        return spread(x, dim, correction=correction, keepdim=keepdim), mean_dims(x, dim, keepdim)

    implements(getattr(aten, f"{name}_mean").correction)(with_mean)
    return implements(getattr(aten, name).correction)(spread)


_var, _std = _spread("var"), _spread("std")


@implements(aten.linalg_vector_norm.default)
def vector_norm(
    x: MCFTensor,
    ord: Any = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return the norm over dimensions."""
    if ord == 2 and (dtype is None or dtype is x.dtype):
        few = reduced("norm", x, dim, keepdim)
        if few is not None:
            return few
    given = _components(x, dtype, "linalg.vector_norm")
    if math.isnan(ord):
        # As in PyTorch: NaN for several elements, |x| for one and 0 for none.
        sizes = reductions.norm(given, 1.0, dim, keepdim)
        if Rows.of(x.shape, dim).length > 1:
            sizes = (sizes[0] * math.nan, *(c * 0.0 for c in sizes[1:]))
        return wrap(sizes)
    return wrap(reductions.norm(given, float(ord), dim, keepdim))


@implements(aten.norm.Scalar, aten.norm.ScalarOpt_dim)
def norm_(x: MCFTensor, p: Any = 2, dim: Any = None, keepdim: bool = False) -> Tensor:
    """Return the vector norm over dimensions, under its old name."""
    return vector_norm(x, 2 if p is None else p, dim, keepdim)


@implements(aten.dot.default, aten.vdot.default)
def dot(x: Any, y: Any) -> Tensor:
    """Return the dot product of two vectors."""
    if x.dim() != 1 or y.dim() != 1:
        raise RuntimeError(f"1D tensors expected, but got {x.dim()}D and {y.dim()}D tensors")
    if x.shape != y.shape:
        raise RuntimeError(
            f"inconsistent tensor size, expected tensor {list(x.shape)} and src {list(y.shape)} to "
            f"have the same number of elements, but got {x.numel()} and {y.numel()} elements "
            "respectively"
        )
    few = reduced("dot", x, y=y)
    if few is not None:
        return few
    return wrap(reductions.dot(*operands(x, y)))


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


class _Moment(torch.autograd.Function):
    """Variance or standard deviation, with derivatives in our arithmetic.

    That of the variance is 2 (x - mean) / (count - correction), that of the standard deviation
    (x - mean) / ((count - correction) std), or 0 where std is 0.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, name: str, dim: Dims, correction: float, keepdim: bool
    ) -> Tensor:
        result: Tensor = getattr(aten, name).correction(
            x, dim, correction=correction, keepdim=keepdim
        )
        ctx.save_for_backward(x, result)
        ctx.options = name, dim, correction, keepdim
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, result = ctx.saved_tensors
        name, dim, correction, keepdim = ctx.options
        degrees = _degrees(x, dim, correction)
        if name == "var":
            slope = _gap(x, dim) * 2 / degrees
            return _kept(grad, x, dim, keepdim) * slope, *(None,) * 4
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
        found = share / torch.where(zero, 1, result) * (gap / degrees)
        return fitted(found, x), *(None,) * 4


def _register_moment(name: str, computed: Any) -> None:
    """Register the variance or the standard deviation, alone and with the mean."""

    def moment(
        input: Tensor,
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
        if not recorded(input):
            return computed(input, dim, correction=degrees, keepdim=keepdim)  # type: ignore[no-any-return]
        return _Moment.apply(input, name, dim, degrees, keepdim)  # type: ignore[no-any-return, no-untyped-call]

    def with_mean(input: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        value = moment(input, *args, **kwargs)
        dim = kwargs.get("dim", args[0] if args else None)
        if dim is None or isinstance(dim, bool):
            return value, input.mean().reshape(value.shape)
        return value, input.mean(dim, keepdim=value.ndim == input.ndim)

    implements(*forms(name))(moment)
    implements(getattr(torch, f"{name}_mean"))(with_mean)


_register_moment("var", _var)
_register_moment("std", _std)


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
