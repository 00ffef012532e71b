"""Implement `unique`, `searchsorted`, `bucketize` and `isin`, by value."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from mcf.convert.rounding import convert
from mcf.expansions.creation import tensor
from mcf.expansions.dispatch.recorded import unseen
from mcf.expansions.dispatch.registry import implements
from mcf.expansions.launch.operations import unrounded
from mcf.expansions.launch.row_functions import places
from mcf.expansions.ops.arithmetic.comparison import equal
from mcf.expansions.ops.order.order import keys
from mcf.expansions.promotion import aligned
from mcf.expansions.tensor import Components, MCFTensor, wrap
from mcf.kernels import operations
from mcf.kernels.ordering import search

aten = torch.ops.aten

Unique = tuple[Tensor, Tensor, Tensor]


def _runs(rows: MCFTensor) -> Tensor:
    """Return whether each row of [m, ...] differs from the one before it; True for the first."""
    first = torch.ones(rows.shape[0], dtype=torch.bool, device=rows.device)
    if rows.shape[0] > 1:
        same = equal(rows[1:], rows[:-1])
        first[1:] = ~same.reshape(same.shape[0], -1).all(1)
    return first


def _unique(
    rows: Any, order: Tensor, return_inverse: bool, return_counts: bool, shape: torch.Size
) -> Unique:
    """Return the first of each run of equal rows, which `order` has sorted."""
    none = torch.empty(0, dtype=torch.int64, device=rows.device)
    first = _runs(rows)
    number = first.cumsum(0) - 1
    inverse, counts = none, none
    if return_inverse:
        inverse = torch.empty_like(number).scatter_(0, order, number).reshape(shape)
    if return_counts:
        counts = torch.bincount(number, minlength=int(first.sum()))
    return rows[first], inverse, counts


@implements(aten._unique2.default)
def unique(
    x: MCFTensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Unique:
    """Return the unique values, sorted; each NaN is unique."""
    flat: Any = x.reshape(-1)
    rows, order = flat.sort()
    return _unique(rows, order, return_inverse, return_counts, x.shape)


@implements(aten.unique_dim.default)
def unique_dim(
    x: MCFTensor,
    dim: int,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> Unique:
    """Return the unique slices of a dimension, sorted."""
    rows: Any = x.movedim(dim, 0).contiguous()
    if 0 in rows.shape[1:]:
        raise RuntimeError(f"unique: slices of dimension {dim} have no elements: {list(x.shape)}")
    columns = rows.reshape(rows.shape[0], math.prod(rows.shape[1:]))
    order = torch.arange(rows.shape[0], device=x.device)
    for k in reversed(range(columns.shape[1])):
        # Sorts are stable, so the first column, sorted last, is the most significant.
        order = order[columns[order, k].argsort()]
    out, inverse, counts = _unique(rows[order], order, return_inverse, return_counts, order.shape)
    return out.movedim(0, dim), inverse, counts


@implements(aten.unique_consecutive.default)
def unique_consecutive(
    x: MCFTensor,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Unique:
    """Return the first of each run of equal values, or of equal slices of a dimension."""
    rows: Any = x.reshape(-1) if dim is None else x.movedim(dim, 0).contiguous()
    order = torch.arange(rows.shape[0], device=x.device)
    shape = x.shape if dim is None else order.shape
    out, inverse, counts = _unique(rows, order, return_inverse, return_counts, shape)
    return (out if dim is None else out.movedim(0, dim)), inverse, counts


def _as_tensor(value: Any, like: Tensor) -> Tensor:
    # Four components of float64 hold any number that PyTorch accepts exactly.
    return value if isinstance(value, Tensor) else tensor(value, 4, torch.float64, like.device)


def _canonical(*values: Any) -> list[Components]:
    """Return keys of one format and length, whose lexicographic order is that of the values."""
    parts = unrounded(*values)
    narrow = [None if unseen(c[0]) else keys(wrap(c)) for c in parts]
    if all(k is not None for k in narrow):
        some = [k for k in narrow if k is not None]
        longest = max(some, key=len)
        return [(*k, *(torch.zeros_like(k[0]) for _ in longest[len(k) :])) for k in some]
    terms = max(map(len, parts))
    return [
        # A pair is canonical if its first component is the rounded sum: one kernel suffices.
        operations.renormalize(c) if terms == len(c) == 2 else convert(c, c[0].dtype, terms)
        for c in parts
    ]


@implements(aten.searchsorted.Tensor, aten.searchsorted.Scalar)
def searchsorted(
    sequence: Tensor,
    values: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """Return the insertion index of each value: the count of smaller (or equal, for right) ones."""
    if side is not None and side not in ("left", "right"):
        raise RuntimeError(f"searchsorted: side must be 'left' or 'right', got {side!r}")
    if right and side == "left":
        raise RuntimeError("searchsorted: side='left' contradicts right=True")
    right = right or side == "right"
    if sorter is None:
        few = places(sequence, values, right)
        if few is not None:
            return few.to(torch.int32) if out_int32 else few
    wanted = _as_tensor(values, sequence)
    if sorter is not None:
        sequence = sequence.gather(-1, sorter)
    if sequence.dim() != 1 and sequence.shape[:-1] != wanted.shape[:-1]:
        raise RuntimeError(
            "searchsorted: the sequence must be one-dimensional or match all dimensions of the "
            f"values but the last, got {list(sequence.shape)} and {list(wanted.shape)}"
        )
    ordered, numbers = _canonical(sequence, wanted)
    low = search(ordered, numbers, right)
    return low.to(torch.int32) if out_int32 else low


@implements(aten.bucketize.Tensor, aten.bucketize.Scalar)
def bucketize(
    values: Any, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    """Return the number of boundaries less than each value (or equal, for right)."""
    return searchsorted(boundaries, values, out_int32=out_int32, right=right)


@implements(aten.isin.Tensor_Tensor, aten.isin.Tensor_Scalar, aten.isin.Scalar_Tensor)
def isin(
    elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False
) -> Tensor:
    """Return whether each element is one of `test_elements`, by value."""
    like = elements if isinstance(elements, Tensor) else test_elements
    x, among = _as_tensor(elements, like), _as_tensor(test_elements, like).reshape(-1)
    if among.numel() == 0:
        return torch.full(x.shape, invert, device=x.device)
    if not among.is_floating_point():
        # Keep all digits of integers, which may exceed the other format.
        among = tensor(among, 4, torch.float64, among.device)
    ordered: Any = wrap(aligned(among, x)[0]).sort().values
    at = searchsorted(ordered, x).clamp_max(ordered.numel() - 1)
    return equal(ordered[at], x) ^ invert
