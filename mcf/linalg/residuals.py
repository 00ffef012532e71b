"""What is looked at where the end of an iteration proves too little, in u^terms.

Decisions are of first components and of sums that no order changes: the same on every executor.
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

# What rotations may leave: on the diagonal of W W^H - I each of them leaves something. And what
# V^H A V may have off its diagonal: found are up to 45 next to multiples of the identity, and some
# 3 elsewhere.
LIMITS = Limits(own=32, off=64, cosine=64, drift=8, mixed=96)


def lacking(w: Components, numbers: Real) -> Components:
    """I - W W^H."""
    product = numbers.matmul(w, numbers.adjoint(w))
    return numbers.hermitian(numbers.minus(identity(w, w[0].shape[-2]), product))


def held(m: Components, w: Components, x: Components, numbers: Real = REAL) -> Tensor:
    """Which W is orthogonal, has W M = X and makes its rows orthogonal, as far as LIMITS say.

    Rotations one by one lose a little of all three, of which nothing else takes notice.
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


# The same of Y after a factorisation Q R or a completed basis: of Y Y^H - I in each element, and of
# W M - diag(s) Y times rows and besides. Of rows longer than LONG numbers the root of their length
# over that of LONG times as much.
BASIS, LOST, MORE, LONG = 32, 8, 24, 2**14


def factored(
    m: Components,
    w: Components,
    sizes: Components,
    y: Components,
    numbers: Real = REAL,
    rotated: Tensor | None = None,
) -> Tensor:
    """Which Y has orthonormal rows, and W M = diag(s) Y for its first ones.

    Nothing else says how much the reflections of long columns have lost. Of rows that are as
    rotations left them [batch, rows], none by default, the end of these has proved it: small ones
    may be less orthogonal among themselves.
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
    """Which V^H A V is diagonal, by what stands above."""
    off = each(lambda c: c.triu(1) * math.sqrt(2.0), product)
    limit = LIMITS.mixed * a[0].shape[-1] * 2.0 ** (-53 * (len(a) // numbers.parts))
    return below(off, limit, a, numbers)


def below(x: Components, factor: float, m: Components, numbers: Real) -> Tensor:
    """Which |X| <= factor |M| (Frobenius), see `mcf.kernels.decomposition.Limits`; NaNs are not."""
    leading = numbers.leading(m)
    all_of = _square(leading, m[0].new_full(m[0].shape[:1], 2.0**-10), 0)
    half = torch.div(torch.frexp(all_of)[1] - 1, 2, rounding_mode="floor")
    least = factor / (64 * max(1, m[0].shape[-1]))
    step = torch.ldexp(torch.full_like(all_of, least), half)
    return _square(numbers.leading(x), step, 1) <= factor * factor * all_of


def _square(parts: Components, step: Tensor, more: int) -> Tensor:
    """The sum of squares of matrices, of multiples of a step below (or above, with 1)."""
    size = torch.stack(parts, -1).abs()
    count = (size / step.reshape(-1, 1, 1, 1)).clamp(max=float(MOST)).floor() + (size > 0) * more
    return (count * count).sum((1, 2, 3)) * (step * step)
