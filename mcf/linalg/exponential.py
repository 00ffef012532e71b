"""The exponential of matrices of expansions."""

from __future__ import annotations

import functools
import math
from fractions import Fraction

import torch

from mcf.convert.numbers import components_of
from mcf.kernels import operations
from mcf.kernels.formats import format_of
from mcf.linalg.numbers import REAL, Real
from mcf.linalg.parts import Components, identity, matrices
from mcf.linalg.working import closed, flattened
from mcf.reductions.products import matmul


@functools.cache
def degree(terms: int) -> tuple[int, int]:
    """q and r of the Taylor polynomial of degree q r that is exact to u^terms / 4 for |A| <= 1.

    What is left out is below 1.1 / (q r + 1)!; q + r - 2 products compute it.
    """
    size = 2
    while True:
        for q, r in ((size, size - 1), (size, size)):
            if math.factorial(q * r + 1) > 2 ** (53 * terms + 2):
                return q, r
        size += 1


def exponential(a: Components, numbers: Real = REAL) -> Components:
    """e^A = (T(A / 2^s))^(2^s) for square matrices A [..., n, n], |A / 2^s| <= 1 in the 1-norm.

    T is the Taylor polynomial whose degree fits the number of components (30, 42, 49 for two,
    three, four of float64), computed by Paterson's and Stockmeyer's scheme (1973,
    doi:10.1137/0202007); scaling and squaring in many precisions: Fasi, Higham 2019,
    doi:10.1137/18M1228876. A matrix that is not finite gives NaN.

    The error in the 1-norm is at most c n (1 + |A|) u^terms e^|A|, with u^terms of the working
    format: a squaring doubles the error relative to e^|A|.
    """
    x = numbers.by_parts(flattened, a)
    n = x[0].shape[-1]
    ones = x[0].new_ones(1, n)
    norm = (
        matmul((ones,), (numbers.magnitude(x),))[0].amax((1, 2)) if n else x[0].new_zeros(len(x[0]))
    )
    # The low components and the sum's rounding are below 2^-20 of it.
    exponent = torch.frexp(norm * (1 + 2.0**-20))[1].clamp(min=0)
    exponent = torch.where(norm.isfinite(), exponent, 0)
    down = -exponent[:, None, None]
    x = _taylor(numbers.by_parts(lambda p: operations.ldexp(p, down), x), numbers)
    for step in range(int(exponent.max()) if exponent.numel() else 0):
        more = (exponent > step).nonzero().flatten()
        some = matrices(x, more)
        x = tuple(
            c.index_copy(0, more, s) for c, s in zip(x, numbers.matmul(some, some), strict=True)
        )
    return numbers.by_parts(closed, x, a)


def _taylor(x: Components, numbers: Real) -> Components:
    """The sum of x^j / j! up to the degree."""
    q, r = degree(len(x) // numbers.parts)
    powers = [identity(x, x[0].shape[-1]), x]
    while len(powers) <= q:
        powers.append(numbers.matmul(powers[-1], x))
    total = numbers.by_parts(lambda p: operations.mul(_coefficient(p, q * r), p), powers[q])

    def added(p: Components, t: Components) -> Components:
        return operations.fma(_coefficient(p, place), p, t)

    for i in reversed(range(r)):
        if i < r - 1:
            total = numbers.matmul(total, powers[q])
        for j in reversed(range(q)):
            place = i * q + j
            total = numbers.by_parts(added, powers[j], total)
    return total


def _coefficient(x: Components, j: int) -> Components:
    """1 / j! in as many components as x has."""
    parts = components_of(Fraction(1, math.factorial(j)), format_of(torch.float64), len(x))
    return tuple(torch.tensor(p, dtype=torch.float64, device=x[0].device) for p in parts)
