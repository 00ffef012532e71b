"""Modified Bessel functions: series at nodes up to 256, then Hankel's; and spherical j_0.

i0e(x) = exp(-|x|) I_0(x) and i1e(x) / x have no zero. Their coefficients follow from the
differential equation, x y'' + (2 x + 1) y' + y = 0 for y = i0e, and the power series of I_0 and I_1
at the nodes. From 256 on, sqrt(2 pi x) exp(-x) I_n(x) is Hankel's asymptotic series (NIST's Digital
Library of Mathematical Functions, 10.25 and 10.40, https://dlmf.nist.gov/10.40).

Up to 1, for the second kind with q = x^2/4 and the digamma function,

    K_0(x) = sum (log 2 + digamma(k + 1)) q^k / k!^2 - log(x) I_0(x)
    x K_1(x) = 1 - 2 q (sum (log 2 + (digamma(k + 1) + digamma(k + 2))/2) q^k / (k! (k + 1)!)
                        - log(x) sum q^k / (k! (k + 1)!))

where all terms are positive. Beyond 1, y = exp(x) K_0(x) satisfies x y'' + (1 - 2 x) y' - y = 0,
and exp(x) K_1(x) = y - y' (NIST's Digital Library of Mathematical Functions, 10.31 and 10.40,
https://dlmf.nist.gov/10.31).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from mcf.elementary import (
    angles,
    exponential,
    fixed,
    gamma,
    series,
)
from mcf.elementary import arithmetic as ex
from mcf.elementary.angles import sin_cos_error
from mcf.elementary.declarations import COMPOSED, OBSERVED, OSCILLATING, Composed, Real, composed
from mcf.elementary.error_steps import Steps
from mcf.elementary.exponential import exp_error
from mcf.elementary.format import working
from mcf.elementary.gamma import underflow
from mcf.elementary.gamma_series import Series, quotient
from mcf.elementary.logarithm import log_error
from mcf.elementary.operator import function
from mcf.elementary.tables import Components, _rows, _table, constant
from mcf.elementary.working import (
    enter,
    head,
    leave,
    mantissa,
    minus,
    sanitized,
    scale_all,
    select,
    sign_of,
    signed,
    special,
    working_terms,
)
from mcf.kernels.formats import Format

# From FAR on Hankel's series is used; BITS is -log2 of 1 / FAR.
FAR = 256.0
BITS = 8.0
# 32 nodes in each of [0, 1), [1, 2), [2, 4), ..., [128, 256).
OCTAVES = 9
DEGREES = 40
TABLE_BITS = 448


def nodes() -> list[tuple[Fraction, Fraction]]:
    """Return (node, half-width of its interval), ascending."""
    found = []
    for octave in range(OCTAVES):
        low, length = (2 ** (octave - 1), 2 ** (octave - 1)) if octave else (0, 1)
        half = Fraction(length, 2 * series.STEPS)
        found += [(low + half * (2 * j + 1), half) for j in range(series.STEPS)]
    return found


def _values(c: Fraction) -> tuple[int, int]:
    """Return i0e(c) and i1e(c) by their power series, in units of 2**-_BITS."""
    bits = TABLE_BITS + 2 * int(c) + 16
    p, q = (c * c / 4).as_integer_ratio()
    term, total, first, k = 1 << bits, 0, 0, 0
    while term:
        total += term
        first += term // (k + 1)
        k += 1
        term = term * p // (q * k * k)
    first = first * c.numerator // (2 * c.denominator)
    whole, part = divmod(c, 1)
    decay = fixed.exp(-fixed.to_fixed(part))
    for _ in range(int(whole)):
        decay = decay * _inverse_e() >> fixed.BITS
    cut = bits + fixed.BITS - TABLE_BITS
    return total * decay >> cut, first * decay >> cut


@functools.cache
def _inverse_e() -> int:
    return fixed.exp(-fixed.ONE // 2) ** 2 >> fixed.BITS


@functools.cache
def i_series(count: int = DEGREES) -> list[list[int]]:
    """Return coefficients of i0e at each node in v = (x - node) / half, two more than `count`."""
    found = []
    for c, h in nodes():
        zero, one = _values(c)
        a = [zero, int((one - zero) * h)]
        for k in range(count):
            total = (k + 1) * (k + 2 * c + 1) * h * a[k + 1] + (2 * k + 1) * h * h * a[k]
            a.append(int(-total / (c * (k + 2) * (k + 1))))
        found.append(a)
    return found


@_table
def i0e_series() -> Tensor:
    """Return Taylor coefficients of exp(-x) I_0(x)."""
    return _rows([(c, 1 << TABLE_BITS) for row in i_series() for c in row[:DEGREES]])


@_table
def i1e_series() -> Tensor:
    """Return Taylor coefficients of exp(-x) I_1(x) / x."""
    rows = []
    for a, (c, h) in zip(i_series(), nodes(), strict=True):
        slope = [int((k + 1) * a[k + 1] / h) for k in range(DEGREES)]
        total = [x + y for x, y in zip(a, slope, strict=False)]
        rows += quotient(total, int(c * (1 << TABLE_BITS)), h, TABLE_BITS)
    return _rows([(c, 1 << TABLE_BITS) for c in rows])


def nodes_of(name: str) -> series.Nodes:
    """Return the table of a function's series up to 256, from 0 for I_n, from 1 for K_n."""
    if name[0] == "i":
        return series.Nodes(name, OCTAVES, DEGREES)
    return series.Nodes(name, K_OCTAVES, DEGREES, 0)


def hankel(order: int, k: int) -> Fraction:
    """Return the coefficient of x^-k in sqrt(2 pi x) exp(-x) I_n(x)."""
    top = math.prod((2 * j - 1) ** 2 - 4 * order**2 for j in range(1, k + 1))
    return Fraction(top, math.factorial(k) * 8**k)


def asymptotic(
    coefficient: Callable[[int], Fraction], square: Fraction, a: Components, terms: int
) -> tuple[Components, Tensor]:
    """Return components and an exponent of a series in 1/a over sqrt(square * a), for a >= 256."""
    large, raised = a[0] > working().vast, working().raised
    near = sanitized(head(a, terms), ~large, FAR)
    one = head((torch.ones_like(a[0]),), terms)
    inverse = sanitized(ex.div(one, near), ~large, 0.0)
    value = series.polynomial(inverse, BITS, coefficient)
    scaled = scale_all(head(a, terms), torch.where(large, -raised, 0))
    factor = constant(square, terms, a[0].device)
    return ex.div(value, ex.sqrt(ex.mul(scaled, factor))), torch.where(large, -raised // 2, 0)


def _modified(x: Components, fmt: Format, terms: int, order: int, *, scaled: bool) -> Components:
    y, w = enter(x, fmt), working_terms(fmt, terms)
    sign = sign_of(torch.signbit(y[0]))
    a = signed(y, sign)
    limit = float(working().format.max) if scaled else working().exp_limit
    good = (a[0] > 0) & (a[0] <= limit)
    a = sanitized(a, good)
    far = a[0] >= FAR
    near = sanitized(a, ~far)
    value = nodes_of(f"i{order}e_series").at(near, w)
    k = torch.zeros_like(sign, dtype=torch.int64)
    if order:
        # Scale first, since the product would lose the last components of a tiny number.
        k = torch.where(near[0] < 2.0 ** -working().faint, working().faint, 0)
        value, k = ex.mul(value, scale_all(head(near, w), k)), -k
    two_pi = 2 * fixed.to_fraction(fixed.pi())
    coefficient = functools.partial(hankel, order)
    beyond, m = asymptotic(coefficient, two_pi, sanitized(a, far, FAR), w)
    value, k = select(far, beyond, value), torch.where(far, m, k)
    if not scaled:
        growth, e = exponential.scaled_exp(a, w)
        value, k = ex.mul(value, growth), k + e
    out = leave(value, fmt, terms, k)
    side = torch.ones_like(sign) if order == 0 else sign
    out = signed(out, side.to(fmt.dtype))
    end = torch.where(y[0].isnan(), y[0], side * (0.0 if scaled else math.inf))
    zero = y[0] if order else torch.ones_like(y[0])
    return special(~good, torch.where(y[0] == 0, zero, end).to(fmt.dtype), out)


# The tables have 32 nodes in each of [1, 2), [2, 4), ..., [128, 256).
K_OCTAVES = 8
# -log2 of q in the range of the power series.
LOW_BITS = 2.0
K_TABLE_BITS = 576
_KEPT = DEGREES


def _start() -> tuple[int, int]:
    """Return exp(x) K_0(x) and exp(x) K_1(x) at 256 by Hankel's series, to about 730 bits."""
    root = fixed.root(fixed.pi() // 512)
    found = []
    for order in (0, 1):
        total = sum(_hankel(order, k) / 256**k for k in range(500))
        found.append(root * total.numerator // total.denominator >> (fixed.BITS - K_TABLE_BITS))
    return found[0], found[1]


def _hankel(order: int, k: int) -> Fraction:
    """Return the coefficient of x^-k in sqrt(2 x / pi) exp(x) K_n(x)."""
    return hankel(order, k) * (-1 if k % 2 else 1)


def _continued(y: int, slope: int, start: int, r: int, count: int) -> list[int]:
    """Return coefficients of exp(x) K_0(x) at start r/64 in v = 64 (x - node) / start."""
    a = [y, slope]
    for k in range(count - 2):
        top = (k + 1) * (2 * start * r - 64 * (k + 1)) * a[k + 1] + (2 * k + 1) * start * a[k]
        a.append(top // (64 * r * (k + 1) * (k + 2)))
    return a


@functools.cache
def k_series() -> list[tuple[list[int], list[int]]]:
    """Return coefficients of exp(x) K_0(x) and (up to `_KEPT`) exp(x) K_1(x) at each node.

    They are continued from node to node downwards, a direction in which errors shrink.
    """
    zero, one = _start()
    found = []
    start, r = 256, 64
    slope = (zero - one) * start // 64
    a = _continued(zero, slope, start, r, 120)
    while (start, r) != (1, 65):
        following = (start, r - 2) if r > 65 else (start // 2, 127)
        # The step in units of this node's v, doubled.
        step = Fraction(following[0] * following[1], start) - r
        p, q = step.as_integer_ratio()
        y = slope = 0
        for k in range(len(a) - 1, 0, -1):
            y, slope = a[k] + y * p // q, k * a[k] + slope * p // q
        y = a[0] + y * p // q
        slope = slope * following[0] // start
        start, r = following
        a = _continued(y, slope, start, r, 120)
        second = [x - (k + 1) * a[k + 1] * 64 // start for k, x in enumerate(a[:_KEPT])]
        found.append((a, second))
    return found[::-1]


@_table
def k0e_series() -> Tensor:
    """Return Taylor coefficients of exp(x) K_0(x)."""
    return _rows([(c, 1 << K_TABLE_BITS) for row, _ in k_series() for c in row[:_KEPT]])


@_table
def k1e_series() -> Tensor:
    """Return Taylor coefficients of exp(x) K_1(x)."""
    return _rows([(c, 1 << K_TABLE_BITS) for _, row in k_series() for c in row])


@functools.cache
def _euler() -> Fraction:
    """Return log 2 minus Euler's constant, i.e. log 2 + digamma(1)."""
    slope = Series(704).log_gamma(Fraction(1), Fraction(1), 3)[1]
    return fixed.to_fraction(fixed.ln2()) + Fraction(slope, 1 << 704)


@functools.cache
def _harmonic(k: int) -> Fraction:
    """Return digamma(k + 1) - digamma(1)."""
    return sum((Fraction(1, j) for j in range(1, k + 1)), Fraction(0))


@functools.cache
def power_first(order: int, k: int) -> Fraction:
    """Return the coefficient of q^k in I_n(x) / (x/2)^n."""
    return Fraction(1, math.factorial(k) * math.factorial(k + order))


@functools.cache
def power_second(order: int, k: int) -> Fraction:
    """Return the coefficient of q^k in the series without the logarithm."""
    return power_first(order, k) * (_euler() + (_harmonic(k) + _harmonic(k + order)) / 2)


def power_series(order: int, q: Components, log_x: Components) -> Components:
    """Return x^n K_n(x) for 0 < x <= 1, from x^2 / 4 and log(x)."""
    growing = series.polynomial(q, LOW_BITS, functools.partial(power_first, order))
    beside = series.polynomial(q, LOW_BITS, functools.partial(power_second, order))
    total = ex.add(minus(ex.mul(log_x, growing)), beside)
    if order == 0:
        return total
    return ex.add(series.scaled(ex.mul(q, total), -2.0), torch.ones_like(q[0]))


def _low(order: int, a: Components, terms: int) -> tuple[Components, Tensor]:
    """Return components and an exponent of K_n(a) for 0 < a <= 1."""
    x = head(a, terms)
    q = series.scaled(ex.mul(x, x), 0.25)
    value = power_series(order, q, gamma.log_of(a, terms))
    if order == 0:
        return value, torch.zeros_like(a[0], dtype=torch.int64)
    m, e = mantissa(x)
    return ex.div(value, m), -e


def _second(x: Components, fmt: Format, terms: int, order: int, *, scaled: bool) -> Components:
    y, w = enter(x, fmt), working_terms(fmt, terms)
    limit = float(working().format.max) if scaled else working().exp_limit
    good = (y[0] > 0) & (y[0] <= limit)
    a = sanitized(y, good)
    low, far = a[0] < 1.0, a[0] >= FAR
    value, k = _low(order, sanitized(a, low), w)
    middle = nodes_of(f"k{order}e_series").at(sanitized(a, ~(low | far)), w)
    two_over_pi = 2 / fixed.to_fraction(fixed.pi())
    coefficient = functools.partial(_hankel, order)
    beyond, m = asymptotic(coefficient, two_over_pi, sanitized(a, far, FAR), w)
    value = select(low, value, select(far, beyond, middle))
    k = torch.where(low, k, torch.where(far, m, 0))
    # The power series give K_n itself, the others exp(x) K_n(x).
    factor = low if scaled else ~low
    power = a if scaled else minus(a)
    growth, e = exponential.scaled_exp(sanitized(power, factor, 0.0), w)
    value = select(factor, ex.mul(value, growth), value)
    out = leave(value, fmt, terms, k + torch.where(factor, e, 0))
    end = torch.where(y[0] == 0, math.inf, torch.where(y[0] > 0, 0.0, math.nan))
    return special(~good, end.to(fmt.dtype), out)


def _asymptotic_error(e: Steps, order: int) -> float:
    """Return the error of Hankel's series over a root."""
    coefficient = functools.partial(hankel, order)
    tail = e.polynomial(1 / FAR, BITS, coefficient, 0.0, e.div())
    return tail + e.sqrt() + (e.mul() + e.constant()) / 2 + e.div()


def first_error(e: Steps, order: int, *, scaled: bool) -> tuple[float, float]:
    """Return the error of I_n: series of exp(-x) I_n(x) / x^n, Hankel's, times exp(x)."""
    near = e.at_table(nodes_of(f"i{order}e_series")) + e.mul() * order
    found = max(near, _asymptotic_error(e, order))
    return found + (0.0 if scaled else exp_error(e) + e.mul()), 0.0


def _positive_error(e: Steps, order: int, second: bool) -> tuple[float, float]:
    """Return absolute error and largest value of a positive power series of K_n."""
    of = power_second if second else power_first

    def coefficient(k: int) -> Fraction:
        return of(order, k)

    limit = 2.0**-LOW_BITS
    rows, cut = e.rows(LOW_BITS, coefficient, 0.0)
    add = series.adding(0.0)
    steps = [max(e.add(m), e.absorb(m)) if add(m) else e.add(m) for _, m in rows]
    error, size = e.horner(rows, limit, e.mul(), steps)
    return error + 2 * cut * limit ** len(rows), size


def second_error(e: Steps, order: int, *, scaled: bool) -> tuple[float, float]:
    """Return the error of K_n: power series and logarithm, nodes, Hankel's; times exp(x)."""
    low = below_one_error(e, order) + e.div() * order
    growth = exp_error(e) + e.mul()
    high = max(e.at_table(nodes_of(f"k{order}e_series")), _asymptotic_error(e, order))
    return max(low + scaled * growth, high + (not scaled) * growth), 0.0


def below_one_error(e: Steps, order: int) -> float:
    """Return the error of x^n K_n(x) up to 1."""
    grown = log_error(e) + _positive_error(e, order, False)[0] + e.mul()
    beside, _ = _positive_error(e, order, True)
    if order == 0:
        # K_0 falls to 0.4210 at 1.
        return grown + beside / 0.421 + e.add()
    # x K_1 is 1 minus x^2/2 times a sum, falls to 0.6019, and -x log(x) I_1 is below 0.4.
    return (0.4 * (grown + 2 * e.mul() + e.add()) + beside / 2) / 0.6 + e.add()


def over_x(name: str, sign: int) -> Composed:
    """Return the function f_1(x) / x of order 1, whose limit at 0 is 1/2, for i1 or j1.

    Its derivative is sign f_2(x) / x: for |x| < 1 the series sign x / 8 (1 + sign q / (1 3) + ...)
    with q = x^2 / 4, elsewhere (f_0 - 2 f_1 / x) / x.
    """

    def value(x: Any, of: Any) -> Any:
        none = x == 0
        found = getattr(of, f"{name}1")(x) / torch.where(none, torch.ones_like(x), x)
        return torch.where(none, torch.full_like(x, 0.5), found)

    def derivative(x: Any, of: Any) -> Any:
        near = x.abs() < 1
        low, far = torch.where(near, x, 0), torch.where(near, 1, x)
        total = series.power_series(
            low * low / 4,
            lambda k: Fraction(sign ** (k + 1), 4 * math.factorial(k) * math.factorial(k + 2)),
            Fraction(1, 4),
        )
        beyond = getattr(of, f"{name}0")(far) - 2 * getattr(of, f"{name}1_over")(far)
        return torch.where(near, low * total, beyond / far)

    return Composed(value, derivative)


COMPOSED["i1_over"] = over_x("i", 1)


def _i1_slope(x: Any, of: Any) -> Any:
    """Return I_0(x) - I_1(x) / x; infinity if both terms are infinite."""
    value = torch.special.i0(x)
    return value - torch.where(value.isinf(), 0, of.i1_over(x))


def _spherical_weight(x: Any, of: Any) -> Any:
    """Return (j_0(x) - cos(x)) / x^2, by a series for |x| < 1."""
    near = x.abs() < 1
    low, far = torch.where(near, x, 0), torch.where(near, 1, x)
    beyond = (of.spherical_bessel_j0(far) - far.cos()) / far / far
    return torch.where(near, series.spherical_weight(low * low), beyond)


def _spherical_slope(x: Any, of: Any) -> Any:
    """Return -j_1(x); for |x| >= 1 as (cos(x) - j_0(x)) / x, since x^2 may overflow."""
    near = x.abs() < 1
    low, far = torch.where(near, x, 0), torch.where(near, 1, x)
    beyond = (far.cos() - of.spherical_bessel_j0(far)) / far
    return torch.where(near, -(low * series.spherical_weight(low * low)), beyond)


# The second derivative follows from the differential equation.
COMPOSED["spherical_bessel_j0_1"] = Composed(
    _spherical_slope, lambda x, of: 2 * _spherical_weight(x, of) - of.spherical_bessel_j0(x)
)


def _k1_slope_error(real: Real) -> float:
    """Return the error of -(K_0 + K_1 / x), terms of one sign."""
    return composed(max(real("k0"), composed(real("k1"), real("div"))), real("add"))


def _k1e_slope_error(real: Real) -> float:
    """Return the error of a difference of numbers of different signs."""
    return composed(max(real("k0e_1"), real("k0e_2")), real("add"))


@function(
    "x",
    torch=("i0",),
    undifferentiated=("modified_bessel_i0",),
    derivative=lambda x, of: torch.special.i1(x),
    slope=("i1",),
    bound=lambda e: first_error(e, 0, scaled=False),
)
def i0(x: Components, fmt: Format, terms: int) -> Components:
    """Return the modified Bessel function I_0(x); infinite beyond the range."""
    return _modified(x, fmt, terms, 0, scaled=False)


@function(
    "x",
    torch=("i0e",),
    derivative=lambda x, of: of.i0e_1(x),
    slope=("i0e_1",),
    bound=lambda e: first_error(e, 0, scaled=True),
)
def i0e(x: Components, fmt: Format, terms: int) -> Components:
    """Return exp(-|x|) I_0(x)."""
    return _modified(x, fmt, terms, 0, scaled=True)


@function(
    "x",
    torch=("i1",),
    undifferentiated=("modified_bessel_i1",),
    derivative=_i1_slope,
    slope=OBSERVED,
    bound=lambda e: first_error(e, 1, scaled=False),
)
def i1(x: Components, fmt: Format, terms: int) -> Components:
    """Return the modified Bessel function I_1(x), odd; relative error also near 0."""
    return _modified(x, fmt, terms, 1, scaled=False)


@function(
    "x",
    torch=("i1e",),
    derivative=lambda x, of: of.i1e_1(x),
    slope=("i1e_1",),
    bound=lambda e: first_error(e, 1, scaled=True),
)
def i1e(x: Components, fmt: Format, terms: int) -> Components:
    """Return exp(-|x|) I_1(x)."""
    return _modified(x, fmt, terms, 1, scaled=True)


@function(
    "x",
    undifferentiated=("spherical_bessel_j0",),
    derivative=lambda x, of: of.spherical_bessel_j0_1(x),
    slope=OSCILLATING,
    bound=lambda e: (max(sin_cos_error(e)) + e.div() + underflow(e), 0.0),
)
def spherical_bessel_j0(x: Components, fmt: Format, terms: int) -> Components:
    """Return the spherical Bessel function j_0(x) = sin(x) / x, 1 at 0 and 0 at infinities.

    The bound is relative to the result everywhere, next to zeros too: the angle is reduced exactly.
    """
    y, w = enter(x, fmt), working_terms(fmt, terms)
    good = (y[0].abs() >= working().tiny) & y[0].isfinite()
    y = sanitized(y, good)
    q, r, *_ = angles.rest_of(y, fmt, terms, w)
    sine = signed(angles.Angle(r).one((q & 1) == 1), sign_of(q >= 2))
    m, e = mantissa(head(y, w))
    out = leave(ex.div(sine, m), fmt, terms, -e)
    end = torch.where(x[0].isnan(), x[0], torch.where(x[0].isinf(), 0.0, 1.0))
    return special(~good, end.to(fmt.dtype), out)


@function(
    "x",
    undifferentiated=("modified_bessel_k0",),
    derivative=lambda x, of: -of.k1(x),
    slope=("k1",),
    bound=lambda e: second_error(e, 0, scaled=False),
)
def k0(x: Components, fmt: Format, terms: int) -> Components:
    """Return the modified Bessel function K_0(x); infinite at zeros, NaN below."""
    return _second(x, fmt, terms, 0, scaled=False)


@function(
    "x",
    undifferentiated=("scaled_modified_bessel_k0",),
    derivative=lambda x, of: of.k0e_1(x),
    slope=("k0e_1",),
    bound=lambda e: second_error(e, 0, scaled=True),
)
def k0e(x: Components, fmt: Format, terms: int) -> Components:
    """Return exp(x) K_0(x)."""
    return _second(x, fmt, terms, 0, scaled=True)


@function(
    "x",
    undifferentiated=("modified_bessel_k1",),
    derivative=lambda x, of: -of.k0(x) - of.k1(x) / x,
    slope=_k1_slope_error,
    bound=lambda e: second_error(e, 1, scaled=False),
)
def k1(x: Components, fmt: Format, terms: int) -> Components:
    """Return the modified Bessel function K_1(x); infinite at zeros, NaN below."""
    return _second(x, fmt, terms, 1, scaled=False)


@function(
    "x",
    undifferentiated=("scaled_modified_bessel_k1",),
    derivative=lambda x, of: of.k0e_1(x) - of.k0e_2(x),
    slope=_k1e_slope_error,
    bound=lambda e: second_error(e, 1, scaled=True),
)
def k1e(x: Components, fmt: Format, terms: int) -> Components:
    """Return exp(x) K_1(x)."""
    return _second(x, fmt, terms, 1, scaled=True)
