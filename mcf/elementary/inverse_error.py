"""erfinv and ndtri: Taylor series at nodes up to 1/2, beyond one high-order step from a float.

With q = 1 - y and w(x) = exp(x^2) erfc(x), x0 near the result,

    d = (erfc(x0) - q) / (2/sqrt(pi) exp(-x0^2)) = sqrt(pi)/2 (w(x0) - q exp(x0^2))

and erfinv(y) = x0 + d + P_2(x0) d^2/2! + P_3(x0) d^3/3! + ..., P_1 = 1, P_(n+1) = P_n' + 2 n x P_n
(Carlitz, "The inverse of the error function", Pacific J. Math. 13, 1963,
doi:10.2140/pjm.1963.13.459). x0 comes from Halley's iteration on log erfc(x) = log q with one
component, in operations that all executors share.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from mcf.elementary import error, exponential, fixed, logarithm, series
from mcf.elementary import working as ex
from mcf.elementary.declarations import COMPOSED, OBSERVED, Composed
from mcf.elementary.error_steps import Steps
from mcf.elementary.exponential import exp_error
from mcf.elementary.format import WORKING, working
from mcf.elementary.gamma_series import quotient
from mcf.elementary.operator import function
from mcf.elementary.tables import Components, constant, register_tables, table_of
from mcf.kernels.formats import Format

# Up to NEAR the table is used: 32 intervals.
NEAR = 0.5
STEPS = 32
DEGREES = 40
_BITS = 448
# Numerators and divisor of P_n(x) / n!, a polynomial in x^2; for even n times x.
_INVERSE = {
    3: ((1, 4), 3),
    4: ((7, 12), 6),
    5: ((7, 92, 96), 30),
    6: ((127, 652, 480), 90),
    7: ((127, 3480, 10224, 5760), 630),
    8: ((4369, 44808, 88848, 40320), 2520),
}


def _series() -> Tensor:
    """Return Taylor coefficients of erfinv(y) / y at (j + 1/2) / 64, in (y - node) * 128.

    They are continued from node to node, from x' = p, p' = 2 x p^2, p = sqrt(pi)/2 exp(x^2).
    """
    one, unit = 1 << _BITS, Fraction(1, 128)
    half_root = fixed.quotient(fixed.ONE, fixed.two_over_root_pi()) >> (fixed.BITS - _BITS)
    x, slope, rows = 0, half_root, list[list[int]]()
    for j in range(-1, STEPS):
        xs, ps, squares = [x], [slope], [slope * slope >> _BITS]
        count = 110
        for k in range(count):
            xs.append((ps[k] >> 7) // (k + 1))
            total = sum(a * b for a, b in zip(xs, reversed(squares), strict=False)) >> _BITS
            ps.append((total >> 6) // (k + 1))
            squares.append(sum(a * b for a, b in zip(ps, reversed(ps), strict=True)) >> _BITS)
        if j >= 0:
            node = Fraction(2 * j + 1, 128)
            rows.append(quotient(xs[:DEGREES], int(node * one), unit, _BITS))
        # The first node is one unit away from 0, and the nodes are two units apart.
        step = 1 if j < 0 else 2
        x = sum(c * step**k for k, c in enumerate(xs))
        slope = sum(c * step**k for k, c in enumerate(ps))
    return table_of(rows, _BITS)


register_tables(erfinv_series=_series)
_NODES = series.Nodes("erfinv_series", 0, DEGREES)


def _taylor(a: Components, terms: int) -> Components:
    """Return erfinv(a) / a for 0 <= a <= 1/2."""
    j = (a[0] * 64).floor().clamp(0, STEPS - 1)
    v = series.scaled(ex.beside(a, (j + 0.5) * (1 / 64), terms), 128.0)
    return _NODES.about(j.to(torch.int64), v)


def start(q: Tensor, e: Tensor) -> Tensor:
    """Return a float near the inverse of erfc at q * 2**e <= 1/2, 1 <= q < 2.

    Halley's iteration for log erfc, whose derivative is -r = -2/(sqrt(pi) w), and r' = r (r - 2 x).
    """
    (log_q,), _ = logarithm.scaled_log((q,), q, 1, 0, e)
    # `torch.sqrt` is not used: MKL does not round it correctly.
    (root,) = ex.sqrt((-log_q,))
    # The error is at most 0.04 everywhere.
    x = root - 0.4 / (1.0 + 0.17 * root)
    slope = 2.0 / math.sqrt(math.pi)
    for _ in range(2):
        (w,) = error.erfcx_near((x,))
        (log_w,), _ = logarithm.scaled_log((w,), w, 1)
        g = (log_w - x * x) - log_q
        r = slope / w
        x = x + 2.0 * g / (2.0 * r - g * (2.0 * x - r))
    return x


def _inverted(x: Tensor, d: Components) -> Components:
    """Return the inverse of erf, x + d + P_2(x) d^2/2! + ..., for |x d| <= 2**-start_bits."""
    terms, p, start_bits = len(d), working().format.p, working().start_bits
    wanted = p * terms + 8

    def needed(n: int) -> int:
        return min(terms, -int(-(wanted - start_bits * (n - 1)) // p))

    square = ex.two_prod(x, x)
    last = max(n for n in range(1, 9) if needed(n) > 0)
    total: Components = ()
    for n in range(last, 2, -1):
        count = needed(n)
        numerators, divisor = _INVERSE[n]
        c = series.whole_polynomial(numerators, ex.head(square, count))
        if n % 2 == 0:
            c = ex.mul(c, x)
        c = ex.mul(c, constant(Fraction(1, divisor), count, x.device))
        if total:
            c = ex.add(c, ex.mul(ex.head(total, count), d[:count]))
        total = c
    count = needed(2)
    second = ex.head((x,), count)
    if total:
        second = ex.add(ex.mul(ex.head(total, count), d[:count]), x)
    tail = ex.mul(ex.mul(ex.head(second, terms), d), d)
    return ex.add(ex.add(tail, d), x)


def _beyond(q: Components, terms: int) -> Components:
    """Return the inverse of erfc at 0 < q <= 1/2."""
    m, e = ex.mantissa(q)
    x = start(m[0], e)
    w = error.erfcx_near(ex.head((x,), terms))
    growth, k = exponential.scaled_exp(ex.two_prod(x, x), terms)
    gauss = ex.scale_all(ex.mul(m, growth), e + k)
    half_root = 1 / fixed.to_fraction(fixed.two_over_root_pi())
    d = ex.mul(ex.add(w, series.scaled(gauss, -1.0)), constant(half_root, terms, x.device))
    return _inverted(x, d)


def _inverse(a: Components, q: Components, good: Tensor, w: int) -> tuple[Components, Tensor]:
    """Return components and an exponent of erfinv(a) for 0 <= a <= 1, with q = 1 - a."""
    near = a[0] < NEAR
    v = ex.sanitized(ex.head(a, w), near, 0.25)
    lifted, lift = ex.lifted(v)
    inner = ex.mul(lifted, _taylor(v, w))
    outer = _beyond(ex.sanitized(q, good & ~near, 0.25), w)
    return ex.select(near, inner, outer), -lift


def _inverted_error(e: Steps) -> float:
    """Return the error of x0 + d + ... with d = sqrt(pi)/2 (w(x0) - q exp(x0^2))."""
    # Both are w(x0), and sqrt(pi)/2 w(x) / x is at most 1.15, at y = 1/2. The error of d itself and
    # the truncated series are 2**-30 of the steps' errors, 2**-6 in float32.
    both = e.at_table(error.ERFCX) + exp_error(e) + e.collect() + e.mul() + e.add()
    return 1.15 * both * (1 + 2.0 ** (8 - WORKING[e.fmt].start_bits)) + e.add()


def ndtri_error(e: Steps) -> tuple[float, float]:
    """Return the error of ndtri, sqrt(2) times erfinv of 2 x - 1."""
    # a erfinv'(a) / erfinv(a) is at most 1.17 up to a = 1/2.
    near = e.at_table(_NODES) + e.mul() + 1.17 * e.collect()
    return max(near, _inverted_error(e)) + e.mul() + e.constant(), 0.0


def _erfinv_slope(x: Any, of: Any) -> Any:
    """Return sqrt(pi)/2 exp(y^2), y = erfinv(|x|), as sqrt(pi)/2 erfcx(y) / (1 - |x|)."""
    size = x.abs()
    below = (1 - size) * fixed.to_fraction(fixed.two_over_root_pi())
    return torch.where(size == 1, torch.inf, of.erfcx(torch.erfinv(size)) / below)


def _ndtri_slope(p: Any, of: Any) -> Any:
    """Return sqrt(2 pi) exp(y^2 / 2) for y = ndtri(p).

    It is computed as sqrt(pi / 2) erfcx(|y| / sqrt(2)) / min(p, 1 - p), without y^2.
    """
    z = of.ndtri(p).abs() * error.half_root()
    least = torch.where(p > 0.5, 1 - p, p)
    factor = fixed.to_fraction(fixed.root(fixed.quotient(fixed.pi(), 2 * fixed.ONE)))
    return torch.where(least == 0, torch.inf, factor * (of.erfcx(z) / least))


COMPOSED["erfinv_1"] = Composed(
    _erfinv_slope, lambda x, of: 2 * torch.erfinv(x) * of.erfinv_1(x).square()
)
COMPOSED["ndtri_1"] = Composed(_ndtri_slope, lambda p, of: of.ndtri(p) * of.ndtri_1(p).square())


@function(
    "x",
    torch=("erfinv",),
    bound=lambda e: (max(e.at_table(_NODES) + e.mul(), _inverted_error(e)), 0.0),
    proven=False,
    derivative=lambda x, of: of.erfinv_1(x),
    slope=OBSERVED,
)
def erfinv(x: Components, fmt: Format, terms: int) -> Components:
    """Return the inverse error function of x; infinite at 1 and -1, NaN beyond.

    The error is relative to the result, also for 1 - |x| as small as components hold.
    """
    y, w = ex.enter(x, fmt), ex.working_terms(fmt, terms)
    a, sign = ex.magnitude(y)
    one = torch.ones_like(a[0])
    inside = (a[0] > 0) & (a[0] <= 1.0)
    a = ex.sanitized(a, inside, 0.25)
    q = ex.collected((one, *series.scaled(a, -1.0)), w)
    good = inside & (q[0] > 0)
    value, k = _inverse(a, q, good, w)
    out = ex.leave(value, fmt, terms, k)
    out = ex.signed(out, sign.to(fmt.dtype))
    edge = torch.where(inside & (q[0] == 0), sign * math.inf, math.nan).to(fmt.dtype)
    return ex.special(~good, torch.where((x[0] == 0) | x[0].isnan(), x[0], edge), out)


@function(
    "x",
    torch=("ndtri",),
    bound=ndtri_error,
    proven=False,
    derivative=lambda x, of: of.ndtri_1(x),
    slope=OBSERVED,
)
def ndtri(x: Components, fmt: Format, terms: int) -> Components:
    """Return the quantile of the normal distribution; infinite at 0 and 1, NaN beyond.

    sqrt(2) erfinv(2 x - 1), where 2 x - 1 and 1 - x are exact sums: the error is relative to the
    result, also next to 1/2, and for x and 1 - x as small as components hold.
    """
    y, w = ex.enter(x, fmt), ex.working_terms(fmt, terms)
    one = torch.ones_like(y[0])
    inside = (y[0] > 0) & (y[0] <= 1.0)
    twice = series.scaled(ex.sanitized(y, inside, 0.25), 2.0)
    a = ex.collected((-one, *twice), w)
    down = a[0] < 0
    a = ex.signed(a, ex.sign_of(down))
    above = ex.collected((one * 2.0, *series.scaled(twice, -1.0)), w)
    q = ex.select(down, ex.head(twice, w), above)
    good = inside & (q[0] > 0)
    value, k = _inverse(a, q, good, w)
    root = constant(fixed.to_fraction(fixed.root(2 * fixed.ONE)), w, one.device)
    out = ex.leave(ex.mul(value, root), fmt, terms, k)
    out = ex.signed(out, ex.sign_of(down).to(fmt.dtype))
    edge = torch.where(inside & (q[0] == 0), math.inf, math.nan)
    edge = torch.where(y[0] == 0, -math.inf, edge)
    return ex.special(~good, torch.where(x[0].isnan(), x[0], edge.to(fmt.dtype)), out)
