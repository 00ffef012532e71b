"""lgamma, digamma and trigamma: Taylor series at nodes up to 64, Stirling's beyond, reflection.

Below 1/2 they use Gamma(1 + x) = x Gamma(x), for negative numbers Gamma(x) Gamma(-x) =
-pi/(x sin(pi x)) and its logarithmic derivatives (NIST's Digital Library of Mathematical Functions,
5.5 and 5.11, https://dlmf.nist.gov/5).
"""

from __future__ import annotations

import functools
import math
from fractions import Fraction
from typing import NamedTuple

import torch
from torch import Tensor

from mcf.elementary import angles, fixed, logarithm, series
from mcf.elementary import working as ex
from mcf.elementary.angles import sin_cos_error
from mcf.elementary.error_steps import Errors, Steps
from mcf.elementary.format import working
from mcf.elementary.gamma_series import bernoulli, log_two_pi, nodes_of
from mcf.elementary.logarithm import log_error
from mcf.elementary.operator import function
from mcf.elementary.tables import Components, constant
from mcf.kernels.formats import FP64, Format

# From here on Stirling's series is used.
FAR = 64.0


class Argument(NamedTuple):
    """An argument and its range.

    Attributes:
        x: the argument, or 1 where nothing is computed.
        good: the mask of elements that are computed.
        down: the mask of x < 0.
        low: the mask of |x| < 1/2.
        far: the mask of z >= 64.
        z: floats whose sum is the argument of the series.
    """

    x: Components
    good: Tensor
    down: Tensor
    low: Tensor
    far: Tensor
    z: Components


def argument_of(y: Components, terms: int, *, reflected: bool) -> Argument:
    """Classify: reflected, z is 1 - x below zero; else |x|, and 1 + x where |x| < 1/2."""
    good = (y[0] != 0) & y[0].isfinite()
    y = ex.sanitized(y, good)
    down = y[0] < 0
    a = ex.signed(y, ex.sign_of(down))
    low = a[0] < 0.5
    one = torch.ones_like(a[0])
    shifted = (low | down) if reflected else low
    same = ex.collected((one, *(a if reflected else y)), terms)
    z = ex.select(shifted, same, ex.head(a, terms))
    return Argument(y, good, down, low, z[0] >= FAR, z)


class Beside(NamedTuple):
    """The difference r of x and the nearest whole number, as an angle.

    Attributes:
        r: components, times 2**angle_lift where tiny.
        sign: of r.
        tiny: where r equals its sine.
        whole: where r = 0.
        sine: sin |pi r|, not usable where tiny.
        cosine: cos |pi r|, not usable where tiny.
    """

    r: Components
    sign: Tensor
    tiny: Tensor
    whole: Tensor
    sine: Components
    cosine: Components


def beside_whole(x: Components, terms: int) -> Beside:
    """Return the remainder of x, exact up to one rounding."""
    parts = tuple(c - c.round() for c in x)
    nearest = ex.collected(parts, 1)[0].round()
    r = ex.collected((*parts, -nearest), terms)
    whole = r[0] == 0
    r = ex.sanitized(r, ~whole, 0.25)
    sign = ex.sign_of(r[0] < 0)
    r = ex.signed(r, sign)
    # The low components of an angle might underflow below this bound.
    tiny = r[0] < working().tiny
    safe = ex.sanitized(r, ~tiny, 0.25)
    half = torch.full_like(r[0], 0.5)
    steep = safe[0] > 0.25
    turned = ex.select(steep, ex.collected((half, *ex.minus(safe)), terms), safe)
    sine, cosine = angles.Angle(ex.mul(turned, pi(terms, r[0]))).both()
    lifted = ex.scale_all(r, torch.where(tiny, working().angle_lift, 0))
    return Beside(
        lifted, sign, tiny, whole, ex.select(steep, cosine, sine), ex.select(steep, sine, cosine)
    )


def pi(terms: int, like: Tensor) -> Components:
    """Return the number pi on the device of a tensor."""
    return constant(fixed.to_fraction(fixed.pi()), terms, like.device)


# -log2 of the square of 1 / FAR.
STIRLING_BITS = 12.0


def stirling(k: int, j: int) -> Fraction:
    """Return the coefficient of i^(2j) in Stirling's series, i = 1/z, divided by the first.

    k = 0: log Gamma from i/12 on; 1: digamma from -i^2/12 on; 2: trigamma from i^3/6 on.
    """
    b = bernoulli(64)[j]
    m = 2 * (j + 1)
    return (12 * b / (m * (m - 1)), 12 * b / m, 6 * b)[k]


def log_of(a: Components, terms: int, shift: Tensor | None = None) -> Components:
    """Return log of a > 0 times 2**shift."""
    lift = torch.where(a[0] < working().low, working().lift, 0)
    a = ex.scale_all(a, lift)
    value, k = logarithm.scaled_log(a, a[0], terms, 0, -lift if shift is None else shift - lift)
    return ex.scale_all(value, k)


def inverse_of(z: Components, terms: int) -> Components:
    """Return 1/z, or 0 where it vanishes next to 1."""
    near = z[0] < working().vast
    one = ex.head((torch.ones_like(z[0]),), terms)
    return ex.sanitized(ex.div(one, ex.sanitized(z, near)), near, 0.0)


def _tail(k: int, square: Components) -> Components:
    """Return Stirling's series divided by its first term, from 1/z^2."""
    # The series is added to a number at least 8 bits larger.
    return series.polynomial(square, STIRLING_BITS, functools.partial(stirling, k), 8.0)


def times(x: Components, factor: int | Fraction) -> Components:
    """Return x times an exact number."""
    return ex.mul(x, constant(Fraction(factor), len(x), x[0].device))


def _cotangent(f: Beside, terms: int) -> tuple[Components, Tensor]:
    """Return components and an exponent of pi / tan(pi r)."""
    one = ex.head((torch.ones_like(f.sign),), terms)
    below = ex.select(f.tiny, ex.head(f.r, terms), f.sine)
    above = ex.select(f.tiny, one, ex.mul(f.cosine, pi(terms, f.sign)))
    return ex.signed(ex.div(above, below), f.sign), torch.where(f.tiny, working().angle_lift, 0)


def underflow(e: Steps, least: float = 2.0**-52) -> float:
    """Return the error of the sine of a small angle in float32, scaled below `least`.

    Bits below 2**-149 are lost up to 16 times, which is 2**-93 of 2**-52.
    """
    return 0.0 if e.fmt is FP64 else 2.0**-145 / least


def _stirling_error(e: Steps, k: int) -> float:
    """Return the error of the series divided by its first term, from 1 / z^2."""
    coefficient = functools.partial(stirling, k)
    return e.polynomial(2.0**-STIRLING_BITS, STIRLING_BITS, coefficient, 8.0, 2 * e.div() + e.mul())


def angle_error(e: Steps, least: float = 2.0**-52) -> float:
    """Return the error of pi times the distance of x from a whole number, from `least` on."""
    return 2 * e.collect() + e.mul() + e.constant() + underflow(e, least)


def lgamma_error(e: Steps) -> Errors:
    """Return the errors of lgamma: (x - 1) (x - 2) g(x), Stirling's, log|x|, reflection."""
    near = e.at_table(nodes_of("lgamma_series"), e.collect()) + 2 * e.mul() + 2 * e.collect()
    # log x - 1 and (x - 1/2) (log x - 1) from 64 on; the rest is at most a 400th of them.
    least = math.log(FAR)
    rest = e.add() + e.constant() + _stirling_error(e, 0) + 3 * e.mul() + e.div()
    far = (
        log_error(e) * least / (least - 1) + e.add() + e.collect() + e.mul() + rest / 400 + e.add()
    )
    # 0 < x < 1/2: -log x is at least 0.69, log Gamma(1 + x) at least -0.1215.
    half = math.log(2)
    low = (0.1215 * near + half * log_error(e)) / (half - 0.1215) + e.add()
    chord = max(sin_cos_error(e)) + angle_error(e) + e.mul() + e.constant()
    parts = max(log_error(e) + chord / math.log(math.pi), near, far)
    return max(near, far, low), parts + 2 * e.add()


def digamma_error(e: Steps) -> Errors:
    """Return the errors of digamma: (x - x0) h(x), Stirling's, 1/x below 1/2, cotangent below 0."""
    near = e.at_table(nodes_of("digamma_series"), e.collect()) + e.mul() + e.collect()
    rest = e.add() + _stirling_error(e, 1) + 3 * e.mul() + e.div()
    far = 1.01 * log_error(e) + e.add() + rest / 400
    # 1/x is at least 2, digamma(1 + x) from -0.578 to 0.037.
    low = 0.3 * near + 1.02 * e.div() + e.add()
    # x / (sin x cos x) is at most pi/2 up to pi/4.
    cotangent = (
        sum(sin_cos_error(e)) + math.pi / 2 * angle_error(e) + e.mul() + e.constant() + e.div()
    )
    return max(near, far, low), max(near, far, cotangent) + e.add()


def trigamma_error(e: Steps) -> Errors:
    """Return the errors of trigamma: series, Stirling's, 1/x^2 below 1/2, sine below 0."""
    near = e.at_table(nodes_of("trigamma_series"), e.collect())
    rest = e.add() + e.div() + _stirling_error(e, 2) + 3 * e.mul() + e.constant()
    far = e.add() + e.div() + rest / 100
    low = max(near, 2 * e.div() + e.mul()) + e.add() + underflow(e)
    # (pi / sin)^2 is at least pi^2, trigamma(1 - x) at most 1.645.
    square = 2 * (max(sin_cos_error(e)) + angle_error(e) + e.constant() + e.div()) + e.mul()
    down = 1.21 * square + 0.21 * max(near, far) + e.add()
    return max(near, far, low, down), 0.0


@function("x", torch=("lgamma",), bound=lgamma_error, slope=("digamma",))
def lgamma(x: Components, fmt: Format, terms: int) -> Components:
    """Return log |Gamma(x)|; infinite at 0, negative whole numbers and infinities.

    For positive x the error is relative to the result, also near the zeros 1 and 2. Below -1/2 the
    result is -log|sin(pi x) / pi| - log|x| - lgamma(|x|), and the error is relative to the sum of
    the magnitudes of these: near zeros there the result has the bits that remain after
    cancellation.
    """
    y, w = ex.enter(x, fmt), ex.working_terms(fmt, terms)
    at = argument_of(y, w, reflected=False)
    one = torch.ones_like(y[0])
    size = ex.signed(at.x, ex.sign_of(at.down))
    # Stirling's series, scaled so that the product does not overflow if the result is finite.
    k = torch.where(size[0] > working().many, working().fewer, 0)
    log_x = log_of(size, w)
    far = ex.sanitized(at.z, at.far, FAR)
    inverse = inverse_of(ex.head(far, w), w)
    small = ex.add(
        times(ex.mul(inverse, _tail(0, ex.mul(inverse, inverse))), Fraction(1, 12)),
        constant((fixed.to_fraction(log_two_pi()) - 1) / 2, w, one.device),
    )
    small = ex.select(k > 0, series.zeros(small), small)
    scale = ex.scale_all((one,), -k)[0]
    factor = ex.collected((*ex.scale_all(ex.sanitized(size, at.far, FAR), -k), -0.5 * scale), w)
    beyond = ex.add(ex.mul(factor, ex.add(log_x, -one)), small)
    # Multiply the series by z - 1 and z - 2, which are exact.
    near = ex.sanitized(at.z, ~at.far)
    value = nodes_of("lgamma_series").at(near, w)
    zero = torch.zeros_like(one)
    first = ex.select(at.low, (*at.x, zero), (*size, -one))
    second = (*at.x, torch.where(at.low, -one, one))
    second = ex.select(at.low, (*at.x, -one), (*size, -2.0 * one))
    value = ex.mul(value, ex.mul(ex.collected(first, w), ex.collected(second, w)))
    value = ex.select(at.far, beyond, value)
    value = ex.select(at.low, ex.add(value, ex.minus(log_x)), value)
    # log(sin(pi r) / pi); for a tiny r it is log r.
    f = beside_whole(at.x, w)
    inverse_pi = constant(1 / fixed.to_fraction(fixed.pi()), w, one.device)
    chord = ex.select(f.tiny, ex.head(f.r, w), ex.mul(f.sine, inverse_pi))
    shift = torch.where(f.tiny, -working().angle_lift, 0)
    reflected = at.down & ~at.low
    log_sine = log_of(ex.sanitized(chord, reflected), w, torch.where(reflected, shift, 0))
    log_sine, log_x = (ex.scale_all(v, -k) for v in (log_sine, log_x))
    turned = ex.minus(ex.add(ex.add(log_sine, log_x), value))
    out = ex.leave(ex.select(reflected, turned, value), fmt, terms, k)
    out = ex.special(out[0] == 0, 0.0, out)
    pole = ~at.good | (reflected & f.whole)
    return ex.special(pole, torch.where(x[0].isnan(), x[0], math.inf), out)


@function("x", torch=("digamma",), bound=digamma_error, slope=("trigamma",))
def digamma(x: Components, fmt: Format, terms: int) -> Components:
    """Return the derivative of log Gamma(x); infinite at zeros, with the opposite sign.

    It is NaN at negative whole numbers and -inf. For positive x the error is relative to the
    result, also near its zero at 1.4616. Below zero the result is digamma(1 - x) - pi / tan(pi x),
    and the error is relative to the sum of both magnitudes: near zeros the result has the bits that
    remain after cancellation.
    """
    y, w = ex.enter(x, fmt), ex.working_terms(fmt, terms)
    at = argument_of(y, w, reflected=True)
    one = torch.ones_like(y[0])
    far = ex.sanitized(at.z, at.far, FAR)
    inverse = inverse_of(ex.head(far, w), w)
    square = ex.mul(inverse, inverse)
    small = ex.add(
        series.scaled(inverse, 0.5), times(ex.mul(square, _tail(1, square)), Fraction(1, 12))
    )
    beyond = ex.add(log_of(far, w), ex.minus(small))
    near = ex.sanitized(at.z, ~at.far)
    value = nodes_of("digamma_series").at(near, w)
    size = ex.signed(at.x, ex.sign_of(at.down))
    lead = torch.where(at.low | at.down, one, 0.0)
    near = (*ex.sanitized(size, ~at.far), lead)
    value = ex.mul(value, series.less_zero("digamma_zero", near, w))
    value = ex.select(at.far, beyond, value)
    # Between 0 and 1/2 subtract 1/x, by recurrence.
    f = beside_whole(at.x, w)
    low = at.low & ~at.down
    cot, k = _cotangent(f, w)
    recurring = ex.minus(
        ex.div(ex.head((one,), w), ex.sanitized(ex.scale_all(ex.head(at.x, w), k), low))
    )
    step = ex.select(low, recurring, ex.minus(cot))
    shifted = low | at.down
    tiny = shifted & f.tiny
    alone = tiny & (f.r[0] < working().alone * 2.0 ** working().angle_lift)
    joined = ex.add(ex.scale_all(value, -k), ex.sanitized(step, ~alone))
    value = ex.select(shifted & ~alone, joined, value)
    value = ex.select(alone, step, value)
    out = ex.leave(value, fmt, terms, torch.where(tiny, k, 0))
    beyond_all = torch.where(x[0] == 0, -(1 / x[0]), torch.where(x[0] > 0, x[0], math.nan))
    return ex.special(~at.good | (at.down & f.whole), beyond_all, out)


@function(
    "x", bound=trigamma_error, tensors=functools.partial(torch.polygamma, 1), slope=("polygamma_2",)
)
def trigamma(x: Components, fmt: Format, terms: int) -> Components:
    """Return the second derivative of log Gamma(x); infinite at 0 and negative whole numbers.

    The error is relative to the result. Below zero it is (pi / sin(pi x))^2 - trigamma(1 - x).
    """
    y, w = ex.enter(x, fmt), ex.working_terms(fmt, terms)
    at = argument_of(y, w, reflected=True)
    one = torch.ones_like(y[0])
    # 1/z (1 + 1/(2 z) + 1/(6 z^2) - ...), from the mantissa of z and its exponent.
    far = ex.head(ex.sanitized(at.z, at.far, FAR), w)
    inverse = inverse_of(far, w)
    square = ex.mul(inverse, inverse)
    tail = ex.add(
        series.scaled(inverse, 0.5), times(ex.mul(square, _tail(2, square)), Fraction(1, 6))
    )
    normal, e = ex.mantissa(far)
    beyond = ex.div(ex.add(tail, one), normal)
    value = nodes_of("trigamma_series").at(ex.sanitized(at.z, ~at.far), w)
    value = ex.select(at.far, beyond, value)
    f = beside_whole(at.x, w)
    low = at.low & ~at.down
    k = torch.where(f.tiny, working().angle_lift, 0)
    size = ex.signed(at.x, ex.sign_of(at.down))
    below = ex.select(f.tiny, ex.head(f.r, w), f.sine)
    above = ex.select(f.tiny, ex.head((one,), w), ex.head(pi(w, one), w))
    below = ex.select(low, ex.sanitized(ex.scale_all(ex.head(size, w), k), low), below)
    above = ex.select(low, ex.head((one,), w), above)
    shifted, tiny = low | at.down, (low | at.down) & f.tiny
    # The square of a lifted number may overflow.
    part, m = ex.mantissa(ex.sanitized(below, tiny))
    quotient = ex.div(above, ex.select(tiny, part, below))
    step = ex.mul(quotient, quotient)
    most = -working().bottom
    # trigamma(1 - x) keeps its scale; next to a large step it may vanish.
    flat = ex.scale_all(value, torch.where(at.far & ~tiny, -e, 0).clamp(min=-900))
    plain = ex.sanitized(step, ~tiny)
    joined = ex.add(ex.select(low, flat, ex.minus(flat)), plain)
    value = ex.select(shifted, ex.select(tiny, step, joined), value)
    k = (2 * (k - m)).clamp(-most, most)
    exponents = torch.where(tiny, k, torch.where(at.far & ~shifted, -e, 0))
    out = ex.leave(value, fmt, terms, exponents)
    found = torch.where(x[0] == -math.inf, math.nan, torch.where(x[0] == 0, math.inf, 1 / x[0]))
    found = torch.where(at.good, math.inf, found)
    return ex.special(~at.good | (at.down & f.whole), found.to(fmt.dtype), out)
