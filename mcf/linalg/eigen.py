"""Eigenvalues and eigenvectors of symmetric and of Hermitian matrices of expansions."""

from __future__ import annotations

import torch
from torch import Tensor

from mcf.kernels import operations
from mcf.linalg import whole
from mcf.linalg.number_kinds import REAL, Real
from mcf.linalg.orthogonal_rows import orthogonal_rows
from mcf.linalg.parts import Components, each, identity
from mcf.linalg.residuals import unmixed
from mcf.linalg.working_matrices import closed, descending, opened, rows_in


def decompose(
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
    from
    the constant of products, by the stopping test and a check of V^H A V (docs/numerics.md,
    Singular vectors).
    """
    if numbers is REAL:
        found = whole.decomposed(True, a, lambda some: _decompose(some, upper, REAL), upper)
        if found is not None:
            return found
    return _decompose(a, upper, numbers)


def _decompose(
    a: Components, upper: bool, numbers: Real = REAL
) -> tuple[Components, Components, Tensor]:
    """Decompose by tensor operations; arguments and results as in `decompose`."""
    a = numbers.of_triangle(a, upper)
    flat, exponent = opened(a, numbers)
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
    return closed(values, numbers.real(a), exponent), vectors, done


def _shift(parts: Components) -> Tensor:
    """Return a power of two above 1.4 times the Frobenius norm of [batch, n, n], all |a| < 1.

    Elements are first rounded up to 16 bits, so that the sum of squares is exact in any order.
    """
    # Squares are multiples of 2^-32 and at most 1: a sum of 2^21 is exact.
    up = torch.stack([c.abs() * 2.0**16 for c in parts], -1).ceil() * 2.0**-16
    total = (up * up).sum((1, 2, 3))
    # total < 2^exponent <= 4^half / 2.
    exponent = torch.frexp(total)[1]
    half = torch.div(exponent + 2, 2, rounding_mode="floor")
    return torch.ldexp(torch.ones_like(total), half)
