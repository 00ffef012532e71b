"""Error bounds of the elementary functions, derived step by step.

Each function below mirrors the computation of its namesake on errors. The error of a sum x + y is
(|x| e_x + |y| e_y) / |x + y| plus the addition's own. That of a product is the sum of both plus the
multiplication's own, and so on. The result is the largest over all nodes of the table. All errors
are relative to the exact result. `e` has the errors of the steps (`error_steps`), to which these
bounds are proportional.
"""

from __future__ import annotations

import math

from mcf.elementary import angles, exponential, logarithm, tables
from mcf.elementary.error_steps import Magnitudes, Steps
from mcf.elementary.few_products import LARGEST
from mcf.elementary.format import WORKING
from mcf.kernels.formats import FP64

# log(2) / 512, plus the rounding of the multiple of log(2) / 256.
_REST = math.log(2) / 512 * (1 + 2.0**-30)
_GROWTH = math.expm1(_REST)


def _reduced(e: Steps) -> float:
    """Return the absolute error of x - k log(2) / 256, with log(2) truncated at 2**-8 u^n.

    Below four components: the first place of the sum is below 2**-9.4. Each of at most five floats
    (three if three components are wanted) passes half of its last bit to the next place, and so on.
    In the last place there are six roundings of at most 2**-7 u^n. Four components have one place
    more. In float32 these are seven roundings of at most 2**-8 u^n.
    """
    own = e.collect() * _REST if e.terms == tables.TERMS else 2.0**-4 * e.constant()
    return own + 2.0**-8 * e.constant()


def _small(e: Steps) -> float:
    """Return the error of exp(r) - 1 = r + r (r p(r)) / 2, for an exact r."""
    p = e.polynomial(_REST, 9.5, exponential._coefficient, 10.5, 0.0)
    share = _REST / 2 * math.exp(_REST) / (1 - _REST)
    return e.plus() + share * (p + 2 * e.mul())


def exp(e: Steps, argument: float = 0.0) -> float:
    """Return the error of t + t (exp(r) - 1), with an absolute error of the argument."""
    share = _GROWTH / (1 - _GROWTH)
    return e.constant() + share * (e.mul() + _small(e)) + e.plus() + _reduced(e) + argument


def expm1(e: Steps) -> float:
    """Return the error of (t - 1) + t (exp(r) - 1), the difference from a table or a sum."""
    small, reduced = _small(e), _reduced(e)
    worst = small + e.collect()
    # For very negative arguments the exponential is left out, for large ones the 1.
    limits = WORKING[e.fmt]
    left = math.exp(limits.least) + 2.0**-limits.one
    for k in range(1, 2 * tables.EXPM1_LIMIT):
        for sign in (1, -1):
            t = 2.0 ** (sign * k / tables.EXP_STEPS)
            base, step = abs(t - 1), t * _GROWTH
            own = e.constant() if k <= tables.EXPM1_LIMIT else e.constant() * t / base + e.add()
            total = base * own + step * (e.constant() + e.mul() + small) + t * reduced
            worst = max(worst, total / (base - step) + e.add())
    return worst + left


def log(e: Steps, base: int = 0) -> float:
    """Return the error of 2 atanh((m - f) / (m + f)) plus two tabulated logarithms."""
    s = 1 / 512 / math.sqrt(2)
    quotient = 2 * e.collect() + e.div()
    square = 2 * quotient + e.mul()
    p = e.polynomial(s * s * 1.001, 18.9, logarithm._coefficient, 19.9, square)
    tail = square + p + e.mul()
    share = s * s / 3 * 1.001
    near = quotient + share * (tail + e.constant() + 2 * e.mul() + quotient) + e.add()
    if base:
        near += e.mul() + e.constant()
    # f = 1: the rest is zeros. Then f next to 1, then x beyond sqrt(1/2) and sqrt(2).
    worst = near + 2 * e.add()
    for j in range(tables.LOG_FIRST, tables.LOG_LAST):
        f = j / tables.LOG_STEPS
        if f != 1:
            node, part = abs(math.log(f)), 2 * math.atanh(1 / 512 / (2 * f - 1 / 512))
            total = node * e.constant() + part * near
            worst = max(worst, total / (node - part) + 2 * e.add())
    half = math.log(2) / 2
    total = (2 * half + half) * e.constant() + 0.003 * near + (half + 0.003) * e.add()
    return max(worst, total / (half - 0.003) + e.add())


def _log1p(e: Steps, z: float) -> float:
    """Return the error of log(1 + z), z > 0; z / ((1 + z) log(1 + z)) is at most 1."""
    return z + log(e)


def sin_cos(e: Steps) -> tuple[float, float]:
    """Return the errors of sine and cosine for angles up to pi/4, with the reduction."""
    d = 0.5 / tables.ANGLE_STEPS
    # The reduction by the digits of 1/(2 pi) has more steps; the digits are truncated at 2**-15
    # u^n.
    argument = e.collect() + e.mul() + e.constant() + 2.0**-15 * e.constant()
    square = 2 * e.collect() + e.mul()
    bits = angles._BITS
    p = e.polynomial(d * d, bits, angles._sine, bits, square)
    s = e.plus() + e.collect() + d * d / 6 * 1.001 * (e.collect() + square + p + 2 * e.mul())
    q = e.polynomial(d * d, bits, angles._cosine, bits - 1, square)
    c = square + q + e.mul()
    sine, cosine = s + argument, 0.0
    for j in range(tables.SIN_LAST):
        node = j / tables.ANGLE_STEPS
        low, high = max(node - d, 0.0), min(node + d, math.pi / 4 + 0.001)
        a, b = math.sin(node), math.cos(node)
        for big, other, value in (
            (a, b, math.sin(low)), (b, a, math.cos(high)),
        ):  # fmt: skip
            if big is a and j == 0:
                continue
            across, down = other * d, big * d * d / 2
            total = big * e.constant() + across * (s + e.constant()) + down * (c + e.constant())
            if e.terms == angles._SPARING:
                sums = Magnitudes(e, big)
                sums.add_product(across)
                sums.add_product(down)
                for k in range(1, e.terms):
                    sums.add(big * e.constant(k), k)
                own = sums.lost / value
            else:
                total += (across + down) * (e.mul() + e.add())
                own = e.plus()
            # The angle's error is multiplied by x cot x in the sine, x tan x in the cosine: at most
            # 1.
            found = total / value + own + argument
            sine, cosine = (max(sine, found), cosine) if big is a else (sine, max(cosine, found))
    return sine, cosine


def atan2(e: Steps, ratio: float = 0.0) -> float:
    """Return the error of atan(t) + atan((y - t x) / (x + t y)), then from pi/2 or pi.

    An error of y / x changes the angle by the factor sin cos / angle, which is at most 1.
    """
    d = 0.5 / tables.ATAN_STEPS * 1.001
    quotient = e.div()
    square = 2 * quotient + e.mul()
    bits = angles._ATAN_BITS
    p = e.polynomial(d * d, bits, angles._arctangent, bits, square)
    cubic = d * d / 3 * (square + p + 2 * e.mul())
    worst = 0.0
    for j in range(tables.ATAN_LAST + 1):
        t = j / tables.ATAN_STEPS
        if j:
            # y - t x, where t x is rounded; x = 1.
            numerator = t * e.mul() + d * (1 + t * t + t * d) * e.add()
            below = e.mul() * t * (t + d) / (1 + t * (t - d)) + e.add()
            off = numerator / (1 + t * max(t - d, 0.0)) + d * (below + quotient)
            small, node = d, math.atan(t)
        else:
            off, small, node = d * quotient, d, 0.0
        off += small * (cubic + e.plus())
        if j:
            total = (node * e.constant() + off) / math.atan(t - d) + e.plus()
        else:
            total = off / d
        worst = max(worst, total)
    # pi/2 minus an angle up to pi/4; then pi minus one up to pi/2, which loses no more.
    turned = worst + 2 * e.constant() + e.add()
    return turned + 2 * e.constant() + e.add() + ratio


def cofactor(e: Steps) -> float:
    """Return the error of sqrt((1 - x) (1 + x))."""
    return e.sqrt() + (2 * e.collect() + e.mul()) / 2


def tan(e: Steps) -> float:
    """Return the error of sin / cos."""
    return sum(sin_cos(e)) + e.div()


def asinh(e: Steps) -> float:
    """Return the error of log(1 + x + x^2 / (1 + sqrt(x^2 + 1))); the quotient is at most x."""
    below = e.add() + e.sqrt() + (e.add() + e.mul()) / 2
    z = e.add() + (e.mul() + below + e.div()) / 2
    return _log1p(e, z)


def acosh(e: Steps) -> float:
    """Return the error of log(1 + t + sqrt(t (2 + t))), t = x - 1."""
    side = e.sqrt() + (2 * e.collect() + e.add() + e.mul()) / 2
    return _log1p(e, max(side, e.collect()) + e.add())


def atanh(e: Steps) -> float:
    """Return the error of log(1 + 2 x / (1 - x)) / 2."""
    return _log1p(e, e.collect() + e.div())


def sinh(e: Steps) -> float:
    """Return the error of (E + E / (E + 1)) / 2; the quotient is at most half of the sum."""
    return expm1(e) + (e.add() + e.div()) / 2 + e.add()


def cosh(e: Steps) -> float:
    """Return the error of (v + 1 / v) / 2; beyond 77 (40 in float32) v / 2 differs by exp(-154)."""
    return exp(e) + e.div() / 2 + e.add() + _beyond(e)


def _beyond(e: Steps) -> float:
    """Return exp(-2 x) at the point from which it is left out."""
    return math.exp(-2 * WORKING[e.fmt].far)


def tanh(e: Steps) -> float:
    """Return the error of E / (E + 2); beyond 77 (40 in float32) 1 differs by 2 exp(-154)."""
    return expm1(e) + e.add() + e.div() + 2 * _beyond(e)


def sigmoid(e: Steps, argument: float = 0.0) -> float:
    """Return the error of 1 / (1 + t) or t / (1 + t), t = exp(-|x|)."""
    return exp(e, argument) + e.add() + e.div()


def pow(e: Steps) -> float:
    """Return the error of exp(y log x); the logarithm is two floats and a tail of 2**-18 of it.

    Products of the two floats are exact. For sums below four components see `_reduced`: the
    arguments add nine floats each.
    """
    tail = 4 * e.mul() + 2 * e.add() + 3 * e.collect() + e.div() + 2 * e.constant()
    exact = e.fmt is not FP64 or e.terms == tables.TERMS
    sums = 2 * e.collect() * _REST if exact else e.constant()
    return exp(e, WORKING[e.fmt].exp_limit * 2.0**-18 * (tail + 64 * e.constant()) + sums)


def few_products(e: Steps) -> float:
    """Return the error of x**k or x**-k by squaring: k - 1 times that of a product.

    Squaring doubles the error of x**j. A half power replaces one product by the root.
    """
    return (LARGEST - 1) * e.mul() + e.sqrt() + e.div()


def hypot(e: Steps) -> float:
    """Return the error of sqrt(x^2 + y^2)."""
    return e.sqrt() + (e.add() + e.mul()) / 2
