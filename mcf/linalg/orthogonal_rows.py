"""An orthogonal matrix that makes the rows of another one orthogonal: W M = X."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mcf.kernels import operations, registry
from mcf.kernels.refinement import DONE, STUCK, refinement
from mcf.linalg import rotations
from mcf.linalg.parts import (
    Components,
    each,
    identity,
    matrices,
    one_like,
    padded,
    transpose,
    where,
)
from mcf.linalg.working import squared_norms
from mcf.reductions.products import matmul


def tolerance(terms: int) -> float:
    """|cos| of the angle between two rows that count as orthogonal: 16 u^terms."""
    return 2.0 ** (4 - 53 * terms)


# The logarithm of the share of the largest row from which on rows are to be as orthogonal in the
# end as the tolerance says: of all rows, and of those times eigenvalues.
SHARES = {False: -1, True: -3}


def exponent(terms: int) -> int:
    """That of `tolerance`."""
    return math.frexp(tolerance(terms))[1] - 1


def orthogonal_rows(
    m: Components, positive: bool = False
) -> tuple[Components, Components, Components, Tensor]:
    """W and X = W M with orthogonal rows, W orthogonal, as the one-sided Jacobi method has them.

    Args:
        m: float64 components [batch, n, columns], elements of at most some hundreds.
        positive: M is symmetric and positive definite. Then the rows of X are those of W times
            eigenvalues, and the start needs no W.

    Returns:
        W, X, the squared norms of X's rows and which matrices converged.
    """
    rows, columns = m[0].shape[1:]
    terms = len(m)
    if m[0].numel() == 0:
        done = torch.ones(m[0].shape[0], dtype=torch.bool, device=m[0].device)
        return identity(m, rows), m, squared_norms(m), done
    leading = rotations.without_vanished((m[0],), columns)
    start = padded((_start(leading[0], positive),), terms)
    x = each(torch.empty_like, m)
    w = each(torch.clone, start)
    squares = each(lambda c: c.new_empty(c.shape[:2]), m)
    numbers = steps(terms), exponent(terms), SHARES[positive]
    given = refinement(terms), m, w, x, squares
    state = registry.on(m[0].device).refine(*given, *numbers)
    if state is not None:
        done, left = state != STUCK, state != DONE
        if bool(left.any()):
            _rotated(w, x, done, left)
            _put(squares, left, squared_norms(matrices(x, left)))
        return w, x, squares, done
    w = orthonormal(start, terms)
    done = torch.zeros(m[0].shape[0], dtype=torch.bool, device=m[0].device)
    stuck = torch.zeros_like(done)
    before = torch.full(done.shape, 0.25, dtype=torch.float64, device=done.device)
    while True:
        active = (~done & ~stuck).nonzero().flatten()
        if active.numel() == 0:
            break
        some = matrices(m, active)
        v = matrices(w, active)
        y = rotations.without_vanished(matmul(v, some), columns)
        step, error = _step(v, y)
        slow = ~(error <= 2.0**-8 * before[active])
        finished = (error <= tolerance(terms)) | (slow & (error <= 8 * tolerance(terms)))
        before[active] = error
        done[active] = finished
        stuck[active] = slow & ~finished
        _put(x, active, y)
        moved = operations.add(v, matmul(transpose(step), v))
        _put(w, active, where((finished | slow)[:, None, None], v, moved))
    # Corrections turn no rows whose norms differ by less than 2^24 of their product; those of a
    # small row cannot do better than 8 tolerances; of large ones that is no rounding error. Of a
    # small row and a large one the mean of both numerators may vanish where the product does not.
    stuck = stuck | (done & _apart(x, 2.0 ** SHARES[positive]))
    if bool(stuck.any()):
        v = orthonormal(matrices(w, stuck), terms)
        _put(w, stuck, v)
        _put(x, stuck, rotations.without_vanished(matmul(v, matrices(m, stuck)), columns))
        _rotated(w, x, done, stuck)
    return w, x, squared_norms(x), done


def _apart(x: Components, share: float) -> Tensor:
    """Which matrices have rows that are not orthogonal.

    Up to 8 tolerances are left to rows below a share of the largest.
    """
    size = matmul(x, transpose(x))[0]
    norms = operations.sqrt((size.diagonal(dim1=-2, dim2=-1).contiguous(),))[0]
    large = norms >= share * norms.amax(-1, keepdim=True)
    limit = tolerance(len(x)) * norms[..., None] * norms[..., None, :]
    limit = torch.where(large[..., None] & large[..., None, :], limit, 8 * limit)
    return (size.abs() > limit).triu(1).flatten(1).any(1)


def _rotated(w: Components, x: Components, done: Tensor, stuck: Tensor) -> None:
    """Rotations of pairs in expansions, where corrections at once do not get better."""
    columns, terms = x[0].shape[2], len(x)
    given = zip(matrices(x, stuck), matrices(w, stuck), strict=True)
    both = tuple(torch.cat(pair, 2) for pair in given)
    both, done[stuck] = rotations.orthogonalize(both, columns, tolerance(terms))
    _put(x, stuck, each(lambda c: c[..., :columns], both))
    _put(w, stuck, each(lambda c: c[..., columns:], both))


def _start(m: Tensor, positive: bool) -> Tensor:
    """W in float64 arithmetic."""
    columns = m.shape[2]
    if positive:
        (x,), _ = rotations.orthogonalize((m,), columns, tolerance(1))
        return x / operations.sqrt(matmul((x[:, :, None],), (x[..., None],)))[0][..., 0]
    both = torch.cat([m, identity((m,), m.shape[1])[0]], 2)
    (x,), _ = rotations.orthogonalize((both,), columns, tolerance(1))
    return x[..., columns:].contiguous()


def steps(terms: int) -> int:
    """How often a start is made orthogonal, see `orthonormal`."""
    return 3 if terms > 3 else 2


def orthonormal(v: Components, terms: int) -> Components:
    """The nearest orthogonal matrix to one that is orthogonal up to float64's rounding errors.

    Newton's iteration without inverses, V + V (I - V^T V) / 2, which squares the distance (Bjorck,
    Bowie 1971, doi:10.1137/0708036).
    """
    for _ in range(steps(terms)):
        rest = operations.sub(identity(v, v[0].shape[-1]), matmul(v, transpose(v)))
        v = operations.add(v, matmul(each(lambda c: c / 2, rest), v))
    return v


def _step(w: Components, x: Components) -> tuple[Components, Tensor]:
    """All rotations at once, to first order, and how far from orthogonal the rows are.

    E with w + E^T w orthogonal and E^T x closer to orthogonal by a square (Ogita, Aishima 2018,
    doi:10.1007/s13160-018-0310-3, for X X^T).
    """
    n = w[0].shape[-1]
    diagonal = torch.eye(n, dtype=torch.bool, device=w[0].device)
    r = operations.sub(identity(w, n), matmul(w, transpose(w)))
    g = matmul(x, transpose(x))
    size = each(lambda c: c.diagonal(dim1=-2, dim2=-1), g)
    rest = each(lambda c: c.diagonal(dim1=-2, dim2=-1), r)
    size = operations.div(size, operations.sub(one_like(rest), rest))
    column, row = each(lambda c: c[..., None], size), each(lambda c: c[..., None, :], size)
    numerator = operations.fma(row, r, g)
    gap = operations.sub(row, column)
    mean = (numerator[0] + numerator[0].mT) / 2
    near = mean.abs() > 2.0**-24 * gap[0].abs()
    near |= diagonal | (gap[0] == 0)
    quotient = operations.div(
        where(near, each(torch.zeros_like, gap), numerator), where(near, one_like(gap), gap)
    )
    step = where(near, each(lambda c: c / 2, r), quotient)
    norms = operations.sqrt((size[0],))[0]
    sizes = norms[..., None] * norms[..., None, :]
    cosine = torch.where(
        (sizes > 0) & ~diagonal, mean.abs() / torch.where(sizes > 0, sizes, 1.0), 0.0
    )
    return step, torch.maximum(cosine, r[0].abs()).amax((1, 2))


def _put(x: Components, index: Tensor, values: Components) -> None:
    for c, v in zip(x, values, strict=True):
        c[index] = v
