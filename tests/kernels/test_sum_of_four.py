"""The first rounding of a sum of four components, which the solver's facts bound too weakly.

What the other three lose is in `test_smt_networks.py`.
"""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest

from tests.helpers.float_facts import exponent
from tests.kernels.test_float_facts import rounded


def first_of_four(u: Fraction) -> Fraction:
    """What the first rounding of `sum4` loses of the exact sum, at most: 2 u^4 + 7 u^5.

    RN(b + h), b the error of x0 + y0 and h that of x3 + y3, loses |h| at most, and nothing where
    b = 0. Let |x0| >= |y0| and ufp(x0) = 1. If x0 + y0 is inexact and below 1, the signs differ and
    |y0| < |x0| / 2 (Sterbenz), so that ufp(y0) <= 1/2 and |x0 + y0| > 1/2. Then |x3 + y3| is at
    most 3/2 u^3, and |h| <= u u^3. Otherwise |x0 + y0| >= 1 and |x3 + y3| <= 2 u^3, which is exact
    if equal: |h| <= u u^3 again. What follows x0 and y0 is below (1 + ufp(y0)) (u + 2 u^2).
    """
    tail = u + 2 * u**2
    return max(u**4 / (Fraction(1, 2) - Fraction(3, 2) * tail), u**4 / (1 - 2 * tail))


@pytest.mark.parametrize("p", [3, 4])
def test_the_first_rounding_of_four(p: int) -> None:
    """All leading and last components of toy floats; the last as large as they can be, and less."""
    u = Fraction(1, 2**p)

    def numbers(ufp: Fraction, binades: int) -> list[Fraction]:
        ones = range(2 ** (p - 1), 2**p)
        return [sign * m * 2 * u * ufp / 2**k for m in ones for k in range(binades)
                for sign in (1, -1)]  # fmt: skip

    def error(x: Fraction, y: Fraction) -> Fraction:
        return x + y - rounded(x + y, p)

    def last(ufp: Fraction) -> list[Fraction]:
        return [v for v in numbers(u**3 * ufp, 2) if abs(v) <= u**3 * ufp]

    most = {k: max(abs(error(a, b)) for a in last(Fraction(1)) for b in last(Fraction(1, 2**k)))
            for k in range(p + 3)}  # fmt: skip
    worst = Fraction(0)
    for x, y in itertools.product(numbers(Fraction(1), 1), numbers(Fraction(1), p + 3)):
        if error(x, y):
            k = -exponent(abs(y))
            worst = max(worst, most[k] / abs(x + y))
    # As large as argued, but for what follows x0 and y0.
    assert u**4 / 2 < worst <= 2 * u**4
