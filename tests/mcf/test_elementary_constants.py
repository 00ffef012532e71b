"""Components of constants: in integers what the definition says in rationals.

*Exact*. Mutant: what is left after the first component, from a denominator that is no power of two,
taken for one.
"""

from __future__ import annotations

from fractions import Fraction

import pytest

from mcf.elementary import fixed


def defined(x: Fraction, count: int) -> tuple[float, ...]:
    out = []
    for _ in range(count):
        out.append(float(x))
        x -= Fraction(out[-1])
    return tuple(out)


QUOTIENTS = [
    *((0, 1), (1, 1), (-1, 3), (10, 15), (2**1000 + 1, 2**1000 * 7), (1, 3 * 2**1060)),
    *((fixed.ln2(), fixed.ONE), (-fixed.pi() * 999, fixed.ONE), (fixed.pi(), fixed.ln10())),
    *((12 * fixed.ln2(), 8 * fixed.ONE), (3**600, 2**900), (7, 2**1074), (2**1023, 1)),
]


@pytest.mark.parametrize("k", range(len(QUOTIENTS)))
def test_components_of_quotients(k: int) -> None:
    top, bottom = QUOTIENTS[k]
    expected = defined(Fraction(top, bottom), 5)
    assert fixed.parts(top, bottom, 5) == expected
    assert fixed.components(Fraction(top, bottom), 5) == expected
