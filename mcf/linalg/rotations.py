"""One-sided Jacobi rotations of the rows of matrices, in float64 or in expansion arithmetic."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mcf.kernels import registry, rotation
from mcf.kernels.bind import Algorithm, Binder
from mcf.kernels.formats import FP64
from mcf.kernels.torch.registers import primitives
from mcf.linalg.number_kinds import REAL, Real
from mcf.linalg.parts import Components, each, matrices, part


def orthogonalize(
    x: Components, width: int, tolerance: float, numbers: Real = REAL
) -> tuple[Components, Tensor]:
    """Rotate pairs of rows until all rows are orthogonal in their first `width` columns.

    Rows i and j with squared norms a and b and inner product g become c x_i - s x_j and
    s x_i + c x_j with c^2 + s^2 = 1, t = s / c, t^2 + 2 z t = 1 and z = (b - a) / 2 g, the smaller
    root (Hestenes 1958, doi:10.1137/0106005; Demmel, Veselic 1992, doi:10.1137/0613074). The n / 2
    pairs of a round are rotated together and n - 1 rounds are a sweep, in which each pair meets
    once. Columns after the first `width` follow. One component takes float64 operations that IEEE
    754 rounds in one way, so that the start of a decomposition has the same bits everywhere
    (`mcf.kernels.rotation`). Of complex rows g = |g| p, and they become c x_i - s p x_j and
    s conj(p) x_i + c x_j.

    Args:
        x: float64 components [batch, n, columns], none of them larger than some hundreds. Rows of
            the first `width` columns below 2^-250 become zeros.
        width: of the columns that become orthogonal.
        tolerance: pairs with |g| <= tolerance sqrt(a b) are left as they are;
            a power of two.
        numbers: the arithmetic.

    Returns:
        The rows, each matrix as if it were alone, and which of the matrices have converged.
    """
    batch, n, columns = x[0].shape
    done = torch.zeros(batch, dtype=torch.bool, device=x[0].device)
    if n < 2 or batch == 0:
        return x, ~done
    if n % 2:
        # Pad with a zero row: it is orthogonal to all others and last again after a full sweep.
        x = each(lambda c: torch.cat([c, c.new_zeros(batch, 1, columns)], 1), x)
    # The loop works in place, on a copy.
    rows = each(lambda c: c.clone(memory_format=torch.contiguous_format), x)
    exponent = math.frexp(tolerance)[1] - 1
    executor, spec = registry.on(rows[0].device), _rotations(x, numbers)
    found = executor.rotate(spec, rows, width, n, exponent)
    if found is not None:
        return each(lambda c: c[:, :n], rows), found
    for _ in range(rotation.SWEEPS):
        active = (~done).nonzero().flatten()
        if active.numel() == 0:
            break
        whole = active.numel() == batch
        rows = x if whole else matrices(x, active)
        rows = without_vanished(rows, width, numbers)
        rows, cosine, tangent = _sweep(rows, width, tolerance, numbers)
        x = (
            rows
            if whole
            else tuple(c.index_copy(0, active, r) for c, r in zip(x, rows, strict=True))
        )
        limit = torch.full_like(cosine, tolerance)
        done[active] = _plain(spec.converged)(cosine, tangent, float(n), limit)
    return without_vanished(each(lambda c: c[:, :n], x), width, numbers), done


def _rotations(x: Components, numbers: Real) -> rotation.Rotations:
    return rotation.rotations(len(x) // numbers.parts, numbers.parts)


def without_vanished(x: Components, width: int, numbers: Real = REAL) -> Components:
    """Return x with zeros for rows whose first `width` elements are below 2^-250."""
    gone = numbers.magnitude(x)[..., :width].amax(2, keepdim=True) < rotation.VANISHED
    gone = gone & (torch.arange(x[0].shape[2], device=gone.device) < width)
    return each(lambda c: torch.where(gone, 0.0, c), x)


@functools.cache
def _next_order(n: int, device: torch.device) -> Tensor:
    """Return the position of each row of the next round; the first stays."""
    return torch.tensor(rotation.next_order(n), device=device)


@functools.cache
def _plain(algorithm: Algorithm) -> Callable[..., Any]:
    """Return an algorithm as a function of float64 tensors."""
    numbers = {"ZERO": torch.zeros((), dtype=torch.float64, device="cpu")}
    numbers["ONE"] = torch.ones_like(numbers["ZERO"])
    table = primitives(FP64, FP64, {"rc": FP64}) | numbers
    return Binder(lambda f: f, table)(algorithm)  # type: ignore[no-any-return]


def _sweep(
    x: Components, width: int, tolerance: float, numbers: Real
) -> tuple[Components, Tensor, Tensor]:
    """Perform n - 1 rounds; return the rows, the largest |cos| of two rows and the largest |t|."""
    n = x[0].shape[1]
    half = n // 2
    order = _next_order(n, x[0].device)
    cosines, tangents = [], []
    for _ in range(n - 1):
        top, bottom = each(lambda c: c[:, :half], x), each(lambda c: c[:, half:], x)
        c, s, cosine, tangent = _rotation(top, bottom, width, tolerance, numbers)
        cosines.append(cosine)
        tangents.append(tangent)
        first, second = _plain(_rotations(x, numbers).rotated)(c, s, top, bottom)
        x = tuple(torch.cat(p, 1).index_select(1, order) for p in zip(first, second, strict=True))
    return x, torch.stack(cosines).amax(0), torch.stack(tangents).amax(0)


def _rotation(
    top: Components, bottom: Components, width: int, tolerance: float, numbers: Real
) -> tuple[Components, Components, Tensor, Tensor]:
    """Return each pair's rotation and, for each matrix, how large the rotations are.

    Returns:
        Cosine and sine [batch, n / 2, 1]; the largest |cos| of the angle between two rows, the
        largest |t|.
    """
    x, y = (each(lambda c: c[..., :width], rows) for rows in (top, bottom))
    a, b, g = _products(x, y, numbers)
    limit = torch.full_like(g[0], tolerance)
    c, s, cosine, tangent = _plain(_rotations(x, numbers).rotation)(a, b, g, limit)
    return c, s, cosine.amax((1, 2)), tangent.amax((1, 2))


def _products(
    x: Components, y: Components, numbers: Real
) -> tuple[Components, Components, Components]:
    """Return x x^H, y y^H and x y^H of each pair of rows [batch, n, width], as [batch, n, 1]."""
    if len(x) > numbers.parts:
        pairs = tuple(torch.stack(p, 2) for p in zip(x, y, strict=True))
        gram = numbers.matmul(pairs, numbers.adjoint(pairs))
        return (
            numbers.real(part(gram, slice(0, 1), 0)),
            numbers.real(part(gram, slice(1, 2), 1)),
            part(gram, slice(0, 1), 1),
        )
    products = [x[0] * x[0], y[0] * y[0], x[0] * y[0]]
    if numbers.parts == 2:
        other = x[1] * x[1], y[1] * y[1], x[1] * y[1]
        products = [p + q for p, q in zip(products, other, strict=True)]
        products.append(x[1] * y[0] - x[0] * y[1])
    terms = torch.stack(products)
    while terms.shape[-1] > 1:
        half = terms.shape[-1] // 2
        total = terms[..., :half] + terms[..., half : 2 * half]
        if terms.shape[-1] % 2:
            total = torch.cat([total, terms[..., -1:]], -1)
        terms = total
    return (terms[0],), (terms[1],), tuple(terms[2:])
