"""An orthogonal matrix that makes the rows of another one orthogonal: W M = X."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mcf.kernels import operations, registry
from mcf.kernels.refinement import DONE, STUCK, refinement
from mcf.linalg import rotations
from mcf.linalg.number_kinds import REAL, Real
from mcf.linalg.parts import (
    Components,
    each,
    identity,
    matrices,
    one_like,
    padded,
    where,
)
from mcf.linalg.residuals import held, lacking
from mcf.linalg.working_matrices import squared_norms


def tolerance(terms: int) -> float:
    """Return the |cos| below which two rows count as orthogonal: 16 u^terms."""
    return 2.0 ** (4 - 53 * terms)


# log2 of the fraction of the largest row norm from which on rows must meet the tolerance: for
# general matrices, and for rows scaled by eigenvalues.
SHARES = {False: -1, True: -3}


def exponent(terms: int) -> int:
    """Return the exponent of `tolerance`."""
    return math.frexp(tolerance(terms))[1] - 1


def orthogonal_rows(
    m: Components, positive: bool = False, numbers: Real = REAL
) -> tuple[Components, Components, Components, Tensor]:
    """Return W and X = W M with orthogonal rows, W orthogonal, as in the one-sided Jacobi method.

    Args:
        m: float64 components [batch, n, columns], elements of at most some hundreds.
        positive: M is Hermitian and positive definite. Then the rows of X are those of W times
            eigenvalues, and the start needs no W.
        numbers: the arithmetic.

    Returns:
        W, X, the squared norms of X's rows and whether each matrix converged.
    """
    rows, columns = m[0].shape[1:]
    terms = len(m) // numbers.parts
    if m[0].numel() == 0:
        done = torch.ones(m[0].shape[0], dtype=torch.bool, device=m[0].device)
        return identity(m, rows), m, squared_norms(m, numbers), done
    leading = rotations.without_vanished(numbers.leading(m), columns, numbers)
    start = numbers.by_parts(lambda p: padded(p, terms), _start(leading, positive, numbers))
    x = each(torch.empty_like, m)
    w = each(torch.clone, start)
    squares = each(lambda c: c.new_empty(c.shape[:2]), numbers.real(m))
    settings = steps(terms), exponent(terms), SHARES[positive]
    given = refinement(terms, numbers.parts), m, w, x, squares
    state = registry.on(m[0].device).refine(*given, *settings)
    if state is not None:
        done, left = state != STUCK, state != DONE
        if bool(left.any()):
            _rotated(m, w, x, done, left, numbers)
            _put(squares, left, squared_norms(matrices(x, left), numbers))
        return w, x, squares, done
    w = orthonormal(start, terms, numbers)
    done = torch.zeros(m[0].shape[0], dtype=torch.bool, device=m[0].device)
    stuck = torch.zeros_like(done)
    before = torch.full(done.shape, 0.25, dtype=torch.float64, device=done.device)
    while True:
        active = (~done & ~stuck).nonzero().flatten()
        if active.numel() == 0:
            break
        some = matrices(m, active)
        v = matrices(w, active)
        y = rotations.without_vanished(numbers.matmul(v, some), columns, numbers)
        step, error = _step(v, y, numbers)
        slow = ~(error <= 2.0**-8 * before[active])
        finished = (error <= tolerance(terms)) | (slow & (error <= 8 * tolerance(terms)))
        before[active] = error
        done[active] = finished
        stuck[active] = slow & ~finished
        _put(x, active, y)
        moved = numbers.by_parts(operations.add, v, numbers.matmul(numbers.adjoint(step), v))
        _put(w, active, where((finished | slow)[:, None, None], v, moved))
    # Corrections do not rotate rows whose squared norms differ by less than 2^24 times their
    # product. A small row cannot do better than 8 tolerances; for large rows that is not a rounding
    # error. For a small and a large row the mean of both numerators may vanish although the product
    # does not.
    stuck = stuck | (done & _apart(x, 2.0 ** SHARES[positive], numbers))
    if bool(stuck.any()):
        v = orthonormal(matrices(w, stuck), terms, numbers)
        _put(w, stuck, v)
        product = numbers.matmul(v, matrices(m, stuck))
        _put(x, stuck, rotations.without_vanished(product, columns, numbers))
        _rotated(m, w, x, done, stuck, numbers)
    return w, x, squared_norms(x, numbers), done


def _apart(x: Components, share: float, numbers: Real) -> Tensor:
    """Return which matrices have rows that are not orthogonal.

    Rows below a fraction `share` of the largest may reach 8 tolerances.
    """
    product = numbers.hermitian(numbers.matmul(x, numbers.adjoint(x)))
    size, own = numbers.magnitude(product), product[0].diagonal(dim1=-2, dim2=-1)
    norms = operations.sqrt((own.contiguous(),))[0]
    large = norms >= share * norms.amax(-1, keepdim=True)
    limit = tolerance(len(x) // numbers.parts) * norms[..., None] * norms[..., None, :]
    limit = torch.where(large[..., None] & large[..., None, :], limit, 8 * limit)
    return (size > limit).triu(1).flatten(1).any(1)


def _rotated(
    m: Components, w: Components, x: Components, done: Tensor, stuck: Tensor, numbers: Real
) -> None:
    """Rotate pairs of rows in expansions, for matrices on which simultaneous corrections stall."""
    columns, terms = x[0].shape[2], len(x) // numbers.parts
    given = zip(matrices(x, stuck), matrices(w, stuck), strict=True)
    both = tuple(torch.cat(pair, 2) for pair in given)
    both, ended = rotations.orthogonalize(both, columns, tolerance(terms), numbers)
    y = each(lambda c: c[..., :columns].contiguous(), both)
    v = each(lambda c: c[..., columns:].contiguous(), both)
    done[stuck] = ended & held(matrices(m, stuck), v, y, numbers)
    _put(x, stuck, y)
    _put(w, stuck, v)


def _start(m: Components, positive: bool, numbers: Real) -> Components:
    """Return the start W in float64 arithmetic, one component per part."""
    columns = m[0].shape[2]
    if positive:
        x, _ = rotations.orthogonalize(m, columns, tolerance(1), numbers)
        (norms,) = operations.sqrt(squared_norms(x, numbers))
        return each(lambda c: c / norms[..., None], x)
    both = tuple(torch.cat(p, 2) for p in zip(m, identity(m, m[0].shape[1]), strict=True))
    x, _ = rotations.orthogonalize(both, columns, tolerance(1), numbers)
    return each(lambda c: c[..., columns:].contiguous(), x)


def steps(terms: int) -> int:
    """Return the number of orthogonalisation steps of a start, see `orthonormal`."""
    return 3 if terms > 3 else 2


def orthonormal(v: Components, terms: int, numbers: Real = REAL) -> Components:
    """Return the nearest orthogonal matrix, given one orthogonal up to float64 rounding errors.

    Newton's iteration without inverses, V + (I - V V^H) V / 2, which squares the distance (Bjorck,
    Bowie 1971, doi:10.1137/0708036).
    """
    for _ in range(steps(terms)):
        rest = each(lambda c: c / 2, lacking(v, numbers))
        v = numbers.by_parts(operations.add, v, numbers.matmul(rest, v))
    return v


def _step(w: Components, x: Components, numbers: Real) -> tuple[Components, Tensor]:
    """Return all rotations combined, to first order, and how far the rows are from orthogonal.

    E makes w + E^H w orthogonal and brings E^H x closer to orthogonal quadratically (Ogita, Aishima
    2018, doi:10.1007/s13160-018-0310-3, for X X^T).
    """
    n = w[0].shape[-1]
    diagonal = torch.eye(n, dtype=torch.bool, device=w[0].device)
    r = lacking(w, numbers)
    g = numbers.hermitian(numbers.matmul(x, numbers.adjoint(x)))
    size, rest = (each(lambda c: c.diagonal(dim1=-2, dim2=-1), numbers.real(p)) for p in (g, r))
    size = operations.div(size, operations.sub(one_like(rest), rest))
    column, row = each(lambda c: c[..., None], size), each(lambda c: c[..., None, :], size)
    numerator = numbers.by_parts(lambda p, q: operations.fma(row, p, q), r, g)
    gap = operations.sub(row, column)
    mean = numbers.mean_size(numerator)
    near = mean > 2.0**-24 * gap[0].abs()
    near |= diagonal | (gap[0] == 0)
    quotient = numbers.over_real(
        where(near, each(torch.zeros_like, numerator), numerator), where(near, one_like(gap), gap)
    )
    step = where(near, each(lambda c: c / 2, r), quotient)
    norms = operations.sqrt((size[0],))[0]
    sizes = norms[..., None] * norms[..., None, :]
    cosine = torch.where((sizes > 0) & ~diagonal, mean / torch.where(sizes > 0, sizes, 1.0), 0.0)
    return step, torch.maximum(cosine, numbers.magnitude(r)).amax((1, 2))


def _put(x: Components, index: Tensor, values: Components) -> None:
    for c, v in zip(x, values, strict=True):
        c[index] = v
