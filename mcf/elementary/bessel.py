"""Modified Bessel functions and their derivatives: series at nodes up to 256, then Hankel's.

i0e(x) = exp(-|x|) I_0(x) and i1e(x) / x have no zero. From 256 on, sqrt(2 pi x) exp(-x) I_n(x) is
Hankel's asymptotic series (NIST's Digital Library of Mathematical Functions, 10.25 and 10.40,
https://dlmf.nist.gov/10.40).

Up to 1, for the second kind with q = x^2/4 and the digamma function,

    K_0(x) = sum (log 2 + digamma(k + 1)) q^k / k!^2 - log(x) I_0(x)
    x K_1(x) = 1 - 2 q (sum (log 2 + (digamma(k + 1) + digamma(k + 2))/2) q^k / (k! (k + 1)!)
                        - log(x) sum q^k / (k! (k + 1)!))

where all terms are positive.

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

from mcf.elementary import exponential, fixed, gamma, power, series
from mcf.elementary import working as ex
from mcf.elementary.bessel_series import LAST, Polynomial, factors, named, nodes_of, slope_hankel
from mcf.elementary.declarations import COMPOSED, OBSERVED, Composed, composed
from mcf.elementary.error_steps import Steps
from mcf.elementary.exponential import exp_error
from mcf.elementary.format import working
from mcf.elementary.gamma_series import Series
from mcf.elementary.logarithm import log_error
from mcf.elementary.operator import function
from mcf.elementary.tables import Components, constant
from mcf.kernels.formats import Format

# From FAR on Hankel's series is used; BITS is -log2 of 1 / FAR.
FAR = 256.0
BITS = 8.0
# -log2 of q in the range of the power series.
LOW_BITS = 2.0


def _far(name: str, m: int, a: Components, terms: int) -> tuple[Components, Tensor]:
    """Return components and an exponent of a derivative's magnitude at a >= 256."""
    large, raised = a[0] > working().vast, working().raised
    near = ex.sanitized(ex.head(a, terms), ~large, FAR)
    one = ex.head((torch.ones_like(a[0]),), terms)
    inverse = ex.sanitized(ex.div(one, near), ~large, 0.0)
    value = series.polynomial(inverse, BITS, functools.partial(slope_hankel, name, m))
    scaled = ex.scale_all(ex.head(a, terms), torch.where(large, -raised, 0))
    share = math.prod((Fraction(2 * j + 1, 2) for j in range(m)), start=Fraction(1))
    pi = fixed.to_fraction(fixed.pi())
    square = (2 * pi if name[0] == "i" else 2 / pi) / share**2
    factor = constant(square, terms, a[0].device)
    value, k = ex.div(value, ex.sqrt(ex.mul(scaled, factor))), torch.where(large, -raised // 2, 0)
    if m == 0:
        return value, k
    normal, e = ex.mantissa(ex.head(a, terms))
    return ex.div(value, power.raised(normal, m)), k - m * e


def _first(
    x: Components, fmt: Format, terms: int, order: int, m: int = 0, *, scaled: bool = True
) -> Components:
    """Return I_n(x), or exp(-|x|) I_n(x), or the derivative of order m of the latter."""
    y, w = ex.enter(x, fmt), ex.working_terms(fmt, terms)
    down = torch.signbit(y[0])
    a = ex.signed(y, ex.sign_of(down))
    limit = float(working().format.max) if scaled else working().exp_limit
    good = (a[0] > 0) & (a[0] <= limit)
    a = ex.sanitized(a, good)
    far = a[0] >= FAR
    near, name = ex.sanitized(a, ~far), f"i{order}e"
    value, k = nodes_of(name, m).at(near, w), torch.zeros_like(down, dtype=torch.int64)
    if order and m:
        value = ex.mul(value, series.less_zero(f"{name}_{m}_zero", near, w))
    elif order:
        lifted, lift = ex.lifted(ex.head(near, w))
        value, k = ex.mul(value, lifted), -lift
    beyond, e = _far(name, m, ex.sanitized(a, far, FAR), w)
    value, k = ex.select(far, beyond, value), torch.where(far, e, k)
    if not scaled:
        growth, e = exponential.scaled_exp(a, w)
        value, k = ex.mul(value, growth), k + e
    most = -working().bottom
    out = ex.leave(value, fmt, terms, k.clamp(-most, most))
    # For -x the derivative of exp(-x) I_n(x) is multiplied by (-1)^(n + m).
    side = torch.where(down, (-1.0) ** order, (-1.0) ** m).to(y[0].dtype)
    out = ex.signed(out, side.to(fmt.dtype))
    end = torch.zeros_like(y[0]) if m else side * (0.0 if scaled else math.inf)
    end = torch.where(y[0].isnan(), y[0], end)
    if m == 0:
        end = torch.where(y[0] == 0, y[0] if order else 1.0, end)
    elif (order + m) % 2 == 0:
        end = torch.where(y[0] == 0, _at_zero(order, m), end)
    return ex.special(~good, end.to(fmt.dtype), out)


def _at_zero(order: int, m: int) -> float:
    """Return the derivative of exp(-x) I_n(x) at 0: a mean of (1 - cos t)^m (cos t)^n."""
    mean = [math.comb(2 * j, j) / 2**j for j in (m, m + 1)]
    value: float = mean[0] - mean[1] if order else mean[0]
    return -value if m % 2 else value


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
    total = ex.add(ex.minus(ex.mul(log_x, growing)), beside)
    if order == 0:
        return total
    return ex.add(series.scaled(ex.mul(q, total), -2.0), torch.ones_like(q[0]))


def _factor(a: Polynomial, x: Components) -> Components:
    """Return a polynomial in x; a monomial needs no additions."""
    lowest = next(k for k, c in enumerate(a) if c)
    total = series.whole_polynomial(a[lowest:], x)
    return ex.mul(total, power.raised(x, lowest)) if lowest else total


def _low(
    order: int, m: int, a: Components, terms: int, *, scaled: bool
) -> tuple[Components, Tensor]:
    """Return components and an exponent of K_n(a), or its scaled derivative, for 0 < a <= 1."""
    x, divisor = ex.head(a, terms), m or order
    q, log_x = series.scaled(ex.mul(x, x), 0.25), gamma.log_of(a, terms)
    k = torch.zeros_like(a[0], dtype=torch.int64)
    if m == 0:
        value = power_series(order, q, log_x)
    else:
        parts = (
            ex.mul(_factor(factor, x), power_series(n, q, log_x))
            for n, factor in enumerate(factors("k0e", m))
        )
        value = ex.add(*parts)
    if divisor:
        normal, e = ex.mantissa(x)
        value, k = ex.div(value, power.raised(normal, divisor)), -divisor * e
    if not scaled:
        return value, k
    growth, e = exponential.scaled_exp(a, terms)
    value = ex.mul(value, growth)
    return (ex.minus(value) if m % 2 else value), k + e


def _second(
    x: Components, fmt: Format, terms: int, order: int, m: int = 0, *, scaled: bool = True
) -> Components:
    """Return K_n(x), or exp(x) K_n(x), or the derivative of order m of exp(x) K_0(x)."""
    y, w = ex.enter(x, fmt), ex.working_terms(fmt, terms)
    limit = float(working().format.max) if scaled else working().exp_limit
    good = (y[0] > 0) & (y[0] <= limit)
    a = ex.sanitized(y, good)
    low, far, name = a[0] < 1.0, a[0] >= FAR, f"k{order}e"
    value, k = _low(order, m, ex.sanitized(a, low), w, scaled=scaled)
    middle = nodes_of(name, m).at(ex.sanitized(a, ~(low | far)), w)
    beyond, e = _far(name, m, ex.sanitized(a, far, FAR), w)
    value = ex.select(low, value, ex.select(far, beyond, middle))
    k, most = torch.where(low, k, torch.where(far, e, 0)), -working().bottom
    if not scaled:
        # The power series give K_n itself, the others exp(x) K_n(x).
        growth, e = exponential.scaled_exp(ex.sanitized(ex.minus(a), ~low, 0.0), w)
        value = ex.select(low, value, ex.mul(value, growth))
        k = k + torch.where(low, 0, e)
    sign = (-1.0) ** m
    out = ex.leave(value, fmt, terms, k.clamp(-most, most))
    out = ex.minus(out) if m % 2 else out
    end = torch.where(y[0] > 0, 0.0 * sign, math.nan)
    end = torch.where(y[0] == 0, sign * math.inf, end)
    return ex.special(~good, end.to(fmt.dtype), out)


def _far_error(e: Steps, name: str, m: int) -> float:
    """Return the error of Hankel's series over a root and x^m."""
    coefficient = functools.partial(slope_hankel, name, m)
    tail, half = (
        e.polynomial(1 / FAR, BITS, coefficient, 0.0, e.div()),
        (e.mul() + e.constant()) / 2,
    )
    if m == 0:
        return tail + e.sqrt() + half + e.div()
    return tail + (e.sqrt() + half + 2 * e.div() + (m - 1) * e.mul())


def first_error(e: Steps, order: int, *, scaled: bool) -> tuple[float, float]:
    """Return the error of I_n: series of exp(-x) I_n(x) / x^n, Hankel's, times exp(x)."""
    name = f"i{order}e"
    near = e.at_table(nodes_of(name)) + e.mul() * order
    found = max(near, _far_error(e, name, 0))
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
    name = f"k{order}e"
    low = below_one_error(e, order) + e.div() * order
    growth = exp_error(e) + e.mul()
    high = max(e.at_table(nodes_of(name)), _far_error(e, name, 0))
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


def slope_error(e: Steps, name: str, m: int) -> tuple[float, float]:
    """Return the error of a derivative: nodes, Hankel's over a root and x^m, K's below 1."""
    near = e.at_table(nodes_of(name, m)) + (e.mul() + e.collect()) * (name == "i1e")
    below = _slope_below_one(e, m) if name == "k0e" else 0.0
    return max(near, _far_error(e, name, m), below), 0.0


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


# Functions by kind, order and scaling: the sentence that describes one, its names in PyTorch, and
# derivative and bound of the derivative.
_BEYOND = "; infinite beyond the range."
_POLE = "; infinite at zeros, NaN below."
FUNCTIONS: dict[str, tuple[str, tuple[str, ...], str, Any, Any]] = {
    "i0": (
        f"Return the modified Bessel function I_0(x){_BEYOND}",
        ("i0",), "modified_bessel_i0", lambda x, of: torch.special.i1(x), ("i1",),
    ),
    "i0e": (
        "Return exp(-|x|) I_0(x).", ("i0e",), "", lambda x, of: of.i0e_1(x), ("i0e_1",),
    ),
    "i1": (
        "Return the modified Bessel function I_1(x), odd; relative error also near 0.",
        ("i1",), "modified_bessel_i1", _i1_slope, OBSERVED,
    ),
    "i1e": (
        "Return exp(-|x|) I_1(x).", ("i1e",), "", lambda x, of: of.i1e_1(x), ("i1e_1",),
    ),
    "k0": (
        f"Return the modified Bessel function K_0(x){_POLE}",
        (), "modified_bessel_k0", lambda x, of: -of.k1(x), ("k1",),
    ),
    "k0e": (
        "Return exp(x) K_0(x).",
        (), "scaled_modified_bessel_k0", lambda x, of: of.k0e_1(x), ("k0e_1",),
    ),
    "k1": (
        f"Return the modified Bessel function K_1(x){_POLE}",
        (), "modified_bessel_k1", lambda x, of: -of.k0(x) - of.k1(x) / x,
        # Terms of one sign.
        lambda real: composed(max(real("k0"), composed(real("k1"), real("div"))), real("add")),
    ),
    "k1e": (
        "Return exp(x) K_1(x).", (), "scaled_modified_bessel_k1",
        lambda x, of: of.k0e_1(x) - of.k0e_2(x),
        # Numbers of different signs.
        lambda real: composed(max(real("k0e_1"), real("k0e_2")), real("add")),
    ),
}  # fmt: skip


def _declare(name: str) -> Callable[..., Components]:
    doc, torch_names, undifferentiated, derivative, slope = FUNCTIONS[name]
    order, scaled = int(name[1]), name.endswith("e")
    compute, error = (_first, first_error) if name[0] == "i" else (_second, second_error)
    return function(
        "x",
        called=name,
        doc=doc,
        torch=torch_names,
        undifferentiated=(undifferentiated,) if undifferentiated else (),
        derivative=derivative,
        slope=slope,
        bound=lambda e: error(e, order, scaled=scaled),
    )(lambda x, fmt, terms: compute(x, fmt, terms, order, scaled=scaled))


def _declare_slope(name: str, m: int) -> None:
    what = {"i0e": "exp(-|x|) I_0(x)", "i1e": "exp(-|x|) I_1(x)", "k0e": "exp(x) K_0(x)"}[name]
    compute = _first if name[0] == "i" else _second
    function(
        "x",
        called=named(name, m),
        doc=f"""The derivative of order {m} of {what}.

    Relative to the result everywhere, also next to the zeros of those of exp(-|x|) I_1(x). At 0 the
    mean of both sides.
    """,
        auxiliary=True,
        bound=lambda e: slope_error(e, name, m),
        derivative=lambda x, of: _of_order(name, m + 1, x, of),
    )(lambda x, fmt, terms: compute(x, fmt, terms, int(name[1]), m))


# Names of the module, where the site's reference looks for them.
i0, i0e, i1, i1e, k0, k0e, k1, k1e = map(_declare, FUNCTIONS)
for _name in ("i0e", "i1e", "k0e"):
    for _m in range(1, LAST + 1):
        _declare_slope(_name, _m)
