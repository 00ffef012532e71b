"""What is looked at where the end of an iteration proves too little, in u^terms.

Decisions are of first components and of sums that no order changes: the same on every executor.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mcf.kernels import operations
from mcf.linalg.numbers import REAL, Real
from mcf.linalg.parts import Components, each, identity

# What is looked at after rotations, in u^terms: of W W^H - I on the diagonal, where each rotation
# leaves something, times rows; off it; cosines of rows of X; of W M - X times rows, relative to M.
OWN, OFF, COSINE, DRIFT = 32, 64, 64, 8


def lacking(w: Components, numbers: Real) -> Components:
    """I - W W^H."""
    product = numbers.matmul(w, numbers.adjoint(w))
    return numbers.hermitian(numbers.minus(identity(w, w[0].shape[-2]), product))


def held(m: Components, w: Components, x: Components, numbers: Real = REAL) -> Tensor:
    """Which W is orthogonal, has W M = X and makes its rows orthogonal, as far as OWN and so on.

    Rotations one by one lose a little of all three, of which nothing else takes notice.
    """
    rows, unit = w[0].shape[1], 2.0 ** (-53 * (len(w) // numbers.parts))
    eye = torch.eye(rows, dtype=torch.bool, device=w[0].device)
    size = numbers.magnitude(lacking(w, numbers))
    good = torch.where(eye, size <= OWN * rows * unit, size <= OFF * unit)
    good = good.flatten(1).all(1)
    product = numbers.hermitian(numbers.matmul(x, numbers.adjoint(x)))
    size, own = numbers.magnitude(product), product[0].diagonal(dim1=-2, dim2=-1)
    norms = operations.sqrt((own.contiguous(),))[0]
    limit = COSINE * unit * norms[..., None] * norms[..., None, :]
    good &= (eye | (size <= limit)).flatten(1).all(1)
    return good & below(numbers.minus(numbers.matmul(w, m), x), DRIFT * rows * unit, m, numbers)


# The same of Y after a factorisation Q R or a completed basis: of Y Y^H - I in each element, and of
# W M - diag(s) Y times rows and besides. Of rows longer than LONG numbers the root of their length
# over that of LONG times as much.
BASIS, LOST, MORE, LONG = 32, 8, 24, 2**14


def factored(
    m: Components, w: Components, sizes: Components, y: Components, numbers: Real = REAL
) -> Tensor:
    """Which Y has orthonormal rows, and W M = diag(s) Y for its first ones.

    Nothing else says how much the reflections of long columns have lost.
    """
    rows, length = w[0].shape[1], m[0].shape[2]
    unit = 2.0 ** (-53 * len(sizes)) * max(1.0, math.sqrt(length / LONG))
    good = (numbers.magnitude(lacking(y, numbers)) <= BASIS * unit).flatten(1).all(1)
    first = each(lambda c: c[:, :rows].contiguous(), y)
    along = each(lambda c: c[..., None], sizes)
    scaled = numbers.by_parts(lambda p: operations.mul(p, along), first)
    lost = numbers.minus(numbers.matmul(w, m), scaled)
    return good & below(lost, (LOST * rows + MORE) * unit, m, numbers)


def below(x: Components, factor: float, m: Components, numbers: Real) -> Tensor:
    """Which |X| <= factor |M| (Frobenius) for |M| near 1, by first components; a NaN is not."""
    step = factor / (64 * m[0].shape[-1])
    return _square(numbers.leading(x), step, 1) <= factor**2 * _square(
        numbers.leading(m), 2.0**-10, 0
    )


def _square(parts: Components, step: float, more: int) -> Tensor:
    """The sum of squares of matrices, of multiples of a step below (or above, with 1): no order."""
    size = torch.stack(parts, -1).abs()
    count = (size / step).clamp(max=2.0**24).floor() + (size > 0) * more
    return (count * count).sum((1, 2, 3)) * step**2
