"""Derivatives of the scaled modified Bessel functions, without cancellation.

exp(-x) I_0(x) and exp(x) K_0(x) are integrals of exp(-x t) over t > 0 with positive weights. So
(-1)^m times their derivatives of order m are positive for x > 0, whereas differences of exp(-x)
I_0(x) and exp(-x) I_1(x) lose a factor of x per order. The weight of exp(-x) I_1(x) changes sign
once, so each of its derivatives has one zero z there. Up to 256 the derivatives of the functions'
series are used, for exp(-x) I_1(x) divided by x - z; beyond, those of Hankel's series,

    sqrt(2 pi x) x^m |f^(m)(x)| = (1/2)_m + (3/2)_m c_1 / x + (5/2)_m c_2 / x^2 + ...

and below 1 x^m f^(m)(x) = exp(x) (a_m(x) K_0(x) + b_m(x) x K_1(x)) with polynomials a_m and b_m for
f(x) = exp(x) K_0(x) (NIST's Digital Library of Mathematical Functions, 10.29, 10.32 and 10.40,
https://dlmf.nist.gov/10.29). Derivatives of exp(x) K_1(x) are f^(m) - f^(m+1) for f(x) = exp(x)
K_0(x), two terms of one sign.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from mcf.elementary import bessel, exponential, fixed, gamma, series
from mcf.elementary import working as ex
from mcf.elementary.bessel import below_one_error
from mcf.elementary.error_steps import Steps
from mcf.elementary.exponential import exp_error
from mcf.elementary.format import working
from mcf.elementary.gamma_series import quotient, quotient_about
from mcf.elementary.operator import function
from mcf.elementary.power import raised
from mcf.elementary.tables import Components, _rows, register_table, table
from mcf.kernels.formats import Format

# Coefficients of 1, x, x^2, ...
Polynomial = tuple[int, ...]
# The highest order of a derivative.
LAST = 4
# Bits by which binomial coefficients, up to C(44, 4), slow the fall of a series; coefficients kept.
SPARE = 18.0
DEGREES = 44
# Extra coefficients for the division by x - z; floats of a zero, and its bits.
_MORE = 8
PARTS = 8
_ZERO_BITS = 640


def _combined(a: Polynomial, b: Polynomial) -> Polynomial:
    length = max(len(a), len(b))
    return tuple(
        x + y
        for x, y in zip(a + (0,) * (length - len(a)), b + (0,) * (length - len(b)), strict=True)
    )


def _moved(a: Polynomial, m: int, sign: int) -> Polynomial:
    """Return (sign x - m) a + x a'."""
    return _combined((0, *(sign * c for c in a)), tuple((k - m) * c for k, c in enumerate(a)))


@functools.cache
def factors(kind: str, m: int) -> tuple[Polynomial, Polynomial]:
    """Return a and b of x^m f^(m)(x) for f = exp(x) K_0(x) and f = exp(-x) I_1(x).

    For the former it is exp(x) (a K_0 + b x K_1), for the latter exp(-x) (a I_0 + b I_1).
    """
    if m == 0:
        return ((1,), (0,)) if kind == "k0e" else ((0,), (1,))
    a, b = factors(kind, m - 1)
    if kind == "k0e":
        # K_0' = -K_1 and (x K_1)' = -x K_0.
        return (
            _combined(_moved(a, m - 1, 1), (0, 0, *(-c for c in b))),
            _combined(_moved(b, m - 1, 1), tuple(-c for c in a)),
        )
    # I_0' = I_1 and I_1' = I_0 - I_1 / x.
    return (
        _combined(_moved(a, m - 1, -1), (0, *b)),
        _combined(_combined(_moved(b, m - 1, -1), tuple(-c for c in b)), (0, *a)),
    )


def _value(a: Polynomial, x: Fraction) -> Fraction:
    return sum((c * x**k for k, c in enumerate(a)), Fraction(0))


def _beside_zero(m: int, x: Fraction) -> Fraction:
    """Return a I_0 + b I_1 of `factors`, by power series."""
    a, b = factors("i1e", m)
    one = 1 << (_ZERO_BITS + 64)
    p, q = (x * x / 4).as_integer_ratio()
    term, zero, first, k = one, 0, 0, 0
    while term:
        zero, first = zero + term, first + term // (k + 1)
        k += 1
        term = term * p // (q * k * k)
    return (_value(a, x) * zero + _value(b, x) * first * x / 2) / one


@functools.cache
def zero_of(m: int) -> Fraction:
    """Return the zero of the m-th derivative of exp(-x) I_1(x), by bisection and secant steps."""
    low, high = Fraction(1, 4), Fraction(64)
    for _ in range(24):
        middle = (low + high) / 2
        up = (_beside_zero(m, middle) > 0) == (m % 2 == 0)
        low, high = (low, middle) if up else (middle, high)
    before, at = low, high
    old = _beside_zero(m, before)
    for _ in range(8):
        new = _beside_zero(m, at)
        if new == old:
            break
        following = at - new * (at - before) / (new - old)
        before, old, at = at, new, Fraction(round(following * 2**_ZERO_BITS), 2**_ZERO_BITS)
    return at


def _derived(row: list[int], m: int, half: Fraction, count: int = DEGREES) -> list[int]:
    """Return the coefficients of (-1)^m times the derivative of order m."""
    p, q = ((-half) ** m).as_integer_ratio()
    return [math.perm(k + m, m) * c * q // p for k, c in enumerate(row[m : m + count])]


def _i0e_table(m: int) -> Tensor:
    rows: list[int] = []
    for a, (_, half) in zip(bessel.i_series(DEGREES + LAST), bessel.nodes(), strict=True):
        rows += _derived(a, m, half)
    return _rows([(c, 1 << bessel.TABLE_BITS) for c in rows])


def _i1e_table(m: int) -> Tensor:
    """Return coefficients of the derivative divided by x - z."""
    rows, bits, count = [], bessel.TABLE_BITS, DEGREES + _MORE
    for a, (c, half) in zip(bessel.i_series(count + LAST), bessel.nodes(), strict=True):
        # exp(-x) I_1(x) is the sum of exp(-x) I_0(x) and its derivative.
        slope = [int((k + 1) * b / half) for k, b in enumerate(a[1:])]
        found = _derived([x + y for x, y in zip(a, slope, strict=False)], m, half, count)
        at = c - zero_of(m)
        divide = quotient_about if abs(at) < half else quotient
        rows += divide(found, round(at * (1 << bits)), half, bits)[:DEGREES]
    return _rows([(c, 1 << bits) for c in rows])


def _k0e_table(m: int) -> Tensor:
    rows: list[int] = []
    nodes = [(2**j, Fraction(2**j, 64)) for j in range(bessel.K_OCTAVES) for _ in range(32)]
    for (a, _), (_, half) in zip(bessel.k_series(), nodes, strict=True):
        rows += _derived(a, m, half)
    return _rows([(c, 1 << bessel.K_TABLE_BITS) for c in rows])


def _zero_table(m: int) -> Tensor:
    return _rows([zero_of(m).as_integer_ratio()], PARTS)[:, 0]


def hankel(name: str, m: int, k: int) -> Fraction:
    """Return the coefficient of x^-k in the derivative's Hankel series, divided by (1/2)_m."""
    share = math.prod(Fraction(2 * (k + j) + 1, 2 * j + 1) for j in range(m))
    c = bessel.hankel(int(name[1]), k) * share
    return -c if name[0] == "k" and k % 2 else c


def _far(name: str, m: int, a: Components, terms: int) -> tuple[Components, Tensor]:
    """Return components and an exponent of a derivative's magnitude at a >= 256."""
    share = math.prod((Fraction(2 * j + 1, 2) for j in range(m)), start=Fraction(1))
    pi = fixed.to_fraction(fixed.pi())
    square = (2 * pi if name[0] == "i" else 2 / pi) / share**2
    value, k = bessel.asymptotic(functools.partial(hankel, name, m), square, a, terms)
    normal, e = ex.mantissa(ex.head(a, terms))
    return ex.div(value, raised(normal, m)), k - m * e


def _polynomial(a: Polynomial, x: Components) -> Components:
    """Evaluate by Horner's rule; a monomial needs no additions."""
    lowest = next(k for k, c in enumerate(a) if c)
    *others, last = a[lowest:]
    total = ex.head((torch.full_like(x[0], float(last)),), len(x))
    for c in reversed(others):
        total = ex.mul(total, x)
        total = ex.add(total, torch.full_like(x[0], float(c))) if c else total
    return ex.mul(total, raised(x, lowest)) if lowest else total


def _low(m: int, a: Components, terms: int) -> tuple[Components, Tensor]:
    """Return components and an exponent of (-1)^m (exp(x) K_0(x))^(m), 0 < a <= 1."""
    x = ex.head(a, terms)
    q, log_x = series.scaled(ex.mul(x, x), 0.25), gamma.log_of(a, terms)
    parts = (
        ex.mul(_polynomial(factor, x), bessel.power_series(order, q, log_x))
        for order, factor in enumerate(factors("k0e", m))
    )
    normal, e = ex.mantissa(x)
    value = ex.div(ex.add(*parts), raised(normal, m))
    growth, j = exponential.scaled_exp(a, terms)
    return ex.signed(ex.mul(value, growth), torch.full_like(x[0], (-1.0) ** m)), j - m * e


def _nodes(name: str, m: int) -> series.Nodes:
    return bessel.nodes_of(f"{name}_{m}_series")._replace(degrees=DEGREES, spare=SPARE)


def _first(x: Components, fmt: Format, terms: int, order: int, m: int) -> Components:
    y, w = ex.enter(x, fmt), ex.working_terms(fmt, terms)
    down = torch.signbit(y[0])
    a = ex.signed(y, ex.sign_of(down))
    good = (a[0] > 0) & (a[0] <= float(working().format.max))
    a = ex.sanitized(a, good)
    far = a[0] >= bessel.FAR
    near, name = ex.sanitized(a, ~far), f"i{order}e"
    value = _nodes(name, m).at(near, w)
    if order:
        zero = table(f"{name}_{m}_zero", near[0].device)
        parts = tuple(-zero[j].expand(near[0].shape) for j in range(PARTS))
        value = ex.mul(value, ex.collected((*near, *parts), w))
    beyond, k = _far(name, m, ex.sanitized(a, far, bessel.FAR), w)
    value, k = ex.select(far, beyond, value), torch.where(far, k, 0)
    most = -working().bottom
    out = ex.leave(value, fmt, terms, k.clamp(-most, most))
    # For -x the derivative of exp(-x) I_n(x) is multiplied by (-1)^(n + m).
    side = torch.where(down, (-1.0) ** order, (-1.0) ** m).to(fmt.dtype)
    out = ex.signed(out, side)
    end = torch.where(y[0].isnan(), y[0], 0.0)
    if (order + m) % 2 == 0:
        end = torch.where(y[0] == 0, _at_zero(order, m), end)
    return ex.special(~good, end.to(fmt.dtype), out)


def _at_zero(order: int, m: int) -> float:
    """Return the derivative of exp(-x) I_n(x) at 0: a mean of (1 - cos t)^m (cos t)^n."""
    mean = [math.comb(2 * j, j) / 2**j for j in (m, m + 1)]
    value: float = mean[0] - mean[1] if order else mean[0]
    return -value if m % 2 else value


def _second(x: Components, fmt: Format, terms: int, m: int) -> Components:
    y, w = ex.enter(x, fmt), ex.working_terms(fmt, terms)
    good = (y[0] > 0) & (y[0] <= float(working().format.max))
    a = ex.sanitized(y, good)
    low, far = a[0] < 1.0, a[0] >= bessel.FAR
    value, k = _low(m, ex.sanitized(a, low), w)
    middle = _nodes("k0e", m).at(ex.sanitized(a, ~(low | far)), w)
    beyond, j = _far("k0e", m, ex.sanitized(a, far, bessel.FAR), w)
    value = ex.select(low, value, ex.select(far, beyond, middle))
    k, most = torch.where(low, k, torch.where(far, j, 0)), -working().bottom
    sign = torch.full_like(a[0], (-1.0) ** m)
    out = ex.signed(ex.leave(value, fmt, terms, k.clamp(-most, most)), sign.to(fmt.dtype))
    end = torch.where(y[0] == 0, math.inf, torch.where(y[0] > 0, 0.0, math.nan))
    return ex.special(~good, (end * sign).to(fmt.dtype), out)


def slope_error(e: Steps, name: str, m: int) -> tuple[float, float]:
    """Return the error of a derivative: nodes, Hankel's over a root and x^m, K's below 1."""
    near = e.at_table(_nodes(name, m))
    near += (e.mul() + e.collect()) * (name == "i1e")
    coefficient = functools.partial(hankel, name, m)
    far = e.polynomial(1 / bessel.FAR, bessel.BITS, coefficient, 0.0, e.div())
    far += e.sqrt() + (e.mul() + e.constant()) / 2 + 2 * e.div() + (m - 1) * e.mul()
    return max(near, far, _slope_below_one(e, m) if name == "k0e" else 0.0), 0.0


def _slope_below_one(e: Steps, m: int) -> float:
    """Return the error of exp(x) (a K_0 + b x K_1) / x^m, with terms up to several times the sum.

    As x falls only b x K_1 remains. The ratio of the terms to the sum grows up to x = 1, where
    K_0(1) = 0.4210 and K_1(1) = 0.6019.
    """
    a, b = factors("k0e", m)
    zero, one = 0.42102443824070833, 0.6019072301972346
    left = abs(sum(a) * zero + sum(b) * one)
    parts = []
    for order, factor in enumerate((a, b)):
        steps = sum(1 for c in factor if c)
        size = sum(map(abs, factor)) * (one if order else zero)
        # Horner's rule adds to at most the sum of its terms.
        found = len(factor) * e.mul() + steps * e.add() + e.mul()
        parts.append(size * (found + below_one_error(e, order)))
    add = e.add() + m * e.mul() + e.div() + exp_error(e) + e.mul()
    return sum(parts) / left + add


def _of_order(kind: str, m: int, x: Any, of: Any) -> Any:
    """Return the m-th derivative of a scaled function at an expansion tensor.

    Orders above `LAST` use the differential equation, which cancels for large x: |x| f^(m) + (2 |x|
    + m - 1) s f^(m-1) + (2 m - 3) f^(m-2) = 0 with s = sign(x). For exp(x) K_0(x) the terms 2 |x|
    and (2 m - 3) have the other sign.
    """
    if m <= LAST:
        return getattr(of, f"{kind}_{m}")(x)
    if kind == "i1e":
        return x.sign() * _of_order("i0e", m, x, of) + _of_order("i0e", m + 1, x, of)
    near, far = _of_order(kind, m - 1, x, of), (2 * m - 3) * _of_order(kind, m - 2, x, of)
    if kind == "k0e":
        return ((2 * x - (m - 1)) * near + far) / x
    return -((2 * x.abs() + (m - 1)) * x.sign() * near + far) / x.abs()


@functools.cache
def slope(name: str, m: int) -> Callable[..., Components]:
    """Return the derivative of an order up to `LAST` of i0e, i1e or k0e, on component tuples."""

    def compute(x: Components, fmt: Format, terms: int) -> Components:
        if name == "k0e":
            return _second(x, fmt, terms, m)
        return _first(x, fmt, terms, int(name[1]), m)

    compute.__name__ = f"{name}_{m}"
    what = {"i0e": "exp(-|x|) I_0(x)", "i1e": "exp(-|x|) I_1(x)", "k0e": "exp(x) K_0(x)"}[name]
    compute.__doc__ = f"""The derivative of order {m} of {what}.

    Relative to the result everywhere, also next to the zeros of those of exp(-|x|) I_1(x). At 0 the
    mean of both sides.
    """
    makers: dict[str, Any] = {"i0e": _i0e_table, "i1e": _i1e_table, "k0e": _k0e_table}
    made: dict[str, Any] = {f"{name}_{m}_series": functools.partial(makers[name], m)}
    if name == "i1e":
        made[f"{name}_{m}_zero"] = functools.partial(_zero_table, m)
    for key, maker in made.items():
        register_table(key, maker)
    return function(
        "x",
        auxiliary=True,
        bound=lambda e: slope_error(e, name, m),
        derivative=lambda x, of: _of_order(name, m + 1, x, of),
    )(compute)


for _name in ("i0e", "i1e", "k0e"):
    for _m in range(1, LAST + 1):
        slope(_name, _m)
