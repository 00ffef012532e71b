"""Error bounds of quotients and roots of three and four components, derived from their steps.

Everything is relative: x and y stand for |x| and |y|, with ufp(x0) = ufp(y0) = 1. The notation is
that of docs/numerics.md: E bounds the relative error of the first pair q, M that of the product
q * y, and what each step loses is counted by `propagation`.
"""

from __future__ import annotations

from fractions import Fraction

from mcf.kernels.algorithms import products, quotients, short_products
from tests.helpers.propagation import Magnitude, Propagation, product_bound, ufp


def _tail(u: Fraction, terms: int) -> Fraction:
    """What the components after the second are of an expansion, at most."""
    below = sum((u**k for k in range(2, terms)), Fraction(0))
    return below / (1 - u - below)


def _pair_quotient(u: Fraction) -> Fraction:
    """Joldes, Muller, Popescu 2017, theorem of DWDivDW2."""
    return 15 * u**2 + 56 * u**3


def _pair_root(u: Fraction) -> Fraction:
    """Lefèvre, Louvet, Muller, Picot, Rideau 2023, theorem of SQRTDWtoDW."""
    return Fraction(25, 8) * u**2


def _difference(u: Fraction, terms: int, near: Fraction) -> tuple[Fraction, Fraction]:
    """x - p, where |x - p| <= near * x: what `rest3` or `rest4` lose and the least part r2."""
    algorithm = quotients.rest3 if terms == 3 else quotients.rest4
    lost = last = Fraction(0)
    # p is in the binade of x, above it or, which is better, below: then x is nearly 2, or 1.
    for p0, least in ((Fraction(1), 1 - 2 * u), (Fraction(2), 2 - 4 * u)):
        x = [u**k for k in range(terms)]
        p = [p0 * u**k for k in range(terms)]
        rest = sum(x[2:]) + sum(p[2:]) + u * ufp(x[1] + p[1])
        exact = near * 2 * p0 + rest
        # x0 - p0 is 0 or at least u, and what x1 - p1 leaves of it less than half: exact.
        assert exact < u / 2
        first = Magnitude(2 * p0, after=(6 * u, exact))
        given = (first, *map(Magnitude, x[1:])), tuple(map(Magnitude, p))
        run = Propagation(algorithm, u, *given)
        lost = max(lost, run.lost / least)
        last = max(last, run.result[-1].most / least)
    return lost, last


def _digit(
    u: Fraction, rest: Fraction, last: Fraction, third: Fraction
) -> tuple[Fraction, Fraction]:
    """`reduced`: what it loses, and how much it leaves of a residual of at most `rest`.

    Args:
        u: half an ulp of one.
        rest: of the residual, |r|.
        last: of its third part.
        third: of the divisor's third component.
    """
    r0 = rest * (1 + 2 * u)
    q = Magnitude(r0 * (1 + u))
    # r0 - RN(r0 / y0) * y0 is a number of the format.
    r = Magnitude(r0, after=(r0, u * (1 + u) * r0)), Magnitude(u * r0), Magnitude(last)
    run = Propagation(
        quotients.reduced, u, r, q, (Magnitude(Fraction(1)), Magnitude(u), Magnitude(third))
    )
    return run.lost, sum((m.most for m in run.result), Fraction(0))


def _assembled(u: Fraction, *corrections: Fraction) -> Fraction:
    """What `corrected3` or `corrected4` lose, relative to the result."""
    algorithm = quotients.corrected3 if len(corrections) == 2 else quotients.corrected4
    pair = Magnitude(Fraction(2)), Magnitude(u)
    run = Propagation(algorithm, u, *pair, *(Magnitude(2 * c) for c in corrections))
    return run.lost / (1 - 2 * u)


def quotient_bound(u: Fraction, terms: int, *, inverse: bool = False) -> Fraction:
    """Of x / y, or of 1 / y."""
    tail = _tail(u, terms)
    first = (1 + _pair_quotient(u)) * (1 if inverse else 1 + tail) / (1 - tail) - 1
    times = products.pair_times3 if terms == 3 else products.pair_times4
    product = product_bound(times, u, 2, terms) * (1 + first)
    lost, last = _difference(u, terms, first + product)
    return _corrected(u, terms, first, product + lost, last, u**2, tail)


def root_bound(u: Fraction, terms: int) -> Fraction:
    """Of sqrt(x)."""
    # |sqrt(1 + d) - 1| <= d for |d| <= 1/2.
    first = (1 + _pair_root(u)) * (1 + _tail(u, terms)) - 1
    square = short_products.pair_square3 if terms == 3 else short_products.pair_square4
    product = product_bound(square, u, 2, parts=32) * (1 + first) ** 2
    near = 2 * first + first**2
    lost, last = _difference(u, terms, near + product)
    # sqrt(x) - s = r / (sqrt(x) + s), and the algorithm divides by 2 s.
    half = (product + lost) / (2 - first)
    return _corrected(u, terms, first, half, last, first * (1 + u), first)


def _corrected(
    u: Fraction,
    terms: int,
    first: Fraction,
    residual: Fraction,
    last: Fraction,
    third: Fraction,
    divisor: Fraction,
) -> Fraction:
    """The error after the correction.

    Args:
        u: half an ulp of one.
        terms: components of the result.
        first: error of the first pair.
        residual: error of the residual, relative to what is divided.
        last: the residual's third part.
        third: of the divisor's third component.
        divisor: how far a divisor of two components is off.
    """
    quotient = (1 + _pair_quotient(u)) / (1 - divisor) - 1
    rest = first * (1 + divisor) + residual
    if terms == 3:
        correction = rest * (1 + quotient)
        error = residual + quotient * rest
        return error + _assembled(u, correction, u * correction) * (1 + error)
    lost, left = _digit(u, rest, last, third)
    error = residual + lost + quotient * left
    digit, correction = rest * (1 + 4 * u), left * (1 + quotient)
    return error + _assembled(u, digit, correction, u * correction) * (1 + error)
