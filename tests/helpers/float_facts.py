"""What is true of s + e = x + y, s = RN(x + y), in terms of where the bits of the numbers lie.

And of s + e = x * y, s = RN(x * y).

A number that is not zero is described by its sign and four exponents: of its leading bit, of its
lowest bit, of the distance to the next power of two, and of what follows the leading bit. Every
statement is linear in them and in the precision, so that an SMT solver can chain the statements of
a network for all precisions at once. The idea is that of Zhang, Aiken 2025 ("Automatic verification
of floating-point accumulation networks", doi:10.1007/978-3-031-98682-6_12); the statements are
tried on all pairs of numbers of toy formats.

`Logic` is Python's own for numbers, z3's for unknowns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from tests.helpers.distance_facts import of_distances


@dataclasses.dataclass(frozen=True)
class Shape:
    """A number: `top` is its exponent, 2**low its lowest bit.

    For |v| = 2**top + r: 2**gap <= 2**(top + 1) - |v| < 2**(gap + 1), and 2**rest <= r <
    2**(rest + 1); for r = 0 `rest` is top - 1. Where `zero`, nothing else means anything.
    """

    zero: Any
    negative: Any
    top: Any
    low: Any
    gap: Any
    rest: Any


def exponent(v: Fraction) -> int:
    """floor(log2(v)) for v > 0."""
    e = v.numerator.bit_length() - v.denominator.bit_length()
    return e if Fraction(2) ** e <= v else e - 1


def shape(v: Fraction) -> Shape:
    """Of a number with finitely many bits."""
    if v == 0:
        return Shape(True, False, 0, 0, 0, 0)
    a = abs(v)
    top = exponent(a)
    low = (a.numerator & -a.numerator).bit_length() - a.denominator.bit_length()
    power = Fraction(2) ** top
    rest = exponent(a - power) if a != power else top - 1
    return Shape(False, v < 0, top, low, exponent(2 * power - a), rest)


class Logic:
    """Connectives of Python's booleans."""

    @staticmethod
    def all(*facts: Any) -> Any:
        return all(facts)

    @staticmethod
    def any(*facts: Any) -> Any:
        return any(facts)

    @staticmethod
    def no(fact: Any) -> Any:
        return not fact

    @staticmethod
    def implies(fact: Any, other: Any) -> Any:
        return not fact or other

    @staticmethod
    def choose(fact: Any, a: Any, b: Any) -> Any:
        return a if fact else b


def of_a_number(v: Shape, p: Any, logic: Any = Logic) -> Any:
    """True of every number of precision p."""
    power = v.low == v.top
    # What follows the leading bit and what is missing to the next add up to 2**top.
    most = v.top - 1
    halves = logic.any(
        logic.all(v.rest == most, v.gap < most),
        logic.all(v.rest < most, v.gap == most),
        logic.all(v.rest == most, v.gap == most, v.low == most),
    )
    return logic.implies(
        logic.no(v.zero),
        logic.all(
            v.low <= v.top,
            v.top - v.low <= p - 1,
            v.low <= v.gap,
            v.gap <= v.top,
            v.rest <= v.top - 1,
            logic.implies(power, logic.all(v.gap == v.top, v.rest == v.top - 1)),
            logic.implies(logic.no(power), logic.all(v.rest >= v.low, halves)),
        ),
    )


def same(a: Shape, b: Shape, logic: Any = Logic) -> Any:
    """Whether two numbers look the same."""
    parts = zip(dataclasses.astuple(a)[1:], dataclasses.astuple(b)[1:], strict=True)
    equal = logic.all(*(x == y for x, y in parts))
    return logic.all(a.zero == b.zero, logic.implies(logic.no(a.zero), equal))


def of_a_sum(
    x: Shape, y: Shape, s: Shape, e: Shape, p: Any, logic: Any = Logic, distances: bool = True
) -> Iterator[Any]:
    """True of s = RN(x + y), ties to even, and e = x + y - s, for every precision p >= 3.

    Without `distances` the facts of `tests.helpers.distance_facts` are left out.
    """
    both = logic.all(logic.no(x.zero), logic.no(y.zero))
    yield logic.implies(x.zero, logic.all(same(s, y, logic), e.zero))
    yield logic.implies(y.zero, logic.all(same(s, x, logic), e.zero))
    yield logic.implies(s.zero, e.zero)
    facts = [*_of_the_error(x, y, s, e, p, logic), *_of_signs(x, y, s, e, p, logic)]
    if distances:
        facts += of_distances(x, y, s, e, p, logic)
    for fact in facts:
        yield logic.implies(both, fact)
    for a, b in ((x, y), (y, x)):
        for fact in _of_a_larger(a, b, s, e, p, logic):
            yield logic.implies(logic.all(both, a.top > b.top), fact)


def fast_two_sum_is_exact(x: Shape, y: Shape, e: Shape, p: Any, logic: Any = Logic) -> Any:
    """Whether Fast2Sum of x and y gives the error e of their sum, by what is known of them.

    Dekker's condition on exponents; or x is a multiple of ulp(y) (Rump, Ogita, Oishi 2008, lemma
    2.6, doi:10.1137/050645671); or the sum is exact.
    """
    multiple = x.low >= y.top - p + 1
    return logic.any(x.zero, y.zero, x.top >= y.top, multiple, e.zero)


def of_a_product(
    x: Shape, y: Shape, s: Shape, e: Shape, p: Any, logic: Any = Logic
) -> Iterator[Any]:
    """True of s = RN(x * y), ties to even, and e = x * y - s, without underflow, for p >= 3."""
    both = logic.all(logic.no(x.zero), logic.no(y.zero))
    yield logic.implies(logic.no(both), logic.all(s.zero, e.zero))
    top, low = x.top + y.top, x.low + y.low
    facts = [
        logic.no(s.zero),
        s.negative == (x.negative != y.negative),
        # (2 - 2**(1 - p))**2 is rounded to less than 4.
        logic.all(s.top >= top, s.top <= top + 1),
        logic.choose(e.zero, s.low, e.low) == low,
        # A product has at most as many bits as its factors together.
        logic.implies(top + 2 - low <= p, e.zero),
        logic.implies(logic.any(x.low == x.top, y.low == y.top), e.zero),
        *_of_a_rounding(s, e, p, logic),
    ]
    for fact in facts:
        yield logic.implies(both, fact)


def _of_a_rounding(s: Shape, e: Shape, p: Any, logic: Any) -> Iterator[Any]:
    """True of what is rounded off from a number to nearest."""
    inexact = logic.no(e.zero)
    # |e| is at most half an ulp of s, a quarter beyond a power of two; a tie leaves s even.
    half, quarter = s.top - p, s.top - p - 1
    yield logic.implies(inexact, logic.all(logic.no(s.zero), e.top <= half))
    tie = logic.all(e.low == e.top, s.low >= half + 2)
    yield logic.implies(logic.all(inexact, e.top == half), tie)
    beyond = logic.all(inexact, s.low == s.top, s.negative != e.negative)
    yield logic.implies(beyond, e.top <= quarter)
    yield logic.implies(logic.all(beyond, e.top == quarter), e.low == e.top)


def _of_the_error(x: Shape, y: Shape, s: Shape, e: Shape, p: Any, logic: Any) -> Iterator[Any]:
    yield from _of_a_rounding(s, e, p, logic)
    # The lowest bit of the sum is that of e, or of s where e = 0.
    lowest = logic.choose(e.zero, s.low, e.low)
    least = logic.choose(x.low <= y.low, x.low, y.low)
    known = logic.choose(x.low == y.low, lowest > x.low, lowest == least)
    yield logic.implies(logic.no(s.zero), known)
    # What fits into p bits is exact.
    most = logic.choose(x.top >= y.top, x.top, y.top)
    carry = logic.choose(x.negative == y.negative, 1, 0)
    yield logic.implies(most + carry - least <= p - 1, e.zero)


def _of_signs(x: Shape, y: Shape, s: Shape, e: Shape, p: Any, logic: Any) -> Iterator[Any]:
    alike = x.negative == y.negative
    most = logic.choose(x.top >= y.top, x.top, y.top)
    opposite = logic.all(logic.no(alike), x.top == y.top, x.low == y.low)
    yield logic.implies(s.zero, opposite)
    grows = logic.all(s.negative == x.negative, s.top >= most, s.top <= most + 1)
    yield logic.implies(alike, logic.all(logic.no(s.zero), grows))
    cancels = logic.all(e.zero, logic.implies(logic.no(s.zero), s.top <= x.top - 1))
    yield logic.implies(logic.all(logic.no(alike), x.top == y.top), cancels)


def _of_a_larger(a: Shape, b: Shape, s: Shape, e: Shape, p: Any, logic: Any) -> Iterator[Any]:
    """Of a sum a + b where a has the larger exponent."""
    alike = a.negative == b.negative
    power, longer = a.low == a.top, a.low < a.top
    yield logic.all(logic.no(s.zero), s.negative == a.negative)
    # b is too small to change a.
    unchanged = logic.all(same(s, a, logic), same(e, b, logic))
    yield logic.implies(b.top <= a.top - p - 2, unchanged)
    yield logic.implies(logic.all(b.top <= a.top - p - 1, logic.any(alike, longer)), unchanged)

    less = [
        (True, s.top <= a.top),
        (b.top < a.top - 1, s.top >= a.top - 1),
        (b.top == a.top - 1, s.top >= b.gap),
        (logic.all(power, b.top == a.top - 1), logic.all(e.zero, s.top == b.gap)),
        (logic.all(longer, b.top + 1 <= a.low), s.top == a.top),
        (logic.all(longer, b.low == b.top, b.top <= a.low), s.top == a.top),
        (s.top == a.top, s.gap >= a.gap),
        (logic.all(power, s.top == a.top), unchanged),
        (logic.all(power, b.top >= a.top - p, s.top == a.top - 1), s.gap >= b.top),
    ]
    # Just below the power of two: the distance is |b| rounded to a multiple of 2**b.top.
    near = logic.all(power, s.top == a.top - 1, s.low >= b.top, logic.no(e.zero))
    less += [
        (logic.all(near, s.gap == b.top), e.negative == b.negative),
        (logic.all(near, s.gap > b.top), e.negative == a.negative),
    ]
    for given, fact in less:
        yield logic.implies(logic.all(logic.no(alike), given), fact)

    longer_sum = s.low < s.top
    up, level = s.top == a.top + 1, s.top == a.top
    # All ones above b, and a rounding to the power of two.
    rounded_up = logic.all(s.low == s.top, logic.no(e.zero), e.negative != s.negative)
    bottom = s.rest <= s.top - p + 1
    more = [
        (logic.all(b.top < a.low, up), rounded_up),
        (logic.all(logic.any(power, a.rest <= a.top - 3), b.top <= a.top - 2), level),
        (logic.all(up, longer_sum), logic.any(s.rest <= b.top + 1, bottom)),
        (
            logic.all(level, longer_sum, logic.any(power, b.top >= a.rest)),
            logic.any(s.rest <= b.top + 1, bottom),
        ),
        (
            logic.all(level, longer_sum, longer, b.top < a.rest),
            logic.any(s.rest <= a.rest + 1, bottom),
        ),
    ]
    for given, fact in more:
        yield logic.implies(logic.all(alike, given), fact)
