"""Eigenvalues of symmetric and Hermitian matrices of expansions, and singular values.

Small real matrices are decomposed in one loop, if an executor has it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.convert.rounding import convert
from mcf.kernels import operations, registry
from mcf.kernels.decomposition import DONE, Numbers, decomposition
from mcf.linalg import qr_factors
from mcf.linalg.number_kinds import (
    REAL,
    Real,
    closed,
    descending,
    opened,
    rows_in,
    working_terms,
)
from mcf.linalg.orthogonal_rows import (
    LIMITS,
    SHARES,
    exponent,
    factored,
    orthogonal_rows,
    steps,
    unmixed,
)
from mcf.linalg.parts import Components, each, identity, one_like, part, where
from mcf.linalg.triangular import alike


def eigh(
    a: Components, upper: bool = False, numbers: Real = REAL
) -> tuple[Components, Components, Tensor]:
    """Return A = V diag(w) V^H with ascending w; reads one triangle of A [..., n, n].

    An orthogonal W makes the rows of W (A + s I) orthogonal. The shift s, a power of two above the
    norm, makes all eigenvalues of A + s I positive. The conjugated rows over their norms are the
    eigenvectors, and the eigenvalues are v^H A v.

    Returns:
        w [..., n], V [..., n, n] and whether each matrix converged (false where one is not finite).

    With u^terms of the working format, |A V - V diag(w)| <= c n u^terms |A| in the 2-norm and
    |V^H V - I| <= c n u^terms, also for clusters and equal eigenvalues. c is 208 and 104, apart
    from the constant of products, by the stopping test and a check of V^H A V (docs/numerics.md,
    Singular vectors).
    """
    if numbers is REAL:
        found = decomposed(True, a, lambda some: _eigh(some, upper, REAL), upper)
        if found is not None:
            return found
    return _eigh(a, upper, numbers)


def _eigh(
    a: Components, upper: bool, numbers: Real = REAL
) -> tuple[Components, Components, Tensor]:
    """Decompose by tensor operations; arguments and results as in `eigh`."""
    a = numbers.of_triangle(a, upper)
    flat, power = opened(a, numbers)
    n = flat[0].shape[-1]
    finite = torch.isfinite(numbers.magnitude(flat)).all(2).all(1)
    flat = each(lambda c: torch.where(finite[:, None, None], c, 0.0), flat)
    shift = _shift(numbers.leading(flat))
    eye = identity(flat, n)
    more = each(lambda c: c * shift[:, None, None], eye)
    moved = numbers.by_parts(operations.add, flat, more)
    _, rows, squares, done = orthogonal_rows(moved, True, numbers)
    norms = operations.sqrt(squares)
    rows = numbers.over_real(rows, each(lambda c: c[..., None], norms))
    product = numbers.matmul(rows, numbers.matmul(flat, numbers.adjoint(rows)))
    values = each(lambda c: c.diagonal(dim1=-2, dim2=-1), numbers.real(product))
    order = descending(values).flip(-1)
    values = each(lambda c: c.gather(-1, order), values)
    vectors = closed(numbers.adjoint(rows_in(order, rows)), a, numbers=numbers)
    # Check the part that the stopping test does not prove.
    done = done & unmixed(product, flat, numbers)
    done = (done & finite).reshape(a[0].shape[:-2])
    return closed(values, numbers.real(a), power), vectors, done


def _shift(parts: Components) -> Tensor:
    """Return a power of two above 1.4 times the Frobenius norm of [batch, n, n], all |a| < 1.

    Elements are first rounded up to 16 bits, so that the sum of squares is exact in any order.
    """
    # Squares are multiples of 2^-32 and at most 1: a sum of 2^21 is exact.
    up = torch.stack([c.abs() * 2.0**16 for c in parts], -1).ceil() * 2.0**-16
    total = (up * up).sum((1, 2, 3))
    # total < 2^power <= 4^half / 2.
    power = torch.frexp(total)[1]
    half = torch.div(power + 2, 2, rounding_mode="floor")
    return torch.ldexp(torch.ones_like(total), half)


# From this ratio of columns to rows on, a QR factorisation comes first, and its factor is small.
TALL = 2


def svd(
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
    # The loop has no step before or after the rotations.
    alone = max(m, n) <= TALL * min(m, n) and (m == n or not (full and vectors))
    if numbers is REAL and alone:

        def others(some: Components) -> tuple[Any, ...]:
            u, values, vt, done = _svd(some, full, vectors, REAL)
            return values, u, vt, done

        found = decomposed(False, a, others, vectors=vectors)
        if found is not None:
            values, *both, done = found
            return (both[0], values, both[1], done) if vectors else (None, values, None, done)
    return _svd(a, full, vectors, numbers)


def _svd(
    a: Components, full: bool, vectors: bool, numbers: Real = REAL
) -> tuple[Components | None, Components, Components | None, Tensor]:
    """Decompose by tensor operations; arguments and results as in `svd`."""
    flat, power = opened(a, numbers)
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
    values = closed(size, numbers.real(a), power)
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


Loop = Callable[..., Sequence[int]]


def prepared(symmetric: bool, given: int, batch: int, shape: tuple[int, int]) -> Loop | None:
    """Return the loop for `batch` matrices of float64 components on a CPU, with rows <= columns."""
    terms = decomposition(given).terms
    tolerances = exponent(1), exponent(terms)
    numbers = Numbers(symmetric, *tolerances, steps(terms), SHARES[symmetric], LIMITS)
    return _prepared(registry.get_executor(), given, batch, shape, numbers)


@functools.lru_cache(64)
def _prepared(
    executor: str, given: int, batch: int, shape: tuple[int, int], numbers: Numbers
) -> Loop | None:
    found = registry.on(torch.device("cpu"))
    return found.prepare_decomposition(decomposition(given), batch, shape, numbers)


def decomposed(
    symmetric: bool,
    a: Components,
    others: Callable[[Components], tuple[Any, ...]],
    upper: bool = False,
    vectors: bool = True,
) -> tuple[Any, ...] | None:
    """Return values and, if wanted, vectors of A [..., m, n], and which matrices converged.

    Args:
        symmetric: whether it is `eigh`, with V; else with U and V^T.
        a: components.
        others: decomposes the matrices [batch, m, n] that the loop leaves.
        upper: which triangle is read.
        vectors: whether vectors are wanted.

    Returns:
        Components, and bool [...]; None if there is no loop.
    """
    *batch, m, n = a[0].shape
    count, fmt = math.prod(batch), a[0].dtype
    if a[0].device.type != "cpu" or count * m * n == 0:
        return None
    given = len(a) if fmt is torch.float64 else working_terms(a)
    loop = prepared(symmetric, given, count, (min(m, n), max(m, n)))
    if loop is None:
        return None
    flat = each(lambda c: c.reshape(count, m, n), a)
    wide = alike(flat if fmt is torch.float64 else convert(flat, torch.float64, given))
    k = min(m, n)
    sizes = [(count, k), (count, m, k), (count, k, n)][: (3 - symmetric) if vectors else 1]
    found = [tuple(wide[0].new_empty(size) for _ in wide) for size in sizes]
    each_batch, row, column = wide[0].stride()
    if upper or m > n:
        row, column = column, row
    # Without vectors the loop does not write to theirs.
    addresses = [[c.data_ptr() for c in found[min(k, len(found) - 1)]] for k in range(3)]
    states = loop(
        [c.data_ptr() for c in wide],
        (each_batch, row, column),
        [address for some in addresses for address in some],
        len(found) > 1,
        m > n,
    )
    done = torch.tensor(states, device="cpu") == DONE
    if fmt is not torch.float64:
        found = [convert(x, fmt, len(a)) for x in found]
    if not bool(done.all()):
        left = (~done).nonzero().flatten()
        *parts, ended = others(each(lambda c: c[left], flat))
        done[left] = ended
        for x, some in zip(found, [p for p in parts if p is not None], strict=True):
            for c, new in zip(x, some, strict=True):
                c[left] = new
    whole = [each(lambda c: c.reshape(*batch, *c.shape[1:]), x) for x in found]
    return *whole, done.reshape(batch)
