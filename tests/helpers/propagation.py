"""Error bounds derived from the code: magnitudes propagated through an algorithm, every loss added.

An algorithm runs on bounds of magnitudes instead of numbers. With ufp(m) the largest power of two
<= m, a sum or product below m is rounded with an error of at most u ufp(m), and that of a sum is
no larger than either summand. TwoSum, Fast2Sum and TwoProd pass their errors on; `rn` alone and the
products that an algorithm leaves out lose them. Nothing here is a float: all of it are fractions.

Leading components are taken from short intervals and the components below them in two classes: a
tie, |x[k + 1]| = u ufp(x[k]), which is a power of two, so that its products are exact; or less, and
then the next is below u/2 of that bound.

That each Fast2Sum is exact is proved elsewhere (`tests/kernels/test_smt_networks.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from fractions import Fraction
from types import FunctionType
from typing import Any

from mcf.kernels.bind import Binder

Algorithm = Callable[..., Any]


def ufp(m: Fraction) -> Fraction:
    """The largest power of two <= m, 0 for 0."""
    if m == 0:
        return Fraction(0)
    v = Fraction(2) ** (m.numerator.bit_length() - m.denominator.bit_length())
    return v if v <= m else v / 2


class Magnitude:
    """A number of at most `most`.

    Args:
        most: the bound.
        power: whether it is a power of two, or zero.
        after: bounds of the next sums that start with it, if they are known to be exact.
    """

    def __init__(
        self, most: Fraction, power: bool = False, after: tuple[Fraction, ...] = ()
    ) -> None:
        self.most, self.power, self.after = most, power, after

    def __add__(self, other: Magnitude) -> tuple[bool, Magnitude, Magnitude]:
        return False, self, other

    __sub__ = __add__

    def __mul__(self, other: Magnitude) -> tuple[bool, Magnitude, Magnitude]:
        return True, self, other


class Propagation:
    """One run of an algorithm; `lost` is the sum of what it loses.

    Args:
        algorithm: any of `mcf.kernels.algorithms` that only adds and multiplies.
        u: half an ulp of one.
        arguments: tuples of magnitudes.
    """

    def __init__(self, algorithm: Algorithm, u: Fraction, *arguments: Any) -> None:
        self.u, self.lost = u, Fraction(0)
        self.formed: set[tuple[Magnitude, Magnitude]] = set()
        names = ("rn", "rx", "rc", "fms", "neg")
        function = Binder(lambda f: f, dict.fromkeys(names))(algorithm)
        steps = {
            "two_sum": self._two_sum,
            "fast_two_sum": self._two_sum,
            "two_prod": self._two_prod,
            "two_square": lambda a: self._two_prod(a, a),
            "neg": lambda a: a,
            "rn": self._rounded,
        }
        _replace(function.__globals__, steps)
        self.result = function(*arguments)

    def _up(self, m: Fraction) -> Fraction:
        """The next number of the format."""
        unit = 2 * self.u * ufp(m)
        return -(-m // unit) * unit if m else m

    def _sum(self, a: Magnitude, b: Magnitude) -> tuple[Magnitude, Fraction]:
        if a.after:
            return Magnitude(a.after[0], after=a.after[1:]), Fraction(0)
        m = a.most + b.most
        # A number is doubled exactly.
        error = Fraction(0) if a is b else min(self.u * ufp(m), a.most, b.most)
        return Magnitude(self._up(m)), error

    def _product(self, a: Magnitude, b: Magnitude) -> tuple[Magnitude, Fraction]:
        self.formed |= {(a, b), (b, a)}
        m = a.most * b.most
        if a.power or b.power:
            return Magnitude(m, a.power and b.power), Fraction(0)
        return Magnitude(self._up(m)), self.u * ufp(m)

    def _two_sum(self, a: Magnitude, b: Magnitude) -> tuple[Magnitude, Magnitude]:
        s, error = self._sum(a, b)
        return s, Magnitude(error)

    def _two_prod(self, a: Magnitude, b: Magnitude) -> tuple[Magnitude, Magnitude]:
        p, error = self._product(a, b)
        return p, Magnitude(error)

    def _rounded(self, exact: tuple[bool, Magnitude, Magnitude]) -> Magnitude:
        product, a, b = exact
        value, error = (self._product if product else self._sum)(a, b)
        self.lost += error
        return value


def _replace(namespace: dict[str, Any], steps: dict[str, Any]) -> None:
    """Put the steps in place of the functions of their names, in called functions too."""
    for name, value in list(namespace.items()):
        if name in steps:
            namespace[name] = steps[name]
        elif isinstance(value, FunctionType):
            _replace(value.__globals__, steps)


def expansion(u: Fraction, leading: Fraction, ties: tuple[bool, ...]) -> tuple[Magnitude, ...]:
    """Components below a leading one in [1, 2) of at most `leading`; which of them are ties."""
    x, before = [Magnitude(leading)], Fraction(1)
    for tie in ties:
        most = u * before
        x.append(Magnitude(most, power=tie))
        before = most if tie else most / 2
    return tuple(x)


def _expansions(
    u: Fraction, terms: int, parts: int
) -> Iterator[tuple[tuple[Magnitude, ...], Fraction]]:
    """Every class of expansions with leading component in [1, 2), and the least value of each."""
    below = sum((u**k for k in range(1, terms)), Fraction(0))
    for ties in itertools.product((False, True), repeat=terms - 1):
        for k in range(parts):
            low, high = 1 + Fraction(k, parts), 1 + Fraction(k + 1, parts)
            yield expansion(u, high, ties), low - below


def product_bound(algorithm: Algorithm, u: Fraction, *terms: int, parts: int = 4) -> Fraction:
    """Of x * y, or of x * x where one number of terms is given: the error relative to the result.

    `parts` is the number of intervals of each leading component.
    """
    worst = Fraction(0)
    for x, least in _expansions(u, terms[0], parts):
        others = _expansions(u, terms[1], parts) if len(terms) > 1 else [(x, least)]
        for y, least_y in others:
            run = Propagation(algorithm, u, *((x, y) if len(terms) > 1 else (x,)))
            left_out = (a.most * b.most for a in x for b in y if (a, b) not in run.formed)
            worst = max(worst, (run.lost + sum(left_out)) / (least * least_y))
    return worst
