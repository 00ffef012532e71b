"""Zeros that tables keep to several floats, as fractions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction

from flint import arb

from mcf.elementary import bessel_jy
from mcf.elementary.working import working_terms
from mcf.kernels import BF16, FP16, FP32, FP64


def ball(x: Fraction) -> arb:
    """A fraction as a ball."""
    return arb(x.numerator) / arb(x.denominator)


def components(x: Fraction, count: int = 4) -> list[float]:
    """A fraction as floats, each nearest to what the ones before leave."""
    found = []
    for _ in range(count):
        found.append(float(x))
        x -= Fraction(found[-1])
    return found


def assert_no_expansion_is_nearer(zeros: Iterable[Fraction]) -> None:
    """Beside what floats leave of a zero, no expansion is nearer than what they are kept for."""
    for z in zeros:
        for fmt in (BF16, FP16, FP32, FP64):
            rest = z
            for n in range(1, 5):
                # What is left of z beside n components, and beside the floats that are used.
                unit = Fraction(2) ** (math.frexp(float(rest))[1] - fmt.p)
                rest -= round(rest / unit) * unit
                w = working_terms(fmt, n)
                parts = components(z, bessel_jy.parts_needed(fmt, n, w))
                left = abs(z - sum(map(Fraction, parts))) + z / 2**476
                assert left <= abs(rest) / 2 ** (53 * w), (fmt.name, n)
