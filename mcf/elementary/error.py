"""erf, erfc, erfcx, normal distribution functions and derivatives, from series of exp(x^2) erfc(x).

Up to 32 f(x) = exp(x^2) erfc(x) is a Taylor series at the nearest of 192 nodes, beyond the
asymptotic series

    sqrt(pi) x f(x) = 1 - 1/(2 x^2) + 1 3/(2 x^2)^2 - 1 3 5/(2 x^2)^3 + ...

whose error is less than the first omitted term (NIST's Digital Library of Mathematical Functions,
7.12.1, https://dlmf.nist.gov/7.12). f(x) is 2/sqrt(pi) times the integral of exp(-t^2 - 2 x t) over
t > 0, so that (-1)^m times its derivative of order m is positive everywhere. From 0 to 32 the
derivative of the series of f is used, whose coefficients alternate in sign; beyond, that of the
asymptotic series,

    sqrt(pi) x^(m+1) |f^(m)(x)| / m! = 1 - C(m+2, m)/(2 x^2) + C(m+4, m) 1 3/(2 x^2)^2 - ...

and below zero 2 h_m(|x|) exp(x^2) - f^(m)(|x|) with h_0 = 1, h_(m+1) = 2 x h_m + h_m', polynomials
with positive coefficients: a sum for odd m, and for even m a difference that keeps at least half
(DLMF 7.18).
"""

from __future__ import annotations

import functools
import math
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from mcf.elementary import exponential, fixed, logarithm, series
from mcf.elementary import working as ex
from mcf.elementary.declarations import COMPOSED, OBSERVED, Composed
from mcf.elementary.error_steps import Steps
from mcf.elementary.exponential import exp_error
from mcf.elementary.format import WORKING, working
from mcf.elementary.gamma_series import derived
from mcf.elementary.logarithm import log_error
from mcf.elementary.operator import function
from mcf.elementary.power import raised
from mcf.elementary.tables import Components, constant, register_tables, table_of
from mcf.kernels.formats import Format

# Degrees kept, enough for |v|^k <= 1 and coefficients that fall by 6 bits per degree.
ERFCX_DEGREES = 38
# 32 nodes in each of [0, 1), [1, 2), [2, 4), ..., [16, 32).
ERFCX = series.Nodes("erfcx_series", 6, ERFCX_DEGREES, more=1)


@functools.cache
def erfcx_at_nodes(count: int) -> list[list[int]]:
    """Return Taylor coefficients of erfcx in v = (x - node) / half at each node, as `fixed`.

    They are continued from node to node downwards, a direction in which errors shrink.
    """
    at, value = Fraction(32), fixed.erfcx_by_fraction(32)
    found = []
    for node, half in reversed(ERFCX.points()):
        while at > node:
            following = max(node, at - 2 * half)
            near = fixed.erfcx_series(at, value, 160)
            value, at = fixed.evaluate(near, following - at), following
        p, q = half.as_integer_ratio()
        row = fixed.erfcx_series(at, value, count)
        found.append([c * p**k // q**k for k, c in enumerate(row)])
    return found[::-1]


register_tables(erfcx_series=lambda: table_of(erfcx_at_nodes(ERFCX_DEGREES), fixed.BITS))
# Up to this x erf is its own power series.
_NEAR = 0.25


def _erf_series(k: int) -> Fraction:
    """Return the k-th Maclaurin coefficient of erf(x) sqrt(pi) / (2x) as a series in x^2."""
    return Fraction((-1) ** k, math.factorial(k) * (2 * k + 1))


def erfcx_near(z: Components) -> Components:
    """Return exp(z^2) erfc(z) for 0 <= z < 32."""
    return ERFCX.at(z, len(z))


@functools.cache
def half_root() -> Fraction:
    """Return sqrt(1/2)."""
    return fixed.to_fraction(fixed.root(fixed.ONE // 2))


def gauss(x: Components, count: int, halves: int, sign: float = -1.0) -> tuple[Components, Tensor]:
    """Return components and an exponent of exp(sign x^2 / 2**halves), |x| <= 40 (15 in float32).

    x[0]^2 is two floats, exactly; the rest of x^2 is 2 u of it.
    """
    n = max(count, len(x))
    factor = sign * 2.0**-halves
    square = tuple(c * factor for c in ex.two_prod(x[0], x[0]))
    if len(x) > 1:
        rest = ex.head(x[1:], min(count, n))
        twice = ex.collected((x[0] * 2.0, *x[1:]), count)
        square = (*square, *(c * factor for c in ex.mul(twice, ex.head(rest, count))))
    return exponential.scaled_exp(square, count)


def _complement(a: Components, count: int) -> tuple[Components, Tensor]:
    """Return components and an exponent of erfc(a), 0 <= a <= 30 (10.5 in float32)."""
    g, e = gauss(a, count, 0)
    return ex.mul(g, erfcx_near(ex.head(a, count))), e


def tail(a: Components, count: int) -> tuple[Components, Tensor]:
    """Return components and an exponent of erfc(a / sqrt(2)) / 2, 0 <= a <= 40 (15 in float32)."""
    side = constant(half_root(), count, a[0].device)
    g, e = gauss(a, count, 1)
    return series.scaled(ex.mul(g, erfcx_near(ex.mul(ex.head(a, count), side))), 0.5), e


# From FAR on the asymptotic series is used; BITS is -log2 of the square of its inverse.
FAR = 32.0
BITS = 10.0


def asymptotic(k: int) -> Fraction:
    """Return the coefficient of 1 / x^(2 k)."""
    return Fraction((-1) ** k * math.prod(range(1, 2 * k, 2)), 2**k)


# The highest order; beyond it f^(m+1) = 2 x f^(m) + 2 m f^(m-1) must be used.
LAST = 4
# Bits by which binomial coefficients, up to C(44, 4), slow the fall of a series.
SPARE = 18.0
DEGREES = 44


def _slope_table(m: int) -> Tensor:
    """Return coefficients of (-1)^m f^(m), at the nodes of `erfcx_series`."""
    rows = zip(erfcx_at_nodes(DEGREES + LAST), ERFCX.points(), strict=True)
    return table_of((derived(row, m, half, DEGREES) for row, (_, half) in rows), fixed.BITS)


def _slope_nodes(m: int) -> series.Nodes:
    return ERFCX._replace(name=f"erfcx_{m}_series", degrees=DEGREES, spare=SPARE)


def growing(m: int) -> list[int]:
    """Return every second coefficient of h_m, from that of x^0 or x^1 on."""
    h = [1]
    for _ in range(m):
        slope = [k * c for k, c in enumerate(h)][1:]
        h = [a + b for a, b in zip([0, *(2 * c for c in h)], [*slope, 0, 0], strict=True)]
    return h[m % 2 :: 2]


def slope_asymptotic(m: int, k: int) -> Fraction:
    """Return the coefficient of x^(-2 k) in the asymptotic series."""
    return asymptotic(k) * math.comb(2 * k + m, m)


def _far(m: int, z: Components, terms: int) -> tuple[Components, Tensor]:
    """Return components and an exponent of |f^(m)(z)| for z >= 32."""
    normal, e = ex.mantissa(z)
    inverse = ex.div(ex.head((torch.ones_like(z[0]),), terms), normal)
    small = ex.scale_all(inverse, -e.clamp(max=400))
    # Beyond this the series is 1.
    square = ex.sanitized(ex.mul(small, small), z[0] < working().huge, 0.0)
    tail = series.polynomial(square, BITS, functools.partial(slope_asymptotic, m))
    factor = fixed.to_fraction(fixed.two_over_root_pi()) / 2 * math.factorial(m)
    value = ex.mul(ex.mul(tail, raised(inverse, m + 1)), constant(factor, terms, z[0].device))
    return value, -(m + 1) * e


def _from_zero(z: Components, terms: int) -> tuple[Components, Tensor]:
    """Return components and an exponent of exp(z^2) erfc(z) for any z >= 0."""
    far, z = z[0] >= FAR, ex.head(z, terms)
    near = erfcx_near(ex.sanitized(z, ~far))
    value, e = _far(0, ex.sanitized(z, far, FAR), terms)
    return ex.select(far, value, near), torch.where(far, e, 0)


def _grown(m: int, a: Components) -> Components:
    """Return h_m(a), all terms of which are positive."""
    total = series.whole_polynomial(growing(m), ex.mul(a, a))
    return ex.mul(total, a) if m % 2 else total


def _slope(x: Components, fmt: Format, terms: int, m: int) -> Components:
    y, w = ex.enter(x, fmt), ex.working_terms(fmt, terms)
    good = y[0].isfinite() & (y[0] >= -working().erf_far)
    down = good & (y[0] < 0)
    whole = ex.signed(ex.sanitized(y, good), ex.sign_of(down))
    a = ex.head(whole, w)
    far = a[0] >= FAR
    beyond, e = _far(m, ex.sanitized(a, far, FAR), w)
    near = _slope_nodes(m).at(ex.sanitized(a, ~far), w)
    value, k = ex.select(far, beyond, near), torch.where(far, e, 0)
    growth, j = gauss(ex.sanitized(whole, down), w, 0, 1.0)
    growth = series.scaled(ex.mul(growth, _grown(m, ex.sanitized(a, down))), 2.0)
    beside = ex.scale_all(ex.sanitized(value, ~far), -j)
    below = ex.add(growth, beside if m % 2 else ex.minus(beside))
    most = -working().bottom
    value, k = ex.select(down, below, value), torch.where(down, j, k).clamp(-most, most)
    out = ex.leave(ex.signed(value, torch.full_like(a[0], (-1.0) ** m)), fmt, terms, k)
    end = torch.where(y[0] > 0, 0.0, math.inf) * (-1.0) ** m
    return ex.special(~good, torch.where(y[0].isnan(), y[0], end).to(fmt.dtype), out)


def gauss_error(e: Steps, halves: int) -> float:
    """Return the error of exp(-x^2) or exp(-x^2 / 2); only u of the square is inexact."""
    limits = WORKING[e.fmt]
    largest = limits.erf_far**2 if halves == 0 else limits.gauss_far**2 / 2
    # More floats are added to the argument than elsewhere, at most nine.
    added = 2.0**-2 * e.constant()
    return exp_error(e, largest * 2 * e.u * (e.collect() + e.mul()) + added)


def erf_error(e: Steps) -> float:
    """Return the error of erf: its series up to 1/4, then 1 - erfc."""
    z = e.mul()
    p = e.polynomial(1 / 16, 4.0, _erf_series, 0.0, z)
    series_error = p + 2 * e.mul() + e.constant()
    share = math.erfc(0.25) / math.erf(0.25)
    return max(series_error, share * (gauss_error(e, 0) + e.at_table(ERFCX) + e.mul()) + e.add())


def tail_error(e: Steps) -> float:
    """Return the error of erfc(x / sqrt(2)) / 2; z erfcx'(z) / erfcx(z) is at most 1."""
    return gauss_error(e, 1) + e.at_table(ERFCX) + 2 * e.mul() + e.constant()


def normal_cdf_error(e: Steps) -> float:
    """Return the error of the tail, or of 1 minus it."""
    return tail_error(e) + e.add()


def _far_error(e: Steps, m: int) -> float:
    """Return the error of the asymptotic series of a derivative of erfcx."""
    coefficient = functools.partial(slope_asymptotic, m)
    tail = e.polynomial(2.0**-BITS, BITS, coefficient, 0.0, 2 * e.div() + e.mul())
    return tail + (m + 1) * e.div() + (m + 2) * e.mul() + e.constant()


def _from_zero_error(e: Steps) -> float:
    """Return the error of erfcx of a positive number."""
    return max(e.at_table(ERFCX), _far_error(e, 0))


def erfcx_error(e: Steps) -> tuple[float, float]:
    """Return the error of erfcx: table, asymptotic series from 32 on, reflection below 0."""
    up = _from_zero_error(e)
    # At 0 it is 2 minus 1; from there on both ratios fall.
    return max(up, 2 * gauss_error(e, 0) + up + e.add()), 0.0


def erfcx_slope_error(e: Steps, m: int) -> tuple[float, float]:
    """Return the error of a derivative of erfcx; below 0 a polynomial is a factor."""
    up = max(e.at_table(_slope_nodes(m)), _far_error(e, m))
    grown = gauss_error(e, 0) + (m // 2) * (2 * e.mul() + e.add()) + 3 * e.mul()
    # At least half of the difference remains.
    down = grown + e.add() if m % 2 else 2 * grown + up + e.add()
    return max(up, down), 0.0


def log_ndtr_error(e: Steps) -> tuple[float, float]:
    """Return the error of log(1 - c), c <= 1/2, and of two terms below.

    c / ((1 - c) |log(1 - c)|) is at most 1 / log(2), and log(erfcx / 2) at most -log(2). Truncating
    the argument to the working components loses twice the truncated part in the square.
    """
    up = log_error(e) + tail_error(e) / math.log(2) + 2.0 ** -WORKING[e.fmt].thin
    half = log_error(e) + (_from_zero_error(e) + e.mul() + 2 * e.constant()) / math.log(2)
    return max(up, max(half, e.mul() + 2 * e.constant()) + e.add()), 0.0


def _sides(x: Any) -> tuple[Any, Any, Any]:
    """Return x > 0, max(x, 0) and sqrt(1/2) max(-x, 0)."""
    up, zero = x > 0, torch.zeros_like(x)
    below: Any = torch.where(up, zero, -x)
    return up, torch.where(up, x, zero), below * half_root()


# Beyond -_FAR the term 2 / x^4 is below the last bit of four float64 components.
_FAR = 2.0**54


def _density_ratio(x: Any, of: Any) -> Any:
    """Return the normal density divided by the distribution function.

    For x <= 0 it is sqrt(2 / pi) / erfcx(-x / sqrt(2)), free of exponentials. For x > 0 that would
    amplify the error of x / sqrt(2) by x^2, so the quotient is used.
    """
    up, a, z = _sides(x)
    factor = fixed.to_fraction(fixed.root(fixed.quotient(2 * fixed.ONE, fixed.pi())))
    ratio = torch.where(up, of.normal_pdf(a) / of.normal_cdf(a), factor / of.erfcx(z))
    # For large -x erfcx approaches underflow; the ratio is -x - 1 / x + 2 / x^3.
    far = x < -_FAR
    return torch.where(far, -x - 1 / torch.where(far, x, 1), ratio)


def _density_ratio_slope(x: Any, of: Any) -> Any:
    """Return -r (x + r); for x <= 0, x + r = -erfcx'(z) / (sqrt(2) erfcx(z)) does not cancel."""
    up, a, z = _sides(x)
    share = half_root() * (of.erfcx_1(z) / of.erfcx(z))
    return of.log_ndtr_1(x) * torch.where(up, -(a + of.log_ndtr_1(a)), share)


COMPOSED["log_ndtr_1"] = Composed(_density_ratio, _density_ratio_slope)


@function(
    "x",
    torch=("erf",),
    bound=erf_error,
    worst=2.87,
    derivative=lambda x, of: of.erf_1(x),
    slope=("erf_1",),
)
def erf(x: Components, fmt: Format, terms: int) -> Components:
    """Return the error function, 2/sqrt(pi) times the integral of exp(-t^2) from 0 to x."""
    y, w = ex.enter(x, fmt), ex.working_terms(fmt, terms)
    a, sign = ex.magnitude(y)
    good = (a[0] <= working().erf_far) & (a[0] > 0)
    a = ex.sanitized(a, good)
    near = a[0] < _NEAR
    v, lift = ex.lifted(ex.head(a, w))
    v = ex.sanitized(v, near)
    z = ex.sanitized(ex.mul(v, v), lift == 0, 0.0)
    z = ex.sanitized(z, near, 0.0)
    factor = constant(fixed.to_fraction(fixed.two_over_root_pi()), w, v[0].device)
    tail = series.polynomial(z, 4.0, _erf_series)
    inner = ex.mul(ex.mul(v, tail), factor)
    c, e = _complement(ex.sanitized(a, ~near), w)
    outer = ex.add(ex.minus(ex.scale_all(c, e)), torch.ones_like(a[0]))
    result = ex.select(near, inner, outer)
    out = ex.signed(ex.leave(result, fmt, terms, -lift), sign.to(fmt.dtype))
    beyond = torch.where((x[0] == 0) | x[0].isnan(), x[0], x[0].sign())
    return ex.special(~good, beyond, out)


@function(
    "x",
    torch=("erfc",),
    bound=lambda e: gauss_error(e, 0) + e.at_table(ERFCX) + e.mul() + e.add(),
    worst=2.21,
    derivative=lambda x, of: -of.erf_1(x),
    slope=("erf_1",),
)
def erfc(x: Components, fmt: Format, terms: int) -> Components:
    """Return 1 - erf(x), accurate in the upper tail too."""
    y, w = ex.enter(x, fmt), ex.working_terms(fmt, terms)
    a, sign = ex.magnitude(y)
    good = a[0] <= working().erf_far
    c, e = _complement(ex.sanitized(a, good), w)
    left = sign < 0
    from_two = ex.add(ex.minus(ex.scale_all(c, e)), torch.full_like(a[0], 2.0))
    out = ex.leave(ex.select(left, from_two, c), fmt, terms, torch.where(left, 0, e))
    beyond = torch.where(x[0].isnan(), x[0], torch.where(x[0] > 0, 0.0, 2.0).to(fmt.dtype))
    return ex.special(~good, beyond, out)


@function(
    "x",
    torch=("ndtr",),
    bound=normal_cdf_error,
    worst=2.13,
    derivative=lambda x, of: of.normal_pdf(x),
    slope=("normal_pdf",),
)
def normal_cdf(x: Components, fmt: Format, terms: int) -> Components:
    """Return the normal distribution function, erfc(-x / sqrt(2)) / 2, accurate in both tails."""
    y, w = ex.enter(x, fmt), ex.working_terms(fmt, terms)
    down = torch.signbit(y[0])
    good = y[0].abs() <= working().gauss_far
    a = ex.signed(ex.sanitized(y, good), ex.sign_of(down))
    c, e = tail(a, w)
    above = ex.add(ex.minus(ex.scale_all(c, e)), torch.ones_like(a[0]))
    out = ex.leave(ex.select(down, c, above), fmt, terms, torch.where(down, e, 0))
    beyond = torch.where(x[0].isnan(), x[0], (x[0] > 0).to(fmt.dtype))
    return ex.special(~good, beyond, out)


def _density(
    x: Components, fmt: Format, terms: int, halves: int, limit: float, factor: int
) -> Components:
    """Return exp(-x^2 / 2**halves) times a constant, as `fixed`; 0 beyond the limit."""
    y, w = ex.enter(x, fmt), ex.working_terms(fmt, terms)
    good = y[0].abs() <= limit
    g, e = gauss(ex.sanitized(y, good), w, halves)
    value = ex.mul(g, constant(fixed.to_fraction(factor), w, y[0].device))
    out = ex.leave(value, fmt, terms, e)
    return ex.special(~good, torch.where(x[0].isnan(), x[0], torch.zeros_like(x[0])), out)


@function(
    "x",
    bound=lambda e: gauss_error(e, 1) + e.mul() + e.constant(),
    worst=1.21,
    derivative=lambda x, of: -x * of.normal_pdf(x),
    slope=("normal_pdf", "mul"),
)
def normal_pdf(x: Components, fmt: Format, terms: int) -> Components:
    """Return the normal density, exp(-x^2 / 2) / sqrt(2 pi)."""
    factor = fixed.quotient(fixed.ONE, fixed.root(2 * fixed.pi()))
    return _density(x, fmt, terms, 1, working().gauss_far, factor)


@function(
    "x",
    torch=("erfcx",),
    bound=erfcx_error,
    derivative=lambda x, of: of.erfcx_1(x),
    slope=("erfcx_1",),
)
def erfcx(x: Components, fmt: Format, terms: int) -> Components:
    """Return exp(x^2) erfc(x), 1/(sqrt(pi) x) for large x; infinite beyond the range.

    The error is relative to the result everywhere. Below 0 it is 2 exp(x^2) - erfcx(-x).
    """
    y, w = ex.enter(x, fmt), ex.working_terms(fmt, terms)
    down = y[0] < 0
    good = y[0].isfinite() & (y[0] >= -working().erf_far) & (y[0] != 0)
    a = ex.signed(ex.sanitized(y, good), ex.sign_of(down & good))
    value, k = _from_zero(a, w)
    growth, e = gauss(ex.sanitized(a, down & good), w, 0, 1.0)
    below = ex.add(series.scaled(growth, 2.0), ex.minus(ex.scale_all(value, -e)))
    out = ex.leave(ex.select(down, below, value), fmt, terms, torch.where(down, e, k))
    beyond = torch.where(y[0] == 0, 1.0, torch.where(down, math.inf, 0.0))
    return ex.special(~good, torch.where(y[0].isnan(), y[0], beyond).to(fmt.dtype), out)


@function(
    "x",
    torch=("log_ndtr",),
    bound=log_ndtr_error,
    derivative=lambda x, of: of.log_ndtr_1(x),
    slope=OBSERVED,
)
def log_ndtr(x: Components, fmt: Format, terms: int) -> Components:
    """Return the logarithm of the normal distribution function, log(erfc(-x / sqrt(2)) / 2).

    The error is relative to the result everywhere. From 0 on it is log(1 - c), c = erfc(x /
    sqrt(2)) / 2. Below, it is -x^2 / 2 + log(erfcx(-x / sqrt(2)) / 2), whose terms are both
    negative.
    """
    y, w = ex.enter(x, fmt), ex.working_terms(fmt, terms)
    down = y[0] < 0
    end = working().gauss_far
    good = y[0].isfinite() & (y[0] <= end)
    y = ex.sanitized(y, good)
    a = ex.signed(y, ex.sign_of(down & good))
    side = constant(half_root(), w, a[0].device)
    value, k = _from_zero(ex.mul(ex.head(a, w), side), w)
    value = series.scaled(value, 0.5)
    scale_of, e = gauss(ex.sanitized(a, ~down), w, 1)
    tail = ex.mul(scale_of, value)
    thin = ~down & (e < -working().thin)
    one, zero = torch.ones_like(a[0]), torch.zeros_like(a[0])
    beside = ex.sanitized(ex.scale_all(ex.minus(tail), e), ~thin, 0.0)
    floats = ex.select(down, (*value, zero), (one, *beside))
    lead = torch.where(down, value[0], ex.collected((one, *beside), 1)[0])
    log, j = logarithm.scaled_log(floats, lead, w, 0, torch.where(down, k, 0))
    # A small square is negligible next to log(2); next to a large one the rest is.
    normal, m = ex.mantissa(ex.sanitized(ex.head(a, w), a[0] != 0))
    square, m = ex.minus(ex.mul(normal, normal)), 2 * m - 1
    large, most = down & (a[0] >= working().huge), working().addend
    both = ex.add(ex.scale_all(square, m.clamp(-most, most)), log)
    result = ex.select(down, ex.select(large, square, both), ex.select(thin, ex.minus(tail), log))
    exponents = torch.where(down, torch.where(large, m, 0), torch.where(thin, e, j))
    out = ex.leave(result, fmt, terms, exponents)
    beyond = torch.where(x[0].isnan(), x[0], torch.where(down, -math.inf, -0.0).to(fmt.dtype))
    return ex.special(~good, beyond, out)


@function(
    "x",
    auxiliary=True,
    bound=lambda e: (gauss_error(e, 0) + e.mul() + e.constant(), 0.0),
    derivative=lambda x, of: -2 * x * of.erf_1(x),
)
def erf_1(x: Components, fmt: Format, terms: int) -> Components:
    """Return the derivative of erf, 2/sqrt(pi) exp(-x^2).

    The error is relative to the result everywhere, so all bits of x^2 are used.
    """
    return _density(x, fmt, terms, 0, working().erf_far, fixed.two_over_root_pi())


def _declare_slope(m: int) -> None:
    """Declare the derivative of an order from 1 to `LAST` of erfcx."""

    def derivative(x: Any, of: Any) -> Any:
        if m < LAST:
            return getattr(of, f"erfcx_{m + 1}")(x)
        # f' = 2 x f + 2 m f_(m-1)
        return 2 * x * getattr(of, f"erfcx_{m}")(x) + 2 * m * getattr(of, f"erfcx_{m - 1}")(x)

    register_tables(**{f"erfcx_{m}_series": lambda: _slope_table(m)})
    doc = f"""The derivative of order {m} of exp(x^2) erfc(x).

    Relative to the result everywhere.
    """
    bound = functools.partial(erfcx_slope_error, m=m)
    function("x", called=f"erfcx_{m}", doc=doc, auxiliary=True, bound=bound, derivative=derivative)(
        lambda x, fmt, terms: _slope(x, fmt, terms, m)
    )


for _m in range(1, LAST + 1):
    _declare_slope(_m)
