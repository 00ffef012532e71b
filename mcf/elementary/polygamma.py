"""Polygamma functions and Hurwitz's zeta function, by the series of `mcf.elementary.gamma`.

f(x) = (-1)^(m+1) psi^(m)(x) = m! (1/x^(m+1) + 1/(x + 1)^(m+1) + ...) = m! zeta(m + 1, x) is
positive for x > 0 and m >= 2. Below 1/2 it is m! / x^(m+1) + f(1 + x). Below zero, with c and s the
cosine and sine of pi x,

    f(x) = pi^(m+1) g_m(c) / s^(m+1) + (-1)^m f(1 - x),
    g_1 = 1, g_(m+1) = (m + 1) c g_m + (1 - c^2) g_m'

where all coefficients are positive: 2 c, 2 (1 + 2 c^2), 8 c (2 + c^2), ... (NIST's Digital Library
of Mathematical Functions, 5.15 and 25.11, https://dlmf.nist.gov/5.15).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction

import torch
from torch import Tensor

from mcf.elementary import gamma, gamma_series, series
from mcf.elementary import working as ex
from mcf.elementary.angles import sin_cos_error
from mcf.elementary.error_steps import Errors, Steps
from mcf.elementary.format import working
from mcf.elementary.gamma import angle_error
from mcf.elementary.gamma_series import bernoulli, derived
from mcf.elementary.operator import function
from mcf.elementary.power import raised
from mcf.elementary.tables import Components, constant, register_tables, table_of
from mcf.kernels.formats import Format

# The highest order; beyond it functions fall too fast for the intervals of the tables.
LAST = 32
# Orders up to this one have tables of one length.
_FEW = 4


def spare(m: int) -> float:
    """Return the bits by which binomial coefficients of order m slow the fall of a series.

    18 bits cover order 4 in 44 degrees.
    """
    if m <= _FEW:
        return 18.0
    bits = 18.0
    while math.log2(math.comb(degrees(m, bits) + m, m)) > bits:
        bits += 2.0
    return bits


def steep(m: int) -> int:
    """Return the degree from which on a coefficient exceeds twice the sum of the next ones.

    Each is about (k + m + 1) / (64 (k + 1)) of the one before, so they fall at least by a quarter.
    """
    return max(0, -(-(m - 15) // 15))


def degrees(m: int, bits: float | None = None) -> int:
    """Return the number of coefficients in a table's row, two more than four components need."""
    if m <= _FEW:
        return 44
    return int((53 * 4 + 8 + (spare(m) if bits is None else bits)) / series.FALL) + 5


def _nodes(m: int) -> series.Nodes:
    table = gamma_series.nodes_of(f"polygamma_{m}_series")
    return table._replace(degrees=degrees(m), spare=spare(m), steep=steep(m))


def _bits(m: int) -> int:
    return 440 + 8 * max(0, m - _FEW)


def _table_of(m: int) -> Tensor:
    """Return coefficients of (-1)^(m+1) psi^(m)(x)."""
    count = degrees(m)
    length = 44 + _FEW + 1 if m <= _FEW else count + m + 1
    rows = gamma_series.log_gamma_rows(_bits(m), length)
    return table_of((derived(row, m + 1, half, count) for row, _, half in rows), _bits(m))


def stirling(m: int, j: int) -> Fraction:
    """Return the coefficient of z^-2j in Stirling's series, divided by the first.

    The series is z^m f(z) / (m - 1)! minus 1 + m/(2 z), and its first term is m (m + 1) / (12 z^2).
    The coefficients are B_2j (2j + m - 1)! / ((2j)! (m - 1)!) from j = 1 on.
    """
    b = bernoulli(64)[j] * math.perm(2 * j + m + 1, m - 1) / math.factorial(m - 1)
    return b / Fraction(m * (m + 1), 12)


@functools.cache
def weight(m: int) -> tuple[int, ...]:
    """Return the coefficients of g_m in ascending order; the last is a power of two."""
    g = [1]
    for n in range(1, m):
        after = [0] * (n + 1)
        for j, a in enumerate(g):
            after[j + 1] += (n + 1 - j) * a
            if j:
                after[j - 1] += j * a
        g = after
    return tuple(g)


def _number(value: int, like: Components) -> Components:
    """Return a whole number as an expansion, exactly if it fits."""
    found = constant(Fraction(value), len(like), like[0].device)
    return tuple(c.expand(like[0].shape) for c in found)


def _weight(m: int, c: Components) -> Components:
    """Return g_m(c) for c from 0 to 1, by Horner's rule in c^2."""
    *others, last = weight(m)[(m - 1) % 2 :: 2]
    total = c if m % 2 == 0 else ex.mul(c, c)
    if m == 2:
        return series.scaled(total, float(last))
    square = ex.mul(c, c)
    total = series.scaled(square, float(last))
    for k, a in enumerate(reversed(others)):
        total = ex.mul(total, square) if k else total
        total = ex.add(total, _number(a, c))
    return total if m % 2 else ex.mul(c, total)


def tiny_below(m: int) -> float:
    """Return the limit below which only 1/r^(m+1) matters; above it no power overflows."""
    return 2.0 ** -min(110, working().apart // (m + 1))


def _evaluated(x: Components, fmt: Format, terms: int, m: int, *, zeta: bool) -> Components:
    """Return f(x), or zeta(m + 1, x) = f(x) / m!."""
    y, w = ex.enter(x, fmt), ex.working_terms(fmt, terms)
    at = gamma.argument_of(y, w, reflected=True)
    one = torch.ones_like(y[0])
    far = ex.head(ex.sanitized(at.z, at.far, gamma.FAR), w)
    inverse = gamma.inverse_of(far, w)
    square = ex.mul(inverse, inverse)
    tail = series.polynomial(square, gamma.STIRLING_BITS, functools.partial(stirling, m), 8.0)
    rest = ex.mul(gamma.times(square, m * (m + 1)), gamma.times(tail, Fraction(1, 12)))
    rest = ex.add(gamma.times(inverse, Fraction(m, 2)), rest)
    normal, e = ex.mantissa(far)
    beyond = ex.div(gamma.times(ex.add(rest, one), math.factorial(m - 1)), raised(normal, m))
    near = ex.sanitized(at.z, ~at.far)
    value = _nodes(m).at(near, w)
    value = ex.select(at.far, beyond, value)
    f = gamma.beside_whole(at.x, w)
    low = at.low & ~at.down
    shifted = low | at.down
    # The base of the power: |x| up to 1/2, else s / pi, and next to poles r.
    size = ex.head(ex.signed(at.x, ex.sign_of(at.down)), w)
    r = ex.select(low, size, ex.head(f.r, w))
    lift = torch.where(f.tiny & ~low, working().angle_lift, 0)
    tiny = shifted & ((r[0] < tiny_below(m)) | (lift > 0))
    part, k = ex.mantissa(ex.sanitized(r, tiny))
    below = ex.select(tiny, part, ex.select(low, ex.sanitized(r, low), f.sine))
    plain = low | tiny
    above = ex.select(plain, ex.head((one,), w), ex.head(gamma.pi(w, one), w))
    factor = ex.select(plain, _number(math.factorial(m), ex.head((one,), w)), _weight(m, f.cosine))
    step = ex.mul(raised(ex.div(above, below), m + 1), factor)
    if m % 2 == 0:
        step = ex.signed(step, torch.where(at.down, f.sign, 1.0))
    most = -working().bottom
    flat = ex.scale_all(value, torch.where(at.far & ~tiny, -m * e, 0).clamp(min=-most))
    if m % 2:
        flat = ex.select(low, flat, ex.minus(flat))
    joined = ex.add(flat, ex.sanitized(step, ~tiny))
    value = ex.select(shifted, ex.select(tiny, step, joined), value)
    exponents = torch.where(tiny, (m + 1) * (lift - k), torch.where(at.far & ~shifted, -m * e, 0))
    if zeta:
        value = gamma.times(value, Fraction(1, math.factorial(m)))
    out = ex.leave(value, fmt, terms, exponents.clamp(-most, most))
    # NaN is not negated: whether that changes its sign depends on the executor.
    if m % 2 == 0 and not zeta:
        out = ex.minus(out)
    limit = 1.0 if m % 2 or zeta else -1.0
    pole = torch.where(x[0] == math.inf, 0.0 * limit, limit * math.inf)
    pole = torch.where(x[0].isnan(), x[0], pole)
    return ex.special(~at.good | (at.down & f.whole), pole.to(fmt.dtype), out)


def polygamma_error(e: Steps, m: int, *, zeta: bool = False) -> Errors:
    """Return the errors of polygamma: series, Stirling's, m! / x^(m+1) below 1/2, sine below 0."""
    near = e.at_table(_nodes(m), e.collect(), falling=m > 4)
    coefficient = functools.partial(stirling, m)
    tail = e.polynomial(
        2.0**-gamma.STIRLING_BITS, gamma.STIRLING_BITS, coefficient, 8.0, 2 * e.div() + e.mul()
    )
    # Whole numbers with more bits than a float are rounded constants.
    whole = e.constant() * (m > 4)
    # The terms after 1 are at most m/(2 z) + m (m + 1)/(12 z^2); the former is up to 1/32 for m =
    # 4.
    share = max(1 / 32, m / 128 + m * (m + 1) / 49152)
    rest = (e.add() + e.div() + tail + 4 * e.mul() + e.constant() + whole) * share
    far = rest + e.add() + e.div() + m * (e.mul() + e.collect()) + whole
    step = (m + 1) * e.div() + (m + 1) * e.mul() + whole
    # Below `least` all but the largest term is left out: at most 2 zeta(m + 1) of its inverse.
    least = tiny_below(m)
    step += 2.5 * least ** (m + 1)
    low = max(near, step) + e.add()
    sine = max(sin_cos_error(e)) + angle_error(e, least)
    down = step + (m + 1) * (sine + e.constant()) + _weight_error(e, m, sine, whole)
    last = zeta * (e.mul() + e.constant())
    if m % 2:
        # The power is at least 2 pi^4 for m = 3, and the subtracted term at most 6.5; less for
        # larger m.
        found = max(near, far, low, 1.04 * down + 0.04 * max(near, far) + 1.04 * e.add())
        return found + last, 0.0
    # Relative to the sum of all m! / |x + k|^(m + 1), which is at least either term. The error of r
    # contributes at most (m + 1) times itself, also where the cosine is small; `down` includes
    # twice as much.
    return max(near, far, low) + last, max(down, near, far) + e.add() + last


def _weight_error(e: Steps, m: int, cosine: float, whole: float) -> float:
    """Return the error of g_m(c), of degree m - 1: Horner's rule in c^2, all terms of one sign."""
    steps = (m - 1) // 2
    found = (m - 1) * cosine + steps * (e.mul() + e.add() + whole)
    return found + max(steps - 1, 0) * e.mul() + (m % 2 == 0 and steps > 0) * e.mul()


@functools.cache
def _made(name: str, m: int, *, zeta: bool) -> Callable[..., Components]:
    what = (
        f"Hurwitz's zeta function, 1/x^{m + 1} + 1/(x + 1)^{m + 1} + ..."
        if zeta
        else f"The derivative of order {m + 1} of log Gamma(x)"
    )
    doc = f"""{what}; infinite at its poles.

    Of positive x relative to the result. Below zero the terms of the series have different signs
    for even m = {m}, and the error is relative to the sum of their magnitudes 1/|x + k|^{m + 1},
    or to m! times that: near zeros the result has the bits that the cancellation leaves.
    """
    register_tables(**{f"polygamma_{m}_series": functools.partial(_table_of, m)})
    return function(
        "x",
        called=name,
        doc=doc,
        float32=m <= _FEW,
        auxiliary=zeta or m > _FEW,
        bound=lambda e: polygamma_error(e, m, zeta=zeta),
        derivative=(lambda x, of: -(m + 1) * torch.special.zeta(m + 2, x)) if zeta else None,
    )(lambda x, fmt, terms: _evaluated(x, fmt, terms, m, zeta=zeta))


def polygamma(m: int) -> Callable[..., Components]:
    """Return the polygamma function of an order from 2 to `LAST`, on component tuples."""
    return _made(f"polygamma_{m}", m, zeta=False)


def zeta(s: int) -> Callable[..., Components]:
    """Return the zeta function of a whole s from 3 to `LAST` + 1 and x, on component tuples."""
    return _made(f"zeta_{s}", s - 1, zeta=True)


for _m in (2, 3, 4):
    polygamma(_m)


def created(function: str) -> bool:
    """Return whether a name is that of a polygamma or zeta function, which now exists."""
    kind, _, digits = function.rpartition("_")
    if kind not in ("polygamma", "zeta") or not digits.isdecimal() or str(int(digits)) != digits:
        return False
    number, shift = int(digits), kind == "zeta"
    if not 2 <= number - shift <= LAST:
        return False
    (zeta if shift else polygamma)(number)
    return True


def following(function: str) -> str | None:
    """Return the polygamma or zeta function of the derivative of one of these, or None."""
    kind, _, digits = function.rpartition("_")
    if kind not in ("polygamma", "zeta") or not digits.isdecimal():
        return None
    order = int(digits) + 1
    return f"{kind}_{order}" if order <= LAST + (kind == "zeta") else None
