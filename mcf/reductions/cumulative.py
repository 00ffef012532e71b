"""Products over dimensions and running sums, as trees."""

from __future__ import annotations

from collections.abc import Callable

import torch

from mcf.convert.rounding import convert
from mcf.kernels import operations
from mcf.kernels.fold import state_for
from mcf.kernels.formats import format_of
from mcf.reductions.folds import finish
from mcf.reductions.rows import Components, Dim, Rows
from mcf.reductions.sums import _shaped

Binary = Callable[[Components, Components], Components]


def _wide(x: Components) -> Components:
    """Float64 expansions, exact but for components that span more than they hold."""
    if x[0].dtype is torch.float64:
        return x if len(x) > 1 else (x[0], torch.zeros_like(x[0]))
    fmt = format_of(x[0].dtype)
    return convert(x, torch.float64, state_for(fmt, len(x)))


def prod(x: Components, dim: Dim = None, keepdim: bool = False) -> Components:
    """The product over dimensions, multiplied pairwise: element j by element j + ceil(c / 2).

    With the error bound b of a multiplication the relative error is at most (1 + b)**(count - 1) -
    1, without overflow and underflow on the way. Narrow components are multiplied in float64.
    """
    fmt = format_of(x[0].dtype, "prod: x")
    rows = Rows.of(x[0].shape, dim)
    if rows.length == 0:
        one = torch.ones(rows.result_shape(keepdim), dtype=x[0].dtype, device=x[0].device)
        return one, *(torch.zeros_like(one) for _ in x[1:])
    given = tuple(c.mT.contiguous() for c in _wide(tuple(rows.gather(x))))
    count = rows.length
    while count > 1:
        half = (count + 1) // 2
        low = tuple(c[: count - half] for c in given)
        both = operations.mul(low, tuple(c[half:count] for c in given))
        given = tuple(
            torch.cat([b, c[count - half : half]]) for b, c in zip(both, given, strict=True)
        )
        count = half
    return _shaped(finish(tuple(c[0] for c in given), fmt, len(x)), rows, keepdim)


def cumsum(x: Components, dim: int) -> Components:
    """Running sums along a dimension, as a tree: each is of at most 2 log2(count) additions.

    The error is at most 2 log2(count) b times the running sum of absolute values, with the error
    bound b of an addition. Narrow components are added in float64.
    """
    return _running("cumsum", operations.add, x, dim)


def cumprod(x: Components, dim: int) -> Components:
    """Running products along a dimension, as a tree.

    With the error bound b of a multiplication the relative error of the k-th is at most
    (1 + b)**(k - 1) - 1, without overflow and underflow on the way. Narrow components are
    multiplied in float64.
    """
    return _running("cumprod", operations.mul, x, dim)


def _running(name: str, function: Binary, x: Components, dim: int) -> Components:
    fmt = format_of(x[0].dtype, f"{name}: x")
    if x[0].dim() == 0 or x[0].numel() == 0:
        Rows.of(x[0].shape, dim)
        return tuple(c.clone() for c in x)
    wide = _wide(tuple(c.movedim(dim, 0).contiguous() for c in x))
    result = finish(_scan(function, wide), fmt, len(x))
    return tuple(c.movedim(0, dim).contiguous() for c in result)


def _scan(function: Binary, x: Components) -> Components:
    """Running sums along the first dimension: sums of pairs, their running sums, the odd ones.

    Or products, by the function of two expansions.
    """
    count = x[0].shape[0]
    if count == 1:
        return x
    pairs = count // 2
    sums = function(tuple(c[0 : 2 * pairs : 2] for c in x), tuple(c[1 : 2 * pairs : 2] for c in x))
    running = _scan(function, sums)
    out = tuple(torch.empty_like(c) for c in x)
    for o, r, c in zip(out, running, x, strict=True):
        o[1 : 2 * pairs : 2] = r
        o[0] = c[0]
    if count > 2:
        before = tuple(r[: (count - 1) // 2] for r in running)
        between = function(before, tuple(c[2::2] for c in x))
        for o, b in zip(out, between, strict=True):
            o[2::2] = b
    return out
