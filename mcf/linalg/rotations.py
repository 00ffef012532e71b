"""One-sided Jacobi rotations of the rows of matrices, in float64 or in expansion arithmetic."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from mcf.kernels import operations
from mcf.linalg.parts import Components, each, matrices, one_like, part, where
from mcf.reductions.products import matmul

# A matrix of 256 rows takes ten sweeps; cyclic Jacobi takes more only where it does not converge.
SWEEPS = 40
# Rows this small are zero: products of two larger ones' squares, and the squares with all
# components, are in float64's range.
VANISHED = 2.0**-250


def orthogonalize(x: Components, width: int, tolerance: float) -> tuple[Components, Tensor]:
    """Rotate pairs of rows until all rows are orthogonal in their first `width` columns.

    Rows i and j with squared norms a and b and inner product g become c x_i - s x_j and
    s x_i + c x_j with c^2 + s^2 = 1, t = s / c, t^2 + 2 z t = 1 and z = (b - a) / 2 g, the smaller
    root (Hestenes 1958, doi:10.1137/0106005; Demmel, Veselic 1992, doi:10.1137/0613074). The n / 2
    pairs of a round are rotated together and n - 1 rounds are a sweep, in which each pair meets
    once. Columns after the first `width` follow. One component takes float64 operations that IEEE
    754 rounds in one way, so that the start of a decomposition has the same bits everywhere.

    Args:
        x: float64 components [batch, n, columns], none of them larger than some hundreds. Rows of
            the first `width` columns below 2^-250 become zeros.
        width: of the columns that become orthogonal.
        tolerance: pairs with |g| <= tolerance sqrt(a b) are left as they are.

    Returns:
        The rows, each matrix as if it were alone, and which of the matrices have converged.
    """
    batch, n, columns = x[0].shape
    done = torch.zeros(batch, dtype=torch.bool, device=x[0].device)
    if n < 2 or batch == 0:
        return x, ~done
    if n % 2:
        # A row of zeros is orthogonal to all others, and after a sweep the last again.
        x = each(lambda c: torch.cat([c, c.new_zeros(batch, 1, columns)], 1), x)
    for _ in range(SWEEPS):
        active = (~done).nonzero().flatten()
        if active.numel() == 0:
            break
        whole = active.numel() == batch
        rows = x if whole else matrices(x, active)
        rows, cosine, tangent = _sweep(without_vanished(rows, width), width, tolerance)
        x = (
            rows
            if whole
            else tuple(c.index_copy(0, active, r) for c, r in zip(x, rows, strict=True))
        )
        # What a rotation annihilates, later ones by small angles bring back that much smaller; of
        # rows that were all but parallel rounding errors are left.
        small = (cosine <= 2.0**-20) & (n * cosine * tangent <= tolerance)
        done[active] = (cosine <= 4 * tolerance) | small
    return without_vanished(each(lambda c: c[:, :n], x), width), done


def without_vanished(x: Components, width: int) -> Components:
    """x with zeros for rows whose first `width` elements are below 2^-250."""
    gone = x[0][..., :width].abs().amax(2, keepdim=True) < VANISHED
    gone = gone & (torch.arange(x[0].shape[2], device=gone.device) < width)
    return each(lambda c: torch.where(gone, 0.0, c), x)


@functools.cache
def _next_order(n: int, device: torch.device) -> Tensor:
    """Where each row of the next round stands: the first stays, the others go around by one."""
    half = n // 2
    top = [0, half, *range(1, half - 1)] if half > 1 else [0]
    bottom = [*range(half + 1, n), half - 1] if half > 1 else [1]
    return torch.tensor(top + bottom, device=device)


def _sweep(x: Components, width: int, tolerance: float) -> tuple[Components, Tensor, Tensor]:
    """n - 1 rounds; with the largest |cos| of two rows, and the largest |t|, that were met."""
    n = x[0].shape[1]
    half = n // 2
    order = _next_order(n, x[0].device)
    cosines, tangents = [], []
    for _ in range(n - 1):
        top, bottom = each(lambda c: c[:, :half], x), each(lambda c: c[:, half:], x)
        c, s, cosine, tangent = _rotation(top, bottom, width, tolerance)
        cosines.append(cosine)
        tangents.append(tangent)
        first = _combined(c, top, each(torch.neg, s), bottom)
        second = _combined(s, top, c, bottom)
        x = tuple(torch.cat(p, 1).index_select(1, order) for p in zip(first, second, strict=True))
    return x, torch.stack(cosines).amax(0), torch.stack(tangents).amax(0)


def _rotation(
    top: Components, bottom: Components, width: int, tolerance: float
) -> tuple[Components, Components, Tensor, Tensor]:
    """Each pair's rotation and, of each matrix, how large they are.

    Returns:
        Cosine and sine [batch, n / 2, 1]; the largest |cos| of the angle between two rows, the
        largest |t|.
    """
    a, b, g = _products(each(lambda c: c[..., :width], top), each(lambda c: c[..., :width], bottom))
    size = _root((a[0] * b[0],))[0]
    cosine = g[0].abs() / torch.where(size > 0, size, torch.inf)
    wanted = cosine > tolerance
    one = one_like(g)
    t = _tangent(a, b, where(wanted, g, one))
    t = each(lambda c: torch.where(wanted, c, 0.0), t)
    c = _reciprocal(_root(_combined(t, t, one, one)))
    return c, _times(t, c), cosine.amax((1, 2)), t[0].abs().amax((1, 2))


def _tangent(a: Components, b: Components, g: Components) -> Components:
    """sign(z) / (|z| + sqrt(1 + z^2)) with z = (b - a) / 2 g.

    z^2 does not overflow: |z| <= sqrt(b / a) / 2 |cos|, where rows do not vanish.
    """
    z = _quotient(_difference(b, a), each(lambda c: 2 * c, g))
    one = one_like(z)
    negative = torch.signbit(z[0])
    size = each(lambda c: torch.where(negative, -c, c), z)
    t = _reciprocal(_sum(size, _root(_combined(z, z, one, one))))
    return each(lambda c: torch.where(negative, -c, c), t)


def _products(x: Components, y: Components) -> tuple[Components, Components, Components]:
    """x x^T, y y^T and x y^T of each pair of rows [batch, n, width], as [batch, n, 1]."""
    if len(x) > 1:
        pairs = tuple(torch.stack(p, 2) for p in zip(x, y, strict=True))
        gram = matmul(pairs, each(lambda c: c.mT, pairs))
        return (
            part(gram, slice(0, 1), 0),
            part(gram, slice(1, 2), 1),
            part(gram, slice(0, 1), 1),
        )
    (a,), (b,) = x, y
    terms = torch.stack([a * a, b * b, a * b])
    while terms.shape[-1] > 1:
        half = terms.shape[-1] // 2
        total = terms[..., :half] + terms[..., half : 2 * half]
        if terms.shape[-1] % 2:
            total = torch.cat([total, terms[..., -1:]], -1)
        terms = total
    return (terms[0],), (terms[1],), (terms[2],)


# Below, one component is a float64 number, whose operations are torch's own, five times as fast on
# matrices of this size: correctly rounded as `operations` rounds them (but torch's square root).


def _times(x: Components, y: Components) -> Components:
    return (x[0] * y[0],) if len(x) == 1 else operations.mul(x, y)


def _sum(x: Components, y: Components) -> Components:
    return (x[0] + y[0],) if len(x) == 1 else operations.add(x, y)


def _difference(x: Components, y: Components) -> Components:
    return (x[0] - y[0],) if len(x) == 1 else operations.sub(x, y)


def _quotient(x: Components, y: Components) -> Components:
    return (x[0] / y[0],) if len(x) == 1 else operations.div(x, y)


def _reciprocal(x: Components) -> Components:
    return (1 / x[0],) if len(x) == 1 else operations.reciprocal(x)


def _root(x: Components) -> Components:
    return operations.sqrt(x)


def _combined(a: Components, x: Components, b: Components, y: Components) -> Components:
    """a x + b y."""
    if len(x) == 1:
        return (a[0] * x[0] + b[0] * y[0],)
    return operations.fma(a, x, operations.mul(b, y))
