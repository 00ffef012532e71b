"""Cholesky factors, and what triangular matrices solve, by plan: `mcf.tensor.factor_plans`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.kernels import registry
from mcf.kernels.elimination import elimination
from mcf.kernels.formats import FORMATS
from mcf.tensor.copies import Copies
from mcf.tensor.factor_plans import Run, flat, loop, narrowed, new
from mcf.tensor.launches import SMALL
from mcf.tensor.tensor import Components, MCFTensor, fresh

_empty_like, _address, _array = torch.empty_like, Tensor.data_ptr, Tensor.numpy
_copy, _cpu = np.copyto, torch.device("cpu")


def root(terms: int, a: Tensor, upper: bool, examined: bool = False) -> Run | None:
    """L with A = L L^T, or its transpose; with the numbers of bad minors where they are wanted."""
    if a.shape[-1] != a.shape[-2]:
        return None
    call = loop("cholesky", terms, a)
    if call is None:
        return None
    order = tuple(range(a.ndim))
    turned = (*order[:-2], order[-1], order[-2]) if upper else order
    copies, size = Copies(terms, a.shape, turned, a.dtype), a.shape
    like = new(size, a.dtype)
    # Of the result: what is neither read nor written.
    rest = np.triu(np.ones(size[-2:], dtype=bool), 1)
    rest = rest.T if upper else rest
    # Of more elements an index takes memory, and other calls little beside the loop.
    take: Any = None
    if a.numel() <= SMALL:
        index = np.where(rest, copies.zero, copies.numbers())
        take = copies.taking(index)
        if take is None:
            return None
    numbers = new(size[:-2], torch.int32)
    narrow = narrowed(flat(a)[0])

    def few(parts: Components) -> tuple[Any, list[Tensor]]:
        room = copies.taken(parts)
        info, _ = call(room[1])
        out = [_empty_like(like) for _ in parts]
        take([*room[1], *map(_address, out)])
        copies.freed(room)
        return info, out

    def many(parts: Components) -> tuple[Any, list[Tensor]]:
        turned = [c.mT if upper else c for c in parts]
        out = [_empty_like(like).copy_(c) for c in turned]
        info, _ = call([*map(_address, out)])
        out = [x.tril_() for x in out]
        return info, [x.mT.contiguous() for x in out] if upper else out

    compute = few if a.numel() <= SMALL else many

    def run(parts: Components) -> Any:
        info, out = compute(parts)
        if not examined and any(info):
            return None
        factor = fresh(out, size, like.dtype, _cpu)
        if not examined:
            return factor
        minors = _empty_like(numbers)
        narrow([info.buffer_info()[0], _address(minors)])
        return factor, minors

    return run


def substitution(terms: int, a: Tensor, b: Tensor, upper: bool, unit: bool) -> Any:
    """The loop that solves A X = B of triangular A in the place of B, or None."""
    shape = flat(b) if b.ndim > 1 else (0, 0, 0)
    n = shape[1]
    if a.shape[-2:] != (n, n) or a.shape[:-2] != b.shape[:-2]:
        return None
    if a.ndim > 3 and not a.is_contiguous():
        return None
    strides = (a.stride(0) if a.ndim == 3 else n * n, *a.stride()[-2:])
    spec = elimination("substitution", FORMATS[a.dtype], terms)
    return registry.on(a.device).prepare_substitution(spec, shape, strides, upper, unit)


def substituted(terms: int, a: Tensor, b: Tensor, upper: bool, unit: bool) -> Run | None:
    """X with A X = B of triangular A."""
    call, size = substitution(terms, a, b, upper, unit), b.shape
    if call is None:
        return None
    like = new(size, a.dtype)

    def run(parts: Components, right: Components) -> MCFTensor:
        out = [_empty_like(like) for _ in parts]
        for x, c in zip(out, right, strict=True):
            _copy(_array(x), _array(c))
        call([*map(_address, parts)], [*map(_address, out)])
        return fresh(out, size, like.dtype, _cpu)

    return run


def substituted_twice(terms: int, a: Tensor, b: Tensor) -> Run | None:
    """X with P L U X = B of one matrix L U, for pivots that come beside."""
    low = substitution(terms, a, b, False, True) if a.ndim == 2 else None
    high = substitution(terms, a, b, True, False) if a.ndim == 2 else None
    if low is None or high is None:
        return None
    size, n = b.shape, b.shape[0]
    like, home = new(size, a.dtype), range(n)

    def run(parts: Components, right: Components, pivots: list[int]) -> MCFTensor | None:
        order = [*home]
        if len(pivots) != n:
            return None
        for j, other in enumerate(pivots):
            if not 1 <= other <= n:
                return None
            order[j], order[other - 1] = order[other - 1], order[j]
        out = [_empty_like(like) for _ in parts]
        for x, c in zip(out, right, strict=True):
            # All places are in range; else NumPy would look first.
            _array(c).take(order, 0, out=_array(x), mode="clip")
        places, given = [*map(_address, out)], [*map(_address, parts)]
        low(given, places)
        high(given, places)
        return fresh(out, size, like.dtype, _cpu)

    return run
