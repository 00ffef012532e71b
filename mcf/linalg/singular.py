"""Singular values and vectors of matrices of expansions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mcf.kernels import operations
from mcf.linalg import qr_factors, whole
from mcf.linalg.number_kinds import REAL, Real
from mcf.linalg.orthogonal_rows import orthogonal_rows
from mcf.linalg.parts import Components, each, one_like, part, where
from mcf.linalg.residuals import factored
from mcf.linalg.working_matrices import closed, descending, opened, rows_in

# From this ratio of columns to rows on, a QR factorisation comes first, and its factor is small.
TALL = 2


def at_once(m: int, n: int, full: bool) -> bool:
    """Return whether m by n matrices need no step before or after the rotations."""
    return max(m, n) <= TALL * min(m, n) and (m == n or not full)


def decompose(
    a: Components, full: bool = False, vectors: bool = True, numbers: Real = REAL
) -> tuple[Components | None, Components, Components | None, Tensor]:
    """Return A = U diag(s) V^H with descending s >= 0, for A [..., m, n] and k = min(m, n).

    One side's vectors are the orthogonal matrix that makes the rows of A (of A^H if m >= n)
    orthogonal. The other side's are these rows divided by their norms, which are the singular
    values.

    Args:
        a: components.
        full: square U [..., m, m] and V^T [..., n, n], not [..., m, k] and [..., k, n].
        vectors: whether U and V are wanted.
        numbers: the arithmetic.

    Returns:
        U, s [..., k], V^H and whether each matrix converged (false where one is not finite).

    With u^terms of the working format |A - U diag(s) V^H|, |A V - U diag(s)| <= c k u^terms |A| and
    |U^H U - I|, |V^H V - I| <= c k u^terms (Frobenius norms), also for equal and vanishing singular
    values. c is 160 if products have errors of at most 3 u^terms, as in all tests, and 303 by their
    proved bound, for two components and k up to 48 (docs/numerics.md, Singular vectors, which lists
    the covered paths of the algorithm).
    """
    m, n = a[0].shape[-2:]
    if numbers is REAL and at_once(m, n, full and vectors):

        def others(some: Components) -> tuple[Any, ...]:
            u, values, vt, done = _decompose(some, full, vectors, REAL)
            return values, u, vt, done

        found = whole.decomposed(False, a, others, vectors=vectors)
        if found is not None:
            values, *both, done = found
            return (both[0], values, both[1], done) if vectors else (None, values, None, done)
    return _decompose(a, full, vectors, numbers)


def _decompose(
    a: Components, full: bool, vectors: bool, numbers: Real = REAL
) -> tuple[Components | None, Components, Components | None, Tensor]:
    """Decompose by tensor operations; arguments and results as in `decompose`."""
    flat, exponent = opened(a, numbers)
    adjoint = numbers.adjoint
    wide = flat[0].shape[1] <= flat[0].shape[2]
    m = flat if wide else adjoint(flat)
    finite = torch.isfinite(numbers.magnitude(m)).all(2).all(1)
    m = each(lambda c: torch.where(finite[:, None, None], c, 0.0).contiguous(), m)
    rows, columns = m[0].shape[1:]
    small = columns > TALL * rows
    # M = R^H Q^H, whose rows are as orthogonal as those of R^H.
    q, given = None, m
    if small:
        q, r = qr_factors.factor(adjoint(m), numbers=numbers)
        given = each(Tensor.contiguous, adjoint(r))
    w, x, squares, done = orthogonal_rows(given, numbers=numbers)
    size = operations.sqrt(squares)
    order = descending(size)
    size, w, x = each(lambda c: c.gather(-1, order), size), rows_in(order, w), rows_in(order, x)
    values = closed(size, numbers.real(a), exponent)
    done = done & finite
    if not vectors:
        return None, values, None, done.reshape(a[0].shape[:-2])
    zero = size[0] == 0
    x = numbers.over_real(x, each(lambda c: c[..., None], where(zero, one_like(size), size)))
    if q is not None:
        x = numbers.matmul(x, adjoint(q))
    # Each matrix is treated as if it were alone: a complete basis is not checked because of others.
    completed = zero.any(1) | (full and columns > rows)
    some = bool(completed.any())
    if some:
        x = _completed(x, zero, full, numbers)
    if q is not None or some:
        rotated = ~zero if q is None else None
        held = factored(m, w, size, x, numbers, rotated)
        done = done & (held | (~completed & (q is None)))
    left, right = (adjoint(w), x) if wide else (adjoint(x), w)
    left, right = (closed(v, a, numbers=numbers) for v in (left, right))
    return left, values, right, done.reshape(a[0].shape[:-2])


def _completed(x: Components, zero: Tensor, full: bool, numbers: Real) -> Components:
    """Return orthonormal rows: replace zero rows and, for `full`, complete the basis."""
    q, _ = qr_factors.factor(numbers.adjoint(x), "complete" if full else "reduced", numbers)
    assert q is not None
    others, rows = numbers.adjoint(q), x[0].shape[1]
    found = where(zero[..., None], part(others, slice(0, rows), slice(None)), x)
    rest = part(others, slice(rows, None), slice(None))
    return tuple(torch.cat(both, 1) for both in zip(found, rest, strict=True))
