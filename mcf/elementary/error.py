"""erf, erfc and gelu, by Taylor series of exp(x^2) erfc(x) around 192 nodes."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor

from mcf.elementary import arithmetic as ex
from mcf.elementary import exponential, fixed, series
from mcf.elementary.format import working
from mcf.elementary.hyperbolic import logistic
from mcf.elementary.operator import function
from mcf.elementary.ordered_sums import beside
from mcf.elementary.series import FALL
from mcf.elementary.tables import (
    ERFCX_DEGREES,
    ERFCX_OCTAVES,
    ERFCX_STEPS,
    Components,
    constant,
    lookup,
)
from mcf.elementary.working import (
    INTEGERS,
    collected,
    enter,
    exponent,
    head,
    leave,
    minus,
    power,
    sanitized,
    scale_all,
    select,
    sign_of,
    signed,
    special,
    two_prod,
    two_sum,
    working_terms,
)
from mcf.kernels.formats import FP32, FP64, Format

Arguments = tuple[Components, ...]

# Up to this x erf is its own power series.
_NEAR = 0.25


def _erf_series(k: int) -> Fraction:
    """Return the k-th Maclaurin coefficient of erf(x) sqrt(pi) / (2x) as a series in x^2."""
    return Fraction((-1) ** k, math.factorial(k) * (2 * k + 1))


def _erfcx(z: Components) -> Components:
    """Return exp(z^2) erfc(z) for 0 <= z < 32."""
    return at_node("erfcx_series", z, ERFCX_DEGREES)


def at_node(name: str, z: Components, degrees: int, spare: float = 0.0) -> Components:
    """Evaluate a table's series at the nearest node for 0 <= z < 32.

    Args:
        name: the name of the table.
        z: the argument.
        degrees: coefficients that a node has.
        spare: bits by which the series falls less than by 6 a degree.
    """
    terms = len(z)
    octave = (exponent(z[0]) + 1).clamp(0, ERFCX_OCTAVES - 1)
    # Intervals are 1/32 below 1, and 2**(octave - 1) / 32 above.
    width = power((octave - 1).clamp(min=0) - 5)
    start = torch.where(octave == 0, 0.0, power((octave - 1).clamp(min=0)))
    j = ((z[0] - start) / width).floor().clamp(0, ERFCX_STEPS - 1)
    v = beside(z, start + width * (j + 0.5), terms)
    v = tuple(c * (2.0 / width) for c in v)
    row = (octave * ERFCX_STEPS + j.to(torch.int64)) * degrees
    return series.at_node(
        v,
        degree_needed(terms, degrees, spare),
        lambda k, count: lookup(name, row + k, count),
        lambda k: components_needed(terms, k, spare),
    )


def degree_needed(terms: int, degrees: int, spare: float = 0.0) -> int:
    """Return the degree of the series at a node that `terms` components need."""
    return min(degrees - 1, int((working().format.p * terms + 8 + spare) / FALL) + 1)


def components_needed(terms: int, k: int, spare: float = 0.0) -> int:
    """Return the components in which the coefficient of degree k is added."""
    p = working().format.p
    return min(terms, max(1, -int(-(p * terms + 8 + spare - k * FALL) // p)))


def _gauss(x: Components, count: int, halves: int, sign: float = -1.0) -> tuple[Components, Tensor]:
    """Return components and an exponent of exp(sign x^2 / 2**halves), |x| <= 40 (15 in float32).

    x[0]^2 is two floats, exactly; the rest of x^2 is 2 u of it.
    """
    n = max(count, len(x))
    factor = sign * 2.0**-halves
    square = tuple(c * factor for c in two_prod(x[0], x[0]))
    if len(x) > 1:
        rest = head(x[1:], min(count, n))
        twice = collected((x[0] * 2.0, *x[1:]), count)
        square = (*square, *(c * factor for c in ex.mul(twice, head(rest, count))))
    return exponential.exp(square, count)


def _complement(a: Components, count: int) -> tuple[Components, Tensor]:
    """Return components and an exponent of erfc(a), 0 <= a <= 30 (10.5 in float32)."""
    g, e = _gauss(a, count, 0)
    return ex.mul(g, _erfcx(head(a, count))), e


def _tail(a: Components, count: int) -> tuple[Components, Tensor]:
    """Return components and an exponent of erfc(a / sqrt(2)) / 2, 0 <= a <= 40 (15 in float32)."""
    half_root = constant(fixed.to_fraction(fixed.root(fixed.ONE // 2)), count, a[0].device)
    g, e = _gauss(a, count, 1)
    return series.scaled(ex.mul(g, _erfcx(ex.mul(head(a, count), half_root))), 0.5), e


@function("x")
def erf(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return the error function, 2/sqrt(pi) times the integral of exp(-t^2) from 0 to x.

    2/sqrt(pi) times the integral of exp(-t^2) from 0 to x.
    """
    (x,) = arguments
    y, w = enter(x, fmt), working_terms(fmt, terms)
    sign = sign_of(torch.signbit(y[0]))
    a = signed(y, sign)
    good = (a[0] <= working().erf_far) & (a[0] > 0)
    a = sanitized(a, good)
    near = a[0] < _NEAR
    # Scale first, since the product would lose the last components of a tiny number.
    lift = torch.where(a[0] < 2.0 ** -working().faint, working().faint, 0)
    v = sanitized(scale_all(head(a, w), lift), near)
    z = sanitized(ex.mul(v, v), lift == 0, 0.0)
    z = sanitized(z, near, 0.0)
    factor = constant(fixed.to_fraction(fixed.two_over_root_pi()), w, v[0].device)
    tail = series.polynomial(z, 4.0, _erf_series)
    inner = ex.mul(ex.mul(v, tail), factor)
    c, e = _complement(sanitized(a, ~near), w)
    outer = ex.add(minus(scale_all(c, e)), torch.ones_like(a[0]))
    result = select(near, inner, outer)
    out = signed(leave(result, fmt, terms, -lift), sign.to(fmt.dtype))
    beyond = torch.where((x[0] == 0) | x[0].isnan(), x[0], x[0].sign())
    return special(~good, beyond, out)


@function("x")
def erfc(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return 1 - erf(x), accurate in the upper tail too."""
    (x,) = arguments
    y, w = enter(x, fmt), working_terms(fmt, terms)
    sign = sign_of(torch.signbit(y[0]))
    a = signed(y, sign)
    good = a[0] <= working().erf_far
    c, e = _complement(sanitized(a, good), w)
    left = sign < 0
    from_two = ex.add(minus(scale_all(c, e)), torch.full_like(a[0], 2.0))
    out = leave(select(left, from_two, c), fmt, terms, torch.where(left, 0, e))
    beyond = torch.where(x[0].isnan(), x[0], torch.where(x[0] > 0, 0.0, 2.0).to(fmt.dtype))
    return special(~good, beyond, out)


def _lifted(a: Components) -> tuple[Components, Tensor]:
    lift = torch.where(a[0].abs() < 2.0 ** -working().faint, working().faint, 0)
    return scale_all(a, lift), lift


@function("x")
def gelu(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return x times the normal distribution function, accurate in the lower tail too.

    x (1 + erf(x / sqrt(2))) / 2 = x - x c for x > 0 and x c below, c = erfc(|x|/sqrt(2)) / 2.
    """
    (x,) = arguments
    y, w = enter(x, fmt), working_terms(fmt, terms)
    down = torch.signbit(y[0])
    good = y[0].abs() <= working().gauss_far
    y = sanitized(y, good)
    a = signed(y, sign_of(down))
    c, e = _tail(a, w)
    v, lift = _lifted(head(y, w))
    below = ex.mul(v, c)
    above = ex.mul(v, ex.add(minus(scale_all(c, e)), torch.ones_like(a[0])))
    out = leave(select(down, below, above), fmt, terms, torch.where(down, e, 0) - lift)
    return _gelu_beyond(x, good, out)


@function("x")
def normal_cdf(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return the normal distribution function, erfc(-x / sqrt(2)) / 2, accurate in both tails."""
    (x,) = arguments
    y, w = enter(x, fmt), working_terms(fmt, terms)
    down = torch.signbit(y[0])
    good = y[0].abs() <= working().gauss_far
    a = signed(sanitized(y, good), sign_of(down))
    c, e = _tail(a, w)
    above = ex.add(minus(scale_all(c, e)), torch.ones_like(a[0]))
    out = leave(select(down, c, above), fmt, terms, torch.where(down, e, 0))
    beyond = torch.where(x[0].isnan(), x[0], (x[0] > 0).to(fmt.dtype))
    return special(~good, beyond, out)


@function("x")
def normal_pdf(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return the normal density, exp(-x^2 / 2) / sqrt(2 pi)."""
    (x,) = arguments
    y, w = enter(x, fmt), working_terms(fmt, terms)
    good = y[0].abs() <= working().gauss_far
    g, e = _gauss(sanitized(y, good), w, 1)
    factor = fixed.to_fraction(fixed.quotient(fixed.ONE, fixed.root(2 * fixed.pi())))
    out = leave(ex.mul(g, constant(factor, w, y[0].device)), fmt, terms, e)
    return special(~good, torch.where(x[0].isnan(), x[0], torch.zeros_like(x[0])), out)


def _gelu_beyond(x: Components, good: Tensor, out: Components) -> Components:
    """Replace results for zeros, infinities and NaN: the argument itself, or -0 for x < 0."""
    out = special(x[0] == 0, x[0], out)
    out = select(good | (x[0] < 0), out, head(x, len(out)))
    return special(~good & (x[0] < 0), -torch.zeros_like(x[0]), out)


# The coefficient of the cube, which the definition writes in decimal.
_CUBE = Fraction(44715, 1000000)
# Bits kept of the leading component, so that its cube is exact.
_LEADING = {FP64: 17, FP32: 8}


def _tanh_argument(x: Components, count: int) -> Components:
    """Return floats whose sum is 2 sqrt(2/pi) (x + 0.044715 x^3), the leading component first.

    Let h be the leading 17 bits of x. The largest terms are products of three exact numbers with
    the leading components of their constants. The rest is 2**-15 of the sum, so errors in its last
    bits do not affect the exponential, however large the sum is. In float32 h has 8 bits, and the
    rest is 2**-5 of a smaller sum. There are at most 8 floats, 5 in float32.
    """
    width = working().format
    bits = INTEGERS[width]
    assert width.dtype is not None
    h = (x[0].view(bits) & -(1 << (width.p - _LEADING[width]))).view(width.dtype)
    rest = collected((x[0] - h, *x[1:count]), count)
    root = 2 * fixed.to_fraction(fixed.root(fixed.quotient(2 * fixed.ONE, fixed.pi())))
    linear, cubic = (constant(c, count + 1, h.device) for c in (root, root * _CUBE))
    # (h + rest)^3 - h^3 = rest (3 h^2 + rest (3 h + rest)).
    slope = ex.mul(rest, ex.add(rest, 3.0 * h))
    slope = ex.mul(ex.add(slope, 3.0 * (h * h)), cubic[:count])
    small = ex.mul(rest, ex.add(slope, linear[:count]))
    cube = h * h * h
    for c, power_of_h in ((linear, h), (cubic, cube)):
        small = ex.add(small, ex.mul(c[1:], power_of_h))
    (a, a_low), (b, b_low) = two_prod(linear[0], h), two_prod(cubic[0], cube)
    top, low = two_sum(a, b)
    top, next_low = two_sum(top, small[0])
    lower = (next_low, low, a_low, b_low, *small[1:])
    # In float32 the exponential accepts no more floats.
    return (top, *(lower if width is FP64 else collected(lower, 4)))


@function("x")
def gelu_tanh(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), with exact constants.

    It is computed as x times the logistic function of twice the argument of tanh.
    """
    (x,) = arguments
    y, w = enter(x, fmt), working_terms(fmt, terms)
    good = y[0].abs() <= working().tanh_far
    y = sanitized(y, good)
    v, lift = _lifted(head(y, w))
    s, k = logistic(_tanh_argument(head(y, w), w), w)
    out = leave(ex.mul(v, s), fmt, terms, k - lift)
    return _gelu_beyond(x, good, out)
