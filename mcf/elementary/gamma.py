"""lgamma, digamma and trigamma: Taylor series at nodes up to 64, Stirling's beyond, reflection.

Below 1/2 they use Gamma(1 + x) = x Gamma(x), for negative numbers Gamma(x) Gamma(-x) =
-pi/(x sin(pi x)) and its logarithmic derivatives (NIST's Digital Library of Mathematical Functions,
5.5 and 5.11, https://dlmf.nist.gov/5).
"""

from __future__ import annotations

import functools
import math
from fractions import Fraction

import torch
from torch import Tensor

from mcf.elementary import arithmetic as ex
from mcf.elementary import fixed, gamma_tables, logarithm, series
from mcf.elementary.format import working
from mcf.elementary.gamma_arguments import FAR, Beside, argument_of, beside_whole, pi
from mcf.elementary.gamma_series import bernoulli, log_two_pi
from mcf.elementary.operator import function
from mcf.elementary.ordered_sums import beside
from mcf.elementary.series import FALL
from mcf.elementary.tables import Components, constant, lookup, table
from mcf.elementary.working import (
    collected,
    enter,
    exponent,
    head,
    leave,
    mantissa,
    minus,
    power,
    sanitized,
    scale_all,
    select,
    sign_of,
    signed,
    special,
    working_terms,
)
from mcf.kernels.formats import Format

Arguments = tuple[Components, ...]

# -log2 of the square of 1 / FAR.
_BITS = 12.0


def degree_needed(terms: int, spare: float = 0.0, degrees: int = gamma_tables.DEGREES) -> int:
    """Return the degree of a table's series for `terms` components and `spare` more bits."""
    return min(degrees - 1, int((working().format.p * terms + 8 + spare) / FALL) + 2)


def components_needed(terms: int, k: int, spare: float = 0.0) -> int:
    """Return the components in which the coefficient of degree k is added."""
    p = working().format.p
    return min(terms, max(1, -int(-(p * terms + 8 + spare - k * FALL) // p)))


def taylor(
    name: str,
    z: Components,
    terms: int,
    first: int = gamma_tables.FIRST,
    octaves: int = gamma_tables.OCTAVES,
    degrees: int = gamma_tables.DEGREES,
    spare: float = 0.0,
    steep: int = 0,
) -> Components:
    """Evaluate a table's series at the nearest of 32 nodes per octave, for an expansion z.

    The tables are those of `gamma_tables`, for 1/2 <= z < 64, or others that start at 2**first.
    """
    octave = exponent(z[0]).clamp(first, first + octaves - 1)
    start = power(octave)
    width = start * (1 / gamma_tables.STEPS)
    j = ((z[0] - start) / width).floor().clamp(0, gamma_tables.STEPS - 1)
    v = beside(z, start + width * (j + 0.5), terms)
    v = tuple(c * (2.0 / width) for c in v)
    row = (octave - first) * gamma_tables.STEPS + j.to(torch.int64)
    row = row * degrees
    degree = degree_needed(terms, spare, degrees)
    return series.at_node(
        v,
        degree,
        lambda k, count: lookup(name, row + k, count),
        lambda k: components_needed(terms, k, spare),
        steep,
    )


def stirling(k: int, j: int) -> Fraction:
    """Return the coefficient of i^(2j) in Stirling's series, i = 1/z, divided by the first.

    k = 0: log Gamma from i/12 on; 1: digamma from -i^2/12 on; 2: trigamma from i^3/6 on.
    """
    b = bernoulli(64)[j]
    m = 2 * (j + 1)
    return (12 * b / (m * (m - 1)), 12 * b / m, 6 * b)[k]


def _log(a: Components, terms: int, shift: Tensor | None = None) -> Components:
    """Return log of a > 0 times 2**shift."""
    lift = torch.where(a[0] < working().low, working().lift, 0)
    a = scale_all(a, lift)
    value, k = logarithm.log(a, a[0], terms, 0, -lift if shift is None else shift - lift)
    return scale_all(value, k)


def _inverse(z: Components, terms: int) -> Components:
    """Return 1/z, or 0 where it vanishes next to 1."""
    near = z[0] < working().vast
    one = head((torch.ones_like(z[0]),), terms)
    return sanitized(ex.div(one, sanitized(z, near)), near, 0.0)


def _tail(k: int, square: Components) -> Components:
    """Return Stirling's series divided by its first term, from 1/z^2."""
    # The series is added to a number at least 8 bits larger.
    return series.polynomial(square, _BITS, functools.partial(stirling, k), 8.0)


def _part(divisor: int, x: Components) -> Components:
    """Return x / divisor."""
    return ex.mul(x, constant(Fraction(1, divisor), len(x), x[0].device))


@function("x")
def lgamma(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return log |Gamma(x)|; infinite at 0, negative whole numbers and infinities.

    For positive x the error is relative to the result, also near the zeros 1 and 2. Below -1/2 the
    result is -log|sin(pi x) / pi| - log|x| - lgamma(|x|), and the error is relative to the sum of
    the magnitudes of these: near zeros there the result has the bits that remain after
    cancellation.
    """
    (x,) = arguments
    y, w = enter(x, fmt), working_terms(fmt, terms)
    at = argument_of(y, w, reflected=False)
    one = torch.ones_like(y[0])
    size = signed(at.x, sign_of(at.down))
    # Stirling's series, scaled so that the product does not overflow if the result is finite.
    k = torch.where(size[0] > working().many, working().fewer, 0)
    log_x = _log(size, w)
    far = sanitized(at.z, at.far, FAR)
    inverse = _inverse(head(far, w), w)
    small = ex.add(
        _part(12, ex.mul(inverse, _tail(0, ex.mul(inverse, inverse)))),
        constant((fixed.to_fraction(log_two_pi()) - 1) / 2, w, one.device),
    )
    small = select(k > 0, series.zeros(small), small)
    scale = scale_all((one,), -k)[0]
    factor = collected((*scale_all(sanitized(size, at.far, FAR), -k), -0.5 * scale), w)
    beyond = ex.add(ex.mul(factor, ex.add(log_x, -one)), small)
    # Multiply the series by z - 1 and z - 2, which are exact.
    near = sanitized(at.z, ~at.far)
    value = taylor("lgamma_series", near, w)
    zero = torch.zeros_like(one)
    first = select(at.low, (*at.x, zero), (*size, -one))
    second = (*at.x, torch.where(at.low, -one, one))
    second = select(at.low, (*at.x, -one), (*size, -2.0 * one))
    value = ex.mul(value, ex.mul(collected(first, w), collected(second, w)))
    value = select(at.far, beyond, value)
    value = select(at.low, ex.add(value, minus(log_x)), value)
    # log(sin(pi r) / pi); for a tiny r it is log r.
    f = beside_whole(at.x, w)
    inverse_pi = constant(1 / fixed.to_fraction(fixed.pi()), w, one.device)
    chord = select(f.tiny, head(f.r, w), ex.mul(f.sine, inverse_pi))
    shift = torch.where(f.tiny, -working().angle_lift, 0)
    reflected = at.down & ~at.low
    log_sine = _log(sanitized(chord, reflected), w, torch.where(reflected, shift, 0))
    log_sine, log_x = (scale_all(v, -k) for v in (log_sine, log_x))
    turned = minus(ex.add(ex.add(log_sine, log_x), value))
    out = leave(select(reflected, turned, value), fmt, terms, k)
    out = special(out[0] == 0, 0.0, out)
    pole = ~at.good | (reflected & f.whole)
    return special(pole, torch.where(x[0].isnan(), x[0], math.inf), out)


def _cotangent(f: Beside, terms: int) -> tuple[Components, Tensor]:
    """Return components and an exponent of pi / tan(pi r)."""
    one = head((torch.ones_like(f.sign),), terms)
    below = select(f.tiny, head(f.r, terms), f.sine)
    above = select(f.tiny, one, ex.mul(f.cosine, pi(terms, f.sign)))
    return signed(ex.div(above, below), f.sign), torch.where(f.tiny, working().angle_lift, 0)


@function("x")
def digamma(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return the derivative of log Gamma(x); infinite at zeros, with the opposite sign.

    It is NaN at negative whole numbers and -inf. For positive x the error is relative to the
    result, also near its zero at 1.4616. Below zero the result is digamma(1 - x) - pi / tan(pi x),
    and the error is relative to the sum of both magnitudes: near zeros the result has the bits that
    remain after cancellation.
    """
    (x,) = arguments
    y, w = enter(x, fmt), working_terms(fmt, terms)
    at = argument_of(y, w, reflected=True)
    one = torch.ones_like(y[0])
    far = sanitized(at.z, at.far, FAR)
    inverse = _inverse(head(far, w), w)
    square = ex.mul(inverse, inverse)
    small = ex.add(series.scaled(inverse, 0.5), _part(12, ex.mul(square, _tail(1, square))))
    beyond = ex.add(_log(far, w), minus(small))
    near = sanitized(at.z, ~at.far)
    value = taylor("digamma_series", near, w)
    zero = table("digamma_zero", one.device)
    parts = tuple(-zero[j].expand(one.shape) for j in range(8))
    size = signed(at.x, sign_of(at.down))
    lead = torch.where(at.low | at.down, one, 0.0)
    value = ex.mul(value, collected((*sanitized(size, ~at.far), lead, *parts), w))
    value = select(at.far, beyond, value)
    # Between 0 and 1/2 subtract 1/x, by recurrence.
    f = beside_whole(at.x, w)
    low = at.low & ~at.down
    cot, k = _cotangent(f, w)
    recurring = minus(ex.div(head((one,), w), sanitized(scale_all(head(at.x, w), k), low)))
    step = select(low, recurring, minus(cot))
    shifted = low | at.down
    tiny = shifted & f.tiny
    alone = tiny & (f.r[0] < working().alone * 2.0 ** working().angle_lift)
    joined = ex.add(scale_all(value, -k), sanitized(step, ~alone))
    value = select(shifted & ~alone, joined, value)
    value = select(alone, step, value)
    out = leave(value, fmt, terms, torch.where(tiny, k, 0))
    beyond_all = torch.where(x[0] == 0, -(1 / x[0]), torch.where(x[0] > 0, x[0], math.nan))
    return special(~at.good | (at.down & f.whole), beyond_all, out)


@function("x")
def trigamma(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return the second derivative of log Gamma(x); infinite at 0 and negative whole numbers.

    The error is relative to the result. Below zero it is (pi / sin(pi x))^2 - trigamma(1 - x).
    """
    (x,) = arguments
    y, w = enter(x, fmt), working_terms(fmt, terms)
    at = argument_of(y, w, reflected=True)
    one = torch.ones_like(y[0])
    # 1/z (1 + 1/(2 z) + 1/(6 z^2) - ...), from the mantissa of z and its exponent.
    far = head(sanitized(at.z, at.far, FAR), w)
    inverse = _inverse(far, w)
    square = ex.mul(inverse, inverse)
    tail = ex.add(series.scaled(inverse, 0.5), _part(6, ex.mul(square, _tail(2, square))))
    normal, e = mantissa(far)
    beyond = ex.div(ex.add(tail, one), normal)
    value = taylor("trigamma_series", sanitized(at.z, ~at.far), w)
    value = select(at.far, beyond, value)
    f = beside_whole(at.x, w)
    low = at.low & ~at.down
    k = torch.where(f.tiny, working().angle_lift, 0)
    size = signed(at.x, sign_of(at.down))
    below = select(f.tiny, head(f.r, w), f.sine)
    above = select(f.tiny, head((one,), w), head(pi(w, one), w))
    below = select(low, sanitized(scale_all(head(size, w), k), low), below)
    above = select(low, head((one,), w), above)
    shifted, tiny = low | at.down, (low | at.down) & f.tiny
    # The square of a lifted number may overflow.
    part, m = mantissa(sanitized(below, tiny))
    quotient = ex.div(above, select(tiny, part, below))
    step = ex.mul(quotient, quotient)
    most = -working().bottom
    # trigamma(1 - x) keeps its scale; next to a large step it may vanish.
    flat = scale_all(value, torch.where(at.far & ~tiny, -e, 0).clamp(min=-900))
    plain = sanitized(step, ~tiny)
    joined = ex.add(select(low, flat, minus(flat)), plain)
    value = select(shifted, select(tiny, step, joined), value)
    k = (2 * (k - m)).clamp(-most, most)
    exponents = torch.where(tiny, k, torch.where(at.far & ~shifted, -e, 0))
    out = leave(value, fmt, terms, exponents)
    found = torch.where(x[0] == -math.inf, math.nan, torch.where(x[0] == 0, math.inf, 1 / x[0]))
    found = torch.where(at.good, math.inf, found)
    return special(~at.good | (at.down & f.whole), found.to(fmt.dtype), out)
