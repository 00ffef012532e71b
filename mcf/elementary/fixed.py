"""Mathematical constants to any number of bits, in integer arithmetic.

A number x is stored as the integer round(x * 2**BITS), up to a few units. All tables of
`mcf.elementary.tables` are computed from such integers, once, when first needed.
"""

from __future__ import annotations

import functools
import math
from fractions import Fraction

# 2/pi must reach below the last bit of float64's largest numbers (2**971), and still give four
# accurate components after cancellation of as many.
BITS = 1664
ONE = 1 << BITS


def to_fixed(x: Fraction) -> int:
    """Return a rational as a fixed-point integer, rounded down."""
    return (x.numerator << BITS) // x.denominator


def to_fraction(x: int) -> Fraction:
    """Return the number that a fixed-point integer represents."""
    return Fraction(x, ONE)


def _inverse_series(x: Fraction, sign: int) -> int:
    """Return x + sign x^3/3 + x^5/5 + ..., |x| < 1: atanh (sign 1) or atan (sign -1)."""
    if x < 0:
        return -_inverse_series(-x, sign)
    power, square = to_fixed(x), x * x
    total, k = 0, 0
    p, q = square.as_integer_ratio()
    while power:
        total += (power // (2 * k + 1)) * (sign if k % 2 else 1)
        power = power * p // q
        k += 1
    return total


@functools.cache
def pi() -> int:
    """Return pi by Machin's formula: pi/4 = 4 atan(1/5) - atan(1/239)."""
    return 4 * (4 * atan(Fraction(1, 5)) - atan(Fraction(1, 239)))


@functools.cache
def ln2() -> int:
    """Return log 2 = 2 atanh(1/3)."""
    return 2 * _inverse_series(Fraction(1, 3), 1)


@functools.cache
def ln10() -> int:
    """Return log 10 = 3 log 2 + log(5/4)."""
    return 3 * ln2() + log(Fraction(5, 4))


def atan(x: Fraction) -> int:
    """Return the arc tangent of a rational below 1; for x > 1/2 from that of (1 - x)/(1 + x)."""
    if x > Fraction(1, 2):
        return pi() // 4 - _inverse_series((1 - x) / (1 + x), -1)
    return _inverse_series(x, -1)


def log(x: Fraction) -> int:
    """Return the logarithm of a rational near 1, 2 atanh((x - 1)/(x + 1))."""
    return 2 * _inverse_series((x - 1) / (x + 1), 1)


def exp(x: int) -> int:
    """Return the exponential of a fixed-point number of magnitude at most 1, by its series."""
    total, term, k = ONE, ONE, 1
    while term not in (0, -1):
        term = (term * x >> BITS) // k
        total += term
        k += 1
    return total


def sin_cos(x: Fraction) -> tuple[int, int]:
    """Return sine and cosine of a rational below 1 in magnitude, by their series."""
    sums = [0, 0]
    term, k = ONE, 0
    while term:
        sums[k % 2] += term if k % 4 < 2 else -term
        k += 1
        term = term * x.numerator // (x.denominator * k)
    return sums[1], sums[0]


def root(x: int) -> int:
    """Return the square root of a fixed-point number."""
    return math.isqrt(x << BITS)


def quotient(x: int, y: int) -> int:
    """Return x / y of fixed-point numbers."""
    return (x << BITS) // y


@functools.cache
def two_over_root_pi() -> int:
    """Return 2/sqrt(pi)."""
    return quotient(2 * ONE, root(pi()))


def erfcx_by_fraction(t: int) -> int:
    """Return exp(t^2) erfc(t) for a whole t >= 20, by Laplace's continued fraction.

    erfcx(t) = 1/sqrt(pi) / (t + (1/2)/(t + (2/2)/(t + (3/2)/(t + ...)))), and 4000 levels leave an
    error below exp(-2 t sqrt(8000)).
    """
    tail = Fraction(t)
    value = to_fixed(tail)
    for k in range(4000, 0, -1):
        value = t * ONE + quotient(k * ONE // 2, value)
    return quotient(two_over_root_pi() // 2, value)


def erfcx_series(t: Fraction, value: int, count: int) -> list[int]:
    """Return the Taylor coefficients of erfcx around t, given its value there.

    From w' = 2 x w - 2/sqrt(pi): (k + 1) a_{k+1} = 2 t a_k + 2 a_{k-1}. The recurrence loses bits,
    but far fewer than BITS exceeds the result's.
    """
    p, q = t.as_integer_ratio()
    a = [value, 2 * p * value // q - two_over_root_pi()]
    for k in range(1, count - 1):
        a.append((2 * p * a[k] // q + 2 * a[k - 1]) // (k + 1))
    return a[:count]


def evaluate(coefficients: list[int], x: Fraction) -> int:
    """Return the value at a rational of a fixed-point polynomial, constant first."""
    total = 0
    p, q = x.as_integer_ratio()
    for c in reversed(coefficients):
        total = total * p // q + c
    return total


def parts(numerator: int, denominator: int, count: int) -> tuple[float, ...]:
    """Return the float64 nearest to a quotient, then to the remainder, and so on.

    The first m of them are the parts for `count` = m. The quotient is not reduced, which would take
    longest.
    """
    out = []
    for _ in range(count):
        # Python divides integers of any size with one rounding.
        c = numerator / denominator
        out.append(c)
        top, power = c.as_integer_ratio()
        if denominator & (power - 1) == 0:
            numerator -= top * (denominator >> (power.bit_length() - 1))
        else:
            numerator = numerator * power - top * denominator
            denominator *= power
    return tuple(out)
