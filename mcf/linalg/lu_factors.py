"""LU factorisation with partial pivoting, and solutions and determinants computed from it."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from mcf.kernels import registry
from mcf.linalg import triangular
from mcf.linalg.number_kinds import REAL, Real
from mcf.linalg.parts import Components, assign, each, like, one_like, part, where


def factor(
    a: Components, pivot: bool = True, numbers: Real = REAL
) -> tuple[Components, Tensor, Tensor]:
    """Return P A = L U, right-looking and blocked.

    Returns:
        L (unit, below the diagonal) and U in one matrix of A's shape [..., m, n]; the row exchanged
        with each row, int32 from 1 as in LAPACK; and `info`, int32, the number of the first pivot
        that is exactly 0, or 0.

    The factors are those of a matrix A + E with |E| <= c n u^terms |L| |U| (Higham 2002, theorem
    9.3, doi:10.1137/1.9780898718027).
    """
    return _factored(a, pivot, numbers=numbers)[0]


# One panel with so many right-hand sides is done in one call, if the executor has a loop for it.
SIDES = 64

Factors = tuple[Components, Tensor, Tensor]


def solved(a: Components, b: Components, numbers: Real = REAL) -> tuple[Components, Factors]:
    """Return X with A X = B for square A, and the result of `factor`."""
    n, k = b[0].shape[-2:]
    batch = triangular.broadcast(a, b)
    if n <= triangular.BLOCK and 0 < k <= SIDES and batch == a[0].shape[:-2]:
        x = each(lambda c: c.expand(*batch, n, k).clone(memory_format=torch.contiguous_format), b)
        factors, done = _factored(a, sides=x, numbers=numbers)
        if done:
            return x, factors
    else:
        factors = factor(a, numbers=numbers)
    return solve(factors[0], factors[1], b, numbers=numbers), factors


def determined(a: Components, numbers: Real = REAL) -> tuple[Components, Factors]:
    """Return the determinant of square A, and the result of `factor`."""
    if 0 < a[0].shape[-1] <= triangular.BLOCK:
        found = each(lambda c: c.new_empty(c.shape[:-2]), a)
        factors, done = _factored(a, determinant=found, numbers=numbers)
        if done:
            return found, factors
    else:
        factors = factor(a, numbers=numbers)
    return determinant(factors[0], factors[1], numbers), factors


def _factored(
    a: Components,
    pivot: bool = True,
    sides: Components | None = None,
    determinant: Components | None = None,
    numbers: Real = REAL,
) -> tuple[Factors, bool]:
    """Factorise A; also return whether one call did the right-hand sides and determinants."""
    a = each(lambda c: c.clone(memory_format=torch.contiguous_format), a)
    *batch, m, n = a[0].shape
    count = min(m, n)
    device = a[0].device
    pivots = torch.arange(1, count + 1, dtype=torch.int32, device=device)
    if batch:
        pivots = pivots.expand(*batch, count).clone()
    info = torch.zeros(batch, dtype=torch.int32, device=device)
    done = False
    if a[0].numel():
        sides = None if sides is None else triangular.flat(sides)
        wanted = None if determinant is None else each(lambda c: c.view(-1), determinant)
        flat = triangular.flat(a), pivots.view(-1, count), info.view(-1)
        done = _factor(*flat, pivot, sides, wanted, numbers)
    return (a, pivots, info), done


def _factor(
    a: Components,
    pivots: Tensor,
    info: Tensor,
    pivot: bool,
    sides: Components | None,
    determinant: Components | None,
    numbers: Real,
) -> bool:
    """Overwrite A [batch, m, n] with L and U; return whether the last panel was one call."""
    found = True
    m, n = a[0].shape[-2:]
    count = min(m, n)
    spec = numbers.elimination("lu", a)
    executor = registry.on(a[0].device)
    for start in range(0, count, triangular.BLOCK):
        block = slice(start, min(start + triangular.BLOCK, count))
        panel = (spec, a, start, block.stop - start, info, pivots, pivot)
        found = executor.eliminate(*panel, sides, determinant)
        more = sides is not None or determinant is not None
        if not found and not (more and executor.eliminate(*panel)):
            for j in range(block.start, block.stop):
                if pivot:
                    _exchange(a, j, pivots, numbers)
                _eliminate(a, j, block.stop, info, numbers)
        right, below = slice(block.stop, n), slice(block.stop, m)
        if block.stop < n:
            rows = part(a, block, right)
            triangular.substitute(part(a, block, block), rows, False, True, numbers)
            if block.stop < m:
                product = numbers.matmul(part(a, below, block), rows)
                assign(a, (below, right), numbers.minus(part(a, below, right), product))
    return found


def _exchange(a: Components, j: int, pivots: Tensor, numbers: Real) -> None:
    """Bring the largest entry of column j, on or below the diagonal, onto the diagonal."""
    largest = numbers.magnitude(part(a, slice(j, None), j)).argmax(-1) + j
    pivots[..., j] = largest.to(torch.int32) + 1
    index = largest[..., None, None].expand(*a[0].shape[:-2], 1, a[0].shape[-1])
    for c in a:
        found = c.gather(-2, index)
        c.scatter_(-2, index, c[..., j : j + 1, :].clone())
        c[..., j : j + 1, :] = found


def _eliminate(a: Components, j: int, stop: int, info: Tensor, numbers: Real) -> None:
    """Compute column j of L, and subtract its product with row j from the columns up to `stop`."""
    row, below, right = slice(j, j + 1), slice(j + 1, None), slice(j + 1, stop)
    diagonal = part(a, row, row)
    zero = numbers.magnitude(diagonal) == 0
    info.copy_(torch.where((info == 0) & zero[..., 0, 0], j + 1, info))
    if j + 1 == a[0].shape[-2]:
        return
    # A zero pivot is the largest entry, so the column below it is 0 and stays 0.
    column = numbers.over(part(a, below, row), where(zero, one_like(diagonal), diagonal))
    assign(a, (below, row), column)
    if j + 1 < stop:
        rest = part(a, below, right)
        assign(a, (below, right), numbers.less_product(rest, part(a, row, right), column))


def permutation(pivots: Tensor, rows: int) -> Tensor:
    """Return, for each row of L U, the index of the row of A; int64 [..., rows]."""
    orders = []
    # Computed on the CPU, also for GPU tensors: one copy of a few integers instead of four launches
    # each.
    for exchanges in pivots.flatten(0, -2).tolist() if pivots.dim() > 1 else [pivots.tolist()]:
        order = list(range(rows))
        for j, other in enumerate(exchanges):
            order[j], order[other - 1] = order[other - 1], order[j]
        orders.append(order)
    found = torch.tensor(orders, dtype=torch.int64, device=pivots.device)
    return found.reshape(*pivots.shape[:-1], rows)


def lower(lu: Components) -> Components:
    """Return L [..., m, min(m, n)], with ones on the diagonal."""
    count = min(lu[0].shape[-2:])
    strict = each(lambda c: c[..., :count].tril(-1), lu)
    strict[0].diagonal(dim1=-2, dim2=-1).fill_(1)
    return strict


def upper(lu: Components) -> Components:
    """Return U [..., min(m, n), n]."""
    count = min(lu[0].shape[-2:])
    return each(lambda c: c[..., :count, :].triu(), lu)


def solve(
    lu: Components,
    pivots: Tensor,
    b: Components,
    *,
    left: bool = True,
    adjoint: bool = False,
    numbers: Real = REAL,
) -> Components:
    """Solve A X = B with the factors of A; A^H X = B for `adjoint`, X A = B for `left=False`."""
    if not left:
        flipped = numbers.adjoint(b)
        flipped = solve(lu, pivots, flipped, adjoint=not adjoint, numbers=numbers)
        return numbers.adjoint(flipped)
    order = permutation(pivots, lu[0].shape[-1])
    batch = triangular.broadcast(lu, b)
    b = each(lambda c: c.expand(*batch, *c.shape[-2:]), b)
    substitution = functools.partial(triangular.solve, numbers=numbers)
    if adjoint:
        other = numbers.adjoint(lu)
        y = substitution(other, b, upper=False)
        y = substitution(other, y, upper=True, unitriangular=True)
        return _rows(y, order.argsort(-1))
    y = substitution(lu, _rows(b, order), upper=False, unitriangular=True)
    return substitution(lu, y, upper=True)


def _rows(x: Components, order: Tensor) -> Components:
    """Return the rows of x in the given order."""
    index = order[..., None].expand(*x[0].shape)
    return each(lambda c: c.gather(-2, index), x)


def parity(pivots: Tensor) -> Tensor:
    """Return the determinant of the permutation, 1 or -1."""
    home = torch.arange(1, pivots.shape[-1] + 1, device=pivots.device)
    return 1 - 2 * ((pivots != home).sum(-1) % 2)


def determinant(lu: Components, pivots: Tensor, numbers: Real = REAL) -> Components:
    """Return the product of U's diagonal and the permutation's sign, multiplied pairwise."""
    return signed_product(each(lambda c: c.diagonal(dim1=-2, dim2=-1), lu), pivots, numbers)


def signed_product(factors: Components, pivots: Tensor, numbers: Real = REAL) -> Components:
    """Return the product over the last dimension times the permutation's sign, by halves."""
    sign = parity(pivots).to(factors[0].dtype)[..., None]
    if factors[0].shape[-1] == 0:
        return part(like(factors, sign), 0)
    factors = each(lambda c: torch.cat([c[..., :1] * sign, c[..., 1:]], -1), factors)
    while factors[0].shape[-1] > 1:
        count = factors[0].shape[-1]
        pairs = numbers.times(
            part(factors, slice(0, count // 2)), part(factors, slice(-(count // 2), None))
        )
        middle = part(factors, slice(count // 2, count - count // 2))
        factors = tuple(torch.cat(both, -1) for both in zip(pairs, middle, strict=True))
    return part(factors, 0)
