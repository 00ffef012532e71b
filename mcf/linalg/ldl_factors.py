"""Bunch-Kaufman factorisation of symmetric matrices, and solving with its factors."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mcf.kernels import operations
from mcf.linalg import triangular
from mcf.linalg.parts import ALL, Components, assign, each, part, transpose
from mcf.reductions.products import matmul

# Bunch and Kaufman's constant: one 2 by 2 pivot has the same growth bound as two 1 by 1 pivots.
ALPHA = (1 + math.sqrt(17)) / 8


def factor(a: Components) -> tuple[Components, Tensor, Tensor]:
    """Return P A P^T = L D L^T of A [..., n, n], where D has blocks of 1 and 2 rows.

    Returns:
        L (unit, below D) and D in one matrix as LAPACK's `sytrf` has them; pivots, int32 [..., n]:
        the row from 1 that each was exchanged with, its negative twice for a block of two; and
        `info`, the number of the first block that is exactly 0, or 0.

    The factors are those of A + E with |E| <= c n u^terms (|A| + |L| |D| |L^T|) (Higham 2002,
    theorem 11.3, doi:10.1137/1.9780898718027; Bunch, Kaufman 1977,
    doi:10.1090/S0025-5718-1977-0428694-0).
    """
    n = a[0].shape[-1]
    a = each(lambda c: c.tril().clone(memory_format=torch.contiguous_format), a)
    pivots = torch.zeros(a[0].shape[:-1], dtype=torch.int32, device=a[0].device)
    info = torch.zeros(a[0].shape[:-2], dtype=torch.int32, device=a[0].device)
    if a[0].numel():
        flat = triangular.flat(a)
        for item in range(flat[0].shape[0]):
            one = each(lambda c, item=item: c[item], flat)  # type: ignore[misc]
            found, bad = _factor(one)
            pivots.view(-1, n)[item] = torch.tensor(found, dtype=torch.int32, device=pivots.device)
            info.view(-1)[item] = bad
    return a, pivots, info


def _factor(a: Components) -> tuple[list[int], int]:
    """Overwrite one lower triangle with L and D."""
    n, k, info = a[0].shape[-1], 0, 0
    pivots: list[int] = []
    while k < n:
        other, size = _pivot(a[0], k)
        last = k + size - 1
        if other != last:
            _exchange(a, k, last, other)
        pivots += [other + 1] if size == 1 else [-other - 1] * 2
        block, rest = slice(k, k + size), slice(k + size, n)
        if size == 1 and not bool(a[0][k, k] != 0):
            info = info or k + 1
        elif k + size < n:
            column = part(a, rest, block)
            low = _divided(transpose(column), part(a, block, block))
            update = matmul(column, low)
            below = operations.sub(part(a, rest, rest), update)
            assign(a, (rest, rest), each(torch.tril, below))
            assign(a, (rest, block), transpose(low))
        k += size
    return pivots, info


def _pivot(a: Tensor, k: int) -> tuple[int, int]:
    """Return the row to exchange with and the block's number of rows, from first components."""
    n = a.shape[-1]
    here = abs(a[k, k].item())
    if k + 1 == n:
        return k, 1
    column = a[k + 1 :, k].abs()
    row = int(column.argmax()) + k + 1
    most = column.max().item()
    if max(here, most) == 0 or here >= ALPHA * most or most != most:
        return k, 1
    along = torch.cat([a[row, k:row], a[row + 1 :, row]]).abs().max().item()
    if here >= ALPHA * most * (most / along):
        return k, 1
    if abs(a[row, row].item()) >= ALPHA * along:
        return row, 1
    return row, 2


def _exchange(a: Components, k: int, j: int, p: int) -> None:
    """Exchange rows and columns j < p of the trailing matrix from k on, in the lower triangle."""
    for c in a:
        for one, other in (
            (c[p + 1 :, j], c[p + 1 :, p]),
            (c[j + 1 : p, j], c[p, j + 1 : p]),
            (c[j, j], c[p, p]),
            (c[j, k:j], c[p, k:j]),
        ):
            kept = one.clone()
            one.copy_(other)
            other.copy_(kept)


def _divided(x: Components, d: Components) -> Components:
    """Return D^-1 X for a block of one or two rows, whose lower triangle is read."""
    if d[0].shape[-1] == 1:
        return operations.div(x, d)
    # Divide by the off-diagonal element, the largest, to avoid overflow (LAPACK's sytf2).
    side = part(d, slice(1, 2), slice(0, 1))
    first = operations.div(part(d, slice(0, 1), slice(0, 1)), side)
    second = operations.div(part(d, slice(1, 2), slice(1, 2)), side)
    one = torch.ones_like(side[0])
    scale = operations.sub(operations.mul(first, second), one)
    top = operations.div(part(x, slice(0, 1), ALL), side)
    bottom = operations.div(part(x, slice(1, 2), ALL), side)
    upper = operations.div(operations.sub(operations.mul(second, top), bottom), scale)
    lower = operations.div(operations.sub(operations.mul(first, bottom), top), scale)
    return tuple(torch.cat(both, -2) for both in zip(upper, lower, strict=True))


def solve(ld: Components, pivots: Tensor, b: Components) -> Components:
    """Solve A X = B with the result of `factor`; B [..., n, k], batches broadcast."""
    batch = triangular.broadcast(ld, b)
    n, k = b[0].shape[-2:]
    x = each(lambda c: c.expand(*batch, n, k).clone(memory_format=torch.contiguous_format), b)
    if x[0].numel():
        flat = each(lambda c: c.expand(*batch, n, n).reshape(-1, n, n), ld)
        rows = pivots.expand(*batch, n).reshape(-1, n).tolist()
        for item, order in enumerate(rows):
            matrix = each(lambda c, item=item: c[item], flat)  # type: ignore[misc]
            sides = each(lambda c, item=item: c[item], triangular.flat(x))  # type: ignore[misc]
            _solve(matrix, order, sides)
    return x


def _solve(ld: Components, pivots: list[int], x: Components) -> None:
    n = len(pivots)
    blocks, k = [], 0
    while k < n:
        size = 1 if pivots[k] > 0 else 2
        blocks.append((slice(k, k + size), slice(k + size, n), k + size - 1))
        k += size
    for block, rest, last in blocks:
        _swap(x, last, abs(pivots[last]) - 1)
        if rest.start < n:
            product = matmul(part(ld, rest, block), part(x, block, ALL))
            assign(x, (rest, ALL), operations.sub(part(x, rest, ALL), product))
        assign(x, (block, ALL), _divided(part(x, block, ALL), part(ld, block, block)))
    for block, rest, last in reversed(blocks):
        if rest.start < n:
            product = matmul(transpose(part(ld, rest, block)), part(x, rest, ALL))
            assign(x, (block, ALL), operations.sub(part(x, block, ALL), product))
        _swap(x, last, abs(pivots[last]) - 1)


def _swap(x: Components, i: int, j: int) -> None:
    if i != j:
        for c in x:
            c[[i, j]] = c[[j, i]]
