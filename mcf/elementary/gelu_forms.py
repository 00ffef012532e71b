"""gelu, its approximation by tanh, and the derivative of gelu without cancellation.

With a = |x| the slope of gelu, x Phi(x), is T for x < 0 and 1 - T from 0 on,

    T = exp(-a^2 / 2) / sqrt(2 pi) (r(a) - a),  r(a) = sqrt(pi/2) erfcx(a / sqrt(2)),

where r(a) - a, which falls and has one zero a0, is a - a0 times a series at the nodes of erfcx.
"""

from __future__ import annotations

import functools
from fractions import Fraction

import torch
import torch.nn.functional as F
from torch import Tensor

from mcf.elementary import error, fixed, series
from mcf.elementary import working as ex
from mcf.elementary.declarations import OBSERVED
from mcf.elementary.error import gauss_error, half_root, normal_cdf_error, tail
from mcf.elementary.error_steps import Steps
from mcf.elementary.format import WORKING, working
from mcf.elementary.gamma_series import quotient, quotient_about
from mcf.elementary.hyperbolic import logistic, sigmoid_error
from mcf.elementary.operator import function
from mcf.elementary.tables import Components, constant, register_tables, table_of, zero_table
from mcf.kernels.formats import FP32, FP64, Format

# Bits and coefficients used to compute the table.
_BITS = 448
_COUNT = error.ERFCX_DEGREES + 10


_NODES = error.ERFCX._replace(name="gelu_1_series")


@functools.cache
def gelu_zero() -> Fraction:
    """Return z = a / sqrt(2) with r(a) = a: sqrt(pi) / 2 erfcx(z) = z, by Newton's method."""
    node, _ = _NODES.points()[17]
    whole = fixed.erfcx_series(node, error.erfcx_at_nodes(_COUNT)[17][0], 180)
    root, z = fixed.to_fraction(fixed.quotient(fixed.ONE, fixed.two_over_root_pi())), node
    for _ in range(12):
        f = fixed.to_fraction(fixed.evaluate(whole, z - node))
        # erfcx' = 2 z erfcx - 2/sqrt(pi).
        step = (root * f - z) / (2 * z * root * f - 2)
        z = Fraction(round((z - step) * 2**640), 2**640)
    return z


def _series() -> Tensor:
    """Return coefficients of (a - r(a)) / (a - a0) in z."""
    rows = []
    root = fixed.quotient(fixed.ONE, fixed.two_over_root_pi()) >> (fixed.BITS - _BITS)
    for found, (node, half) in zip(error.erfcx_at_nodes(_COUNT), _NODES.points(), strict=True):
        row = [-(c * root >> fixed.BITS) for c in found]
        row[0] += (node.numerator << _BITS) // node.denominator
        row[1] += (half.numerator << _BITS) // half.denominator
        at = node - gelu_zero()
        divide = quotient_about if abs(at) < half else quotient
        rows.append(divide(row, round(at * (1 << _BITS)), half, _BITS))
    return table_of(rows, _BITS, error.ERFCX_DEGREES)


def _zero() -> Tensor:
    """Return a0 as floats."""
    return zero_table(fixed.to_fraction(fixed.root(2 * fixed.ONE)) * gelu_zero())


register_tables(gelu_1_series=_series, gelu_1_zero=_zero)


def _gelu_beyond(x: Components, good: Tensor, out: Components) -> Components:
    """Replace results for zeros, infinities and NaN: the argument itself, or -0 for x < 0."""
    out = ex.special(x[0] == 0, x[0], out)
    out = ex.select(good | (x[0] < 0), out, ex.head(x, len(out)))
    return ex.special(~good & (x[0] < 0), -torch.zeros_like(x[0]), out)


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
    bits = ex.INTEGERS[width]
    assert width.dtype is not None
    h = (x[0].view(bits) & -(1 << (width.p - _LEADING[width]))).view(width.dtype)
    rest = ex.collected((x[0] - h, *x[1:count]), count)
    root = 2 * fixed.to_fraction(fixed.root(fixed.quotient(2 * fixed.ONE, fixed.pi())))
    linear, cubic = (constant(c, count + 1, h.device) for c in (root, root * _CUBE))
    # (h + rest)^3 - h^3 = rest (3 h^2 + rest (3 h + rest)).
    slope = ex.mul(rest, ex.add(rest, 3.0 * h))
    slope = ex.mul(ex.add(slope, 3.0 * (h * h)), cubic[:count])
    small = ex.mul(rest, ex.add(slope, linear[:count]))
    cube = h * h * h
    for c, power_of_h in ((linear, h), (cubic, cube)):
        small = ex.add(small, ex.mul(c[1:], power_of_h))
    (a, a_low), (b, b_low) = ex.two_prod(linear[0], h), ex.two_prod(cubic[0], cube)
    top, low = ex.two_sum(a, b)
    top, next_low = ex.two_sum(top, small[0])
    lower = (next_low, low, a_low, b_low, *small[1:])
    # In float32 the exponential accepts no more floats.
    return (top, *(lower if width is FP64 else ex.collected(lower, 4)))


def gelu_tanh_error(e: Steps) -> float:
    """Return the error of x times the logistic function of a cubic, exact up to 2**-15 (2**-5)."""
    steps = 4 * e.mul() + 5 * e.add() + 2 * e.constant() + 2 * e.collect()
    rest = 2.0 ** (-15 if e.fmt is FP64 else -5)
    return sigmoid_error(e, WORKING[e.fmt].exp_limit * rest * steps) + e.mul()


@function(
    "x",
    bound=lambda e: normal_cdf_error(e) + e.mul(),
    worst=2.41,
    tensors=F.gelu,
    slope=("gelu_1",),
)
def gelu(x: Components, fmt: Format, terms: int) -> Components:
    """Return x times the normal distribution function, accurate in the lower tail too.

    x (1 + erf(x / sqrt(2))) / 2 = x - x c for x > 0 and x c below, c = erfc(|x|/sqrt(2)) / 2.
    """
    y, w = ex.enter(x, fmt), ex.working_terms(fmt, terms)
    down = torch.signbit(y[0])
    good = y[0].abs() <= working().gauss_far
    y = ex.sanitized(y, good)
    a = ex.signed(y, ex.sign_of(down))
    c, e = tail(a, w)
    v, lift = ex.lifted(ex.head(y, w))
    below = ex.mul(v, c)
    above = ex.mul(v, ex.add(ex.minus(ex.scale_all(c, e)), torch.ones_like(a[0])))
    out = ex.leave(ex.select(down, below, above), fmt, terms, torch.where(down, e, 0) - lift)
    return _gelu_beyond(x, good, out)


@function(
    "x",
    bound=gelu_tanh_error,
    worst=5.36,
    tensors=functools.partial(F.gelu, approximate="tanh"),
    slope=OBSERVED,
)
def gelu_tanh(x: Components, fmt: Format, terms: int) -> Components:
    """Return 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), with exact constants.

    It is computed as x times the logistic function of twice the argument of tanh.
    """
    y, w = ex.enter(x, fmt), ex.working_terms(fmt, terms)
    good = y[0].abs() <= working().tanh_far
    y = ex.sanitized(y, good)
    v, lift = ex.lifted(ex.head(y, w))
    s, k = logistic(_tanh_argument(ex.head(y, w), w), w)
    out = ex.leave(ex.mul(v, s), fmt, terms, k - lift)
    return _gelu_beyond(x, good, out)


@function(
    "x",
    auxiliary=True,
    # (x - z) times a series; 1 minus that.
    bound=lambda e: (
        e.at_table(_NODES) + e.mul() + e.constant() + e.mul() + e.collect()
        + gauss_error(e, 1) + 2 * e.mul() + e.constant() + e.add(), 0.0,
    ),
)  # fmt: skip
def gelu_1(x: Components, fmt: Format, terms: int) -> Components:
    """Return the derivative of x Phi(x); relative error also next to its zero at -0.7518."""
    y, w = ex.enter(x, fmt), ex.working_terms(fmt, terms)
    good = y[0].abs() <= working().gauss_far
    y = ex.sanitized(y, good)
    down = y[0] < 0
    a = ex.signed(y, ex.sign_of(down))
    side = constant(half_root(), w, a[0].device)
    value = _NODES.at(ex.mul(ex.head(a, w), side), w)
    value = ex.mul(value, series.less_zero("gelu_1_zero", a, w))
    g, e = error.gauss(a, w, 1)
    factor = fixed.to_fraction(fixed.quotient(fixed.ONE, fixed.root(2 * fixed.pi())))
    value = ex.mul(value, ex.mul(g, constant(factor, w, a[0].device)))
    above = ex.add(ex.scale_all(value, e), torch.ones_like(a[0]))
    out = ex.leave(ex.select(down, ex.minus(value), above), fmt, terms, torch.where(down, e, 0))
    beyond = torch.where(x[0].isnan(), x[0], (x[0] > 0).to(fmt.dtype))
    return ex.special(~good, beyond, out)
