"""Gather elements of a tensor by index, and test elements, as native steps.

The steps belong to a sequence of launches, see `mcf.kernels.sequence`.
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.kernels.sequence import Bound, native_of

_WORD = 8


def taken(x: Tensor, dim: int, index: Tensor, out: Tensor, *, along: bool, wraps: bool) -> Bound:
    """Gather elements of x along a dimension into out; an index out of range is counted.

    Args:
        x: the tensor, of elements of 8, 4 or 1 bytes.
        dim: the dimension, not negative.
        index: int64, the numbers.
        out: contiguous, of x's dtype, where the result goes.
        along: whether each element of the result has a number of its own, as in `torch.gather`;
            else each stands for all that the other dimensions have, as in `x[:, index]`.
        wraps: whether numbers below 0 count from the end.
    """
    places = np.indices(out.shape)
    if along:
        which, others = places, [*places]
    else:
        which = places[dim : dim + index.ndim]
        others = [*places[:dim], None, *places[dim + index.ndim :]]
    others[dim] = None
    start, number = (_elements(t, at, out.shape) for t, at in ((x, others), (index, [*which])))
    table = array("q", [out.numel(), x.element_size(), x.shape[dim], x.stride(dim), wraps])
    table.extend([t.data_ptr() for t in (x, index, out)])
    table.extend([start.ctypes.data, number.ctypes.data, 0, 0])
    place = table.buffer_info()[0]
    outside, zero = place + 10 * _WORD, place + 11 * _WORD
    keep = table, start, number, x, index, out
    return Bound(native_of("take", _TAKE).address, place, (zero, zero), outside, keep)


def takes(x: Tensor, index: Tensor, out: Tensor) -> bool:
    """Return whether `taken` supports these tensors."""
    return (
        x.element_size() in (8, 4, 1)
        and x.ndim > 0
        and index.dtype is torch.int64
        and out.is_contiguous()
        and out.dtype is x.dtype
        and not any(t.is_neg() or t.is_conj() for t in (x, index, out))
    )


def _elements(x: Tensor, places: list[Any], size: torch.Size) -> Any:
    """Return offsets of elements from a tensor's address, in elements; None stands for index 0."""
    found = np.zeros(size, np.int64)
    for at, step in zip(places, x.stride(), strict=True):
        if at is not None:
            found += at * step
    return found.ravel()


def expected(x: Tensor, bits: int) -> Bound:
    """Test that the first element of a contiguous tensor has these bits."""
    table = array("q", [x.element_size(), x.data_ptr(), bits, 0, 0])
    place = table.buffer_info()[0]
    other, zero = place + 3 * _WORD, place + 4 * _WORD
    code = native_of("expected", _EXPECTED).address
    return Bound(code, place, (zero, zero), other, (table, x))


_EXPECTED = """
def kernel(data):
    size, source, bits = number(data, 0), word(data, 1), number(data, 2)
    if size == 8:
        x = number(source, 0)
    elif size == 4:
        x = half(source, 0)
    else:
        x = byte(source, 0)
    put(data, 3, 1 if x != bits else 0)
"""

_TAKE = """
def kernel(data):
    count, size, limit, step = number(data, 0), number(data, 1), number(data, 2), number(data, 3)
    source, index, out = word(data, 5), word(data, 6), word(data, 7)
    start, which = word(data, 8), word(data, 9)
    outside = 0
    for i in range(count):
        k = number(index, number(which, i))
        if number(data, 4) != 0 and k < 0:
            k += limit
        if k < 0 or k >= limit:
            outside = 1
        else:
            j = number(start, i) + k * step
            if size == 8:
                put(out, i, number(source, j))
            elif size == 4:
                put_half(out, i, half(source, j))
            else:
                put_byte(out, i, byte(source, j))
    put(data, 10, outside)
"""
