"""Residual checks for results that the stopping test does not prove, in units of u^terms.

Decisions use first components and sums that are exact in any order, so that every executor agrees.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mcf.kernels import operations
from mcf.kernels.decomposition import LOST as MOST
from mcf.kernels.decomposition import Limits
from mcf.linalg.number_kinds import REAL, Real
from mcf.linalg.parts import Components, each, identity

# Limits after rotations, each of which leaves an error on the diagonal of W W^H - I. V^H A V off
# its diagonal was observed up to 45 next to multiples of the identity, and about 3 elsewhere.
LIMITS = Limits(own=32, off=64, cosine=64, drift=8, mixed=96)


def lacking(w: Components, numbers: Real) -> Components:
    """Return I - W W^H."""
    product = numbers.matmul(w, numbers.adjoint(w))
    return numbers.hermitian(numbers.minus(identity(w, w[0].shape[-2]), product))


def held(m: Components, w: Components, x: Components, numbers: Real = REAL) -> Tensor:
    """Return for which matrices W is orthogonal, W M = X and X has orthogonal rows, within LIMITS.

    Successive rotations lose a little of all three, and no other check would notice.
    """
    rows, unit = w[0].shape[1], 2.0 ** (-53 * (len(w) // numbers.parts))
    eye = torch.eye(rows, dtype=torch.bool, device=w[0].device)
    size = numbers.magnitude(lacking(w, numbers))
    good = torch.where(eye, size <= LIMITS.own * rows * unit, size <= LIMITS.off * unit)
    good = good.flatten(1).all(1)
    product = numbers.hermitian(numbers.matmul(x, numbers.adjoint(x)))
    size, own = numbers.magnitude(product), product[0].diagonal(dim1=-2, dim2=-1)
    norms = operations.sqrt((own.contiguous(),))[0]
    limit = LIMITS.cosine * unit * norms[..., None] * norms[..., None, :]
    good &= (eye | (size <= limit)).flatten(1).all(1)
    return good & below(
        numbers.minus(numbers.matmul(w, m), x), LIMITS.drift * rows * unit, m, numbers
    )


# Limits for Y after a QR factorisation or a completed basis: BASIS for each element of Y Y^H - I;
# LOST times rows plus MORE for W M - diag(s) Y. For rows longer than LONG they grow with the root
# of the length.
BASIS, LOST, MORE, LONG = 32, 8, 24, 2**14


def factored(
    m: Components,
    w: Components,
    sizes: Components,
    y: Components,
    numbers: Real = REAL,
    rotated: Tensor | None = None,
) -> Tensor:
    """Return for which matrices Y has orthonormal rows, and W M = diag(s) Y for its first rows.

    No other check bounds the loss of reflections of long columns. `rotated` [batch, rows] marks
    rows that come unchanged from rotations (none by default), whose stopping test has proved
    orthogonality: small rows may be less orthogonal among themselves.
    """
    rows, length = w[0].shape[1], m[0].shape[2]
    unit = 2.0 ** (-53 * len(sizes)) * max(1.0, math.sqrt(length / LONG))
    near = numbers.magnitude(lacking(y, numbers)) <= BASIS * unit
    if rotated is not None:
        near[:, :rows, :rows] |= rotated[:, :, None] & rotated[:, None, :]
    good = near.flatten(1).all(1)
    first = each(lambda c: c[:, :rows].contiguous(), y)
    along = each(lambda c: c[..., None], sizes)
    scaled = numbers.by_parts(lambda p: operations.mul(p, along), first)
    lost = numbers.minus(numbers.matmul(w, m), scaled)
    return good & below(lost, (LOST * rows + MORE) * unit, m, numbers)


def unmixed(product: Components, a: Components, numbers: Real = REAL) -> Tensor:
    """Return for which matrices V^H A V is diagonal, judged by its upper triangle."""
    off = each(lambda c: c.triu(1) * math.sqrt(2.0), product)
    limit = LIMITS.mixed * a[0].shape[-1] * 2.0 ** (-53 * (len(a) // numbers.parts))
    return below(off, limit, a, numbers)


def below(x: Components, factor: float, m: Components, numbers: Real) -> Tensor:
    """Return whether |X| <= factor |M| (Frobenius), as `Limits` defines; False for NaN."""
    leading = numbers.leading(m)
    all_of = _square(leading, m[0].new_full(m[0].shape[:1], 2.0**-10), 0)
    half = torch.div(torch.frexp(all_of)[1] - 1, 2, rounding_mode="floor")
    least = factor / (64 * max(1, m[0].shape[-1]))
    step = torch.ldexp(torch.full_like(all_of, least), half)
    return _square(numbers.leading(x), step, 1) <= factor * factor * all_of


def _square(parts: Components, step: Tensor, more: int) -> Tensor:
    """Return sums of squares of elements rounded down (with more=1 up) to multiples of a step."""
    size = torch.stack(parts, -1).abs()
    count = (size / step.reshape(-1, 1, 1, 1)).clamp(max=float(MOST)).floor() + (size > 0) * more
    return (count * count).sum((1, 2, 3)) * (step * step)
