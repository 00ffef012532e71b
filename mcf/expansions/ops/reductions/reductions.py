"""Implement sums, products, norms and moments over dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mcf import reductions
from mcf.convert.rounding import convert
from mcf.expansions.conversion import plain
from mcf.expansions.dispatch.registry import UnsupportedError, implements
from mcf.expansions.launch.reductions import reduced
from mcf.expansions.launch.row_functions import arranged
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


@implements(aten.sum.dim_IntList)
def sum_dims(
    x: MCFTensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    """Return the sum over dimensions, all by default."""
    return _reduce("sum", aten.sum.dim_IntList, reduced, x, dtype, dim, keepdim)


@implements(aten.sum.default)
def sum_all(x: MCFTensor, *, dtype: torch.dtype | None = None) -> Tensor:
    """Return the sum of all elements."""
    return sum_dims(x, dtype=dtype)


@implements(aten.mean.dim)
def mean_dims(
    x: MCFTensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    """Return the mean over dimensions."""
    return _reduce("mean", aten.mean.dim, reduced, x, dtype, dim, keepdim)


@implements(aten.mean.default)
def mean_all(x: MCFTensor, *, dtype: torch.dtype | None = None) -> Tensor:
    """Return the mean of all elements."""
    return mean_dims(x, dtype=dtype)


@implements(aten.prod.dim_int)
def prod_dim(
    x: MCFTensor, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    """Return the product along a dimension."""
    return _reduce("prod", aten.prod.dim_int, _of_rows, x, dtype, dim, keepdim)


@implements(aten.prod.default)
def prod_all(x: MCFTensor, *, dtype: torch.dtype | None = None) -> Tensor:
    """Return the product of all elements."""
    return _reduce("prod", aten.prod.default, _of_rows, x, dtype)


@implements(aten.cumsum.default)
def cumsum(x: MCFTensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """Return the running sums along a dimension."""
    return _reduce("cumsum", aten.cumsum.default, _of_rows, x, dtype, dim)


@implements(aten.cumprod.default)
def cumprod(x: MCFTensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """Return the running products along a dimension."""
    return _reduce("cumprod", aten.cumprod.default, _of_rows, x, dtype, dim)


@implements(aten.trace.default)
def trace(x: MCFTensor) -> Tensor:
    """Return the sum of a matrix's diagonal."""
    if x.dim() != 2:
        raise RuntimeError(f"trace: expected a matrix, got {x.dim()} dimensions")
    return sum_all(x.diagonal())  # type: ignore[arg-type]


def _correction(correction: Any) -> float:
    return 1.0 if correction is None else float(correction)


@implements(aten.var.correction)
def var(x: MCFTensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Tensor:
    """Return the variance over dimensions."""
    few = reduced("var", x, dim, keepdim, _correction(correction))
    if few is not None:
        return few
    return wrap(reductions.var(x.components, dim, _correction(correction), keepdim))


@implements(aten.std.correction)
def std(x: MCFTensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Tensor:
    """Return the standard deviation over dimensions."""
    few = reduced("std", x, dim, keepdim, _correction(correction))
    if few is not None:
        return few
    return wrap(reductions.std(x.components, dim, _correction(correction), keepdim))


@implements(aten.var_mean.correction)
def var_mean(
    x: MCFTensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the variance and the mean over dimensions."""
    few = reduced("var", x, dim, keepdim, _correction(correction))
    if few is not None:
        return few, mean_dims(x, dim, keepdim)
    both = reductions.var_mean(x.components, dim, _correction(correction), keepdim)
    return wrap(both[0]), wrap(both[1])


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


@implements(aten.std_mean.correction)
def std_mean(
    x: MCFTensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the standard deviation and the mean over dimensions."""
    return std(x, dim, correction=correction, keepdim=keepdim), mean_dims(x, dim, keepdim)


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
