"""The exponential of matrices of expansions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import TypeVar

import torch

from mcf.convert.numbers import components_of
from mcf.kernels import operations
from mcf.kernels.formats import FP64
from mcf.linalg.number_kinds import REAL, Real, closed, flattened
from mcf.linalg.parts import Components, identity, matrices
from mcf.reductions.products import matmul

Matrix = TypeVar("Matrix")
# A norm times this is a bound: it covers low components and the rounding of the sum.
ABOVE = 1 + 2.0**-20


@functools.cache
def degree(terms: int) -> tuple[int, int]:
    """Return q and r: the Taylor polynomial of degree q r is exact to u^terms / 4 for |A| <= 1.

    The remainder is below 1.1 / (q r + 1)!; q + r - 2 products compute the polynomial.
    """
    size = 2
    while True:
        for q, r in ((size, size - 1), (size, size)):
            if math.factorial(q * r + 1) > 2 ** (53 * terms + 2):
                return q, r
        size += 1


def exponential(a: Components, numbers: Real = REAL) -> Components:
    """Return e^A = (T(A / 2^s))^(2^s) for square A [..., n, n], |A / 2^s| <= 1 in the 1-norm.

    T is the Taylor polynomial whose degree fits the number of components (30, 42, 49 for two,
    three, four of float64), computed by the scheme of Paterson and Stockmeyer (1973,
    doi:10.1137/0202007). For scaling and squaring in many precisions see Fasi, Higham 2019,
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
    exponent = torch.frexp(norm * ABOVE)[1].clamp(min=0)
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
    """Return the sum of x^j / j! up to the degree of `degree`."""
    terms = len(x) // numbers.parts

    def scaled(j: int, power: Components) -> Components:
        return numbers.by_parts(lambda p: operations.mul(_coefficient(p, j), p), power)

    def added(j: int, power: Components, total: Components) -> Components:
        return numbers.by_parts(lambda p, t: operations.fma(_coefficient(p, j), p, t), power, total)

    one = identity(x, x[0].shape[-1])
    return polynomial(degree(terms), one, x, numbers.matmul, scaled, added)


def polynomial(
    size: tuple[int, int],
    one: Matrix,
    x: Matrix,
    product: Callable[[Matrix, Matrix], Matrix],
    scaled: Callable[[int, Matrix], Matrix],
    added: Callable[[int, Matrix, Matrix], Matrix],
) -> Matrix:
    """Return the sum of x^j / j! up to j = q r, for matrices or for proxies that record operations.

    Args:
        size: q and r, see `degree`.
        one: the identity.
        x: the matrix.
        product: of two matrices.
        scaled: j and x -> x / j!.
        added: j, x and y -> x / j! + y.
    """
    q, r = size
    powers = [one, x]
    while len(powers) <= q:
        powers.append(product(powers[-1], x))
    total = scaled(q * r, powers[q])
    for i in reversed(range(r)):
        if i < r - 1:
            total = product(total, powers[q])
        for j in reversed(range(q)):
            total = added(i * q + j, powers[j], total)
    return total


def coefficient(j: int, terms: int) -> tuple[float, ...]:
    """Return 1 / j! as an expansion of `terms` float64 components."""
    return components_of(Fraction(1, math.factorial(j)), FP64, terms)


def _coefficient(x: Components, j: int) -> Components:
    """Return 1 / j! with as many components as x."""
    return tuple(
        torch.tensor(p, dtype=torch.float64, device=x[0].device) for p in coefficient(j, len(x))
    )
