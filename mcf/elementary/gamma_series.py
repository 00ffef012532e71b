"""Taylor series of log Gamma at rational points, in integer arithmetic.

Derivatives of log Gamma are Hurwitz zeta functions: with s = c + i for 0 <= i < N and a = c + N,

    (-1)^k psi^(k-1)(c) / (k-1)! = sum 1/s^k + a^(1-k)/(k-1) + a^-k/2
                                   + sum_j B_2j/(2j)! (k)(k+1)...(k+2j-2) a^(1-k-2j)

for k >= 2 (Euler and Maclaurin; NIST's Digital Library of Mathematical Functions, 25.11.28), and
Stirling's series for k = 0 and 1 (5.11.1, 5.11.2). The truncation error is below exp(-2 pi a).

The tables have 224 nodes. Series converge up to the pole at 0: with 32 nodes per octave
coefficients fall by 6 bits per degree.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction

from torch import Tensor

from mcf.elementary import fixed
from mcf.elementary.series import Nodes
from mcf.elementary.tables import register_tables, table_of, zero_table


@functools.cache
def bernoulli(count: int) -> tuple[Fraction, ...]:
    """Return B_2, ..., B_(2 count), by tangent numbers (Brent and Harvey 2013, algorithm 1)."""
    t = [0] + [math.factorial(k - 1) for k in range(1, count + 1)]
    for k in range(2, count + 1):
        for j in range(k, count + 1):
            t[j] = (j - k) * t[j - 1] + (j - k + 2) * t[j]
    return tuple(
        Fraction((-1) ** (k - 1) * 2 * k * t[k], 4**k * (4**k - 1)) for k in range(1, count + 1)
    )


def log(x: Fraction) -> int:
    """Return the logarithm of any positive rational."""
    e = x.numerator.bit_length() - x.denominator.bit_length()
    m = x / Fraction(2) ** e
    if m > Fraction(4, 3):
        m, e = m / 2, e + 1
    return fixed.log(m) + e * fixed.ln2()


@functools.cache
def log_two_pi() -> int:
    """Return log(2 pi)."""
    return log(fixed.to_fraction(2 * fixed.pi()))


class Series:
    """Taylor coefficients as integers in units of 2**-bits.

    Args:
        bits: fractional bits, of which the last dozen may be wrong.
    """

    def __init__(self, bits: int) -> None:
        self.bits = bits
        # exp(-2 pi a) = 2**(-9 a).
        self._far = bits // 6
        self._terms = bits // 6 + 4
        self._of: dict[int, list[int]] = {}

    def _cut(self, x: int) -> int:
        return x >> (fixed.BITS - self.bits)

    def _weights(self, k: int) -> list[int]:
        """Return the factors of a^(1-2j), j = 1, 2, ..."""
        if k not in self._of:
            numbers = bernoulli(self._terms)
            if k == 0:
                found = [b / (2 * j * (2 * j - 1)) for j, b in enumerate(numbers, 1)]
            elif k == 1:
                found = [b / (2 * j) for j, b in enumerate(numbers, 1)]
            else:
                found = [
                    b
                    * math.factorial(k + 2 * j - 2)
                    / (math.factorial(2 * j) * math.factorial(k - 1))
                    for j, b in enumerate(numbers, 1)
                ]
            self._of[k] = [(f.numerator << self.bits) // f.denominator for f in found]
        return self._of[k]

    def _tail(self, k: int, a: Fraction) -> int:
        """Return the sum of weights times a^(1-2j)."""
        p, q = (a * a).as_integer_ratio()
        total = 0
        for w in reversed(self._weights(k)):
            total = total * q // p + w
        return total * a.denominator // a.numerator

    def log_gamma(self, c: Fraction, unit: Fraction, count: int) -> list[int]:
        """Return Taylor coefficients of log Gamma(c + unit v) in v."""
        one = 1 << self.bits
        steps = max(0, self._far - int(c))
        a = c + steps
        shifts = [c + i for i in range(steps)]
        product = Fraction(math.prod(s.numerator for s in shifts), c.denominator**steps)
        half = Fraction(1, 2)
        log_a = log(a)
        value = (a - half) * log_a - a * fixed.ONE + half * log_two_pi()
        zero = self._cut(int(value) - log(product)) + self._tail(0, a)
        slope = self._cut(log_a - int(fixed.ONE / (2 * a)))
        slope -= self._tail(1, a) * a.denominator // a.numerator
        slope -= sum(one * s.denominator // s.numerator for s in shifts)
        out = [zero, int(slope * unit)]
        ratios = [int(unit / s * one) for s in (*shifts, a)]
        powers = ratios
        for k in range(2, count):
            powers = [p * r >> self.bits for p, r in zip(powers, ratios, strict=True)]
            factor = int((a / (k - 1) + half) * one) + self._tail(k, a)
            total = sum(powers[:-1]) + (powers[-1] * factor >> self.bits)
            out.append((-1) ** k * total // k)
        return out


def quotient(series: list[int], at: int, unit: Fraction, bits: int) -> list[int]:
    """Divide a series by at + unit v, where `at` is an integer in units of 2**-bits, too."""
    out: list[int] = []
    step = int(unit * (1 << bits))
    for s in series:
        last = out[-1] * step if out else 0
        out.append(((s << bits) - last) // at)
    return out


def quotient_about(series: list[int], at: int, unit: Fraction, bits: int) -> list[int]:
    """Divide a series by at + unit v, |at| <= unit, if it vanishes where the divisor does.

    It proceeds from the last coefficient, after which zeros are assumed, since in the other
    direction errors grow by unit / at per degree; the last few coefficients are not usable.
    """
    out = [0]
    step = int(unit * (1 << bits))
    for s in series[:0:-1]:
        out.append(((s << bits) - at * out[-1]) // step)
    return out[:0:-1]


def derived(row: list[int], m: int, half: Fraction, count: int | None = None) -> list[int]:
    """Return the first coefficients of (-1)^m times the derivative of order m.

    Args:
        row: coefficients of a function, in v = (x - node) / half.
        m: the order.
        half: the half-width of the interval.
        count: how many coefficients; by default all that there are.
    """
    p, q = ((-half) ** m).as_integer_ratio()
    end = None if count is None else m + count
    return [math.perm(k, m) * c * q // p for k, c in enumerate(row[:end])][m:]


@functools.cache
def zero_of_digamma() -> Fraction:
    """Return the positive zero of digamma, to about 600 bits, by Newton's method."""
    series = Series(704)
    x = Fraction(1.4616321449683623)
    for _ in range(4):
        _, slope, curve = series.log_gamma(x, Fraction(1), 3)
        x -= Fraction(slope, 2 * curve)
        x = Fraction(round(x * 2**680), 2**680)
    return x


DEGREES = 40
TABLE_BITS = 400


def nodes_of(name: str) -> Nodes:
    """Return a table for 1/2 <= z < 64: 32 nodes in each of [1/2, 1), [1, 2), ..., [32, 64)."""
    return Nodes(name, 7, DEGREES, -1)


@functools.cache
def log_gamma_rows(bits: int, count: int) -> list[tuple[list[int], Fraction, Fraction]]:
    """Return coefficients of log Gamma in v = (x - node) / half, with each node and half."""
    series = Series(bits)
    return [(series.log_gamma(c, half, count), c, half) for c, half in nodes_of("").points()]


def _table_of(
    of: Callable[[list[int], Fraction, Fraction], list[int]],
) -> Tensor:
    rows = log_gamma_rows(TABLE_BITS, DEGREES + 2)
    return table_of((of(*row) for row in rows), TABLE_BITS, DEGREES)


def _over(series: list[int], at: Fraction, unit: Fraction) -> list[int]:
    return quotient(series, round(at * (1 << TABLE_BITS)), unit, TABLE_BITS)


register_tables(
    # log Gamma(x) / ((x - 1) (x - 2)), which has no zero.
    lgamma_series=lambda: _table_of(
        lambda row, c, half: _over(_over(row, c - 1, half), c - 2, half)
    ),
    # digamma(x) / (x - x0), with x0 its positive zero.
    digamma_series=lambda: _table_of(
        lambda row, c, half: _over(derived(row, 1, half), zero_of_digamma() - c, -half)
    ),
    trigamma_series=lambda: _table_of(lambda row, c, half: derived(row, 2, half)),
    digamma_zero=lambda: zero_table(zero_of_digamma()),
)
