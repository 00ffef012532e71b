"""Elementary functions of complex numbers, from real functions of their parts.

Signed zeros, infinities and NaN are those of C99, Annex G; a sign that it leaves open is equal on
every executor. Each is computed in float64, with at least two components, and rounded once to the
format.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from mcf.elementary import fused
from mcf.elementary.operator import function
from mcf.elementary.tables import Components
from mcf.elementary.working import (
    enter,
    exponent,
    head,
    leave,
    mantissa,
    minus,
    sanitized,
    scale,
    scale_all,
    select,
    sign_of,
    signed,
    special,
)
from mcf.kernels import operations as ex
from mcf.kernels.formats import FP64, Format

Arguments = tuple[Components, ...]
Parts = tuple[Components, Components]
# Below 2**-400 a quotient lifted by 2**600 keeps all components; the divisor is at least 2**-700.
_SMALL, _LIFT = 2.0**-400, 600
# A function of both parts of the argument, with as many components each as the result's parts.
Formula = Callable[[Components, Components], Parts]


def complex_function(formula: Formula) -> Formula:
    """Register a formula as the program `complex_<name>`, whose results are both parts."""

    def compute(arguments: Arguments, fmt: Format, terms: int) -> Components:
        count = terms if fmt is FP64 else max(2, terms)
        x, y = (head(enter(a, fmt), count) for a in arguments)
        found = formula(x, y)
        if fmt is FP64:
            return (*found[0], *found[1])
        return (*_narrowed(found[0], fmt, terms), *_narrowed(found[1], fmt, terms))

    compute.__name__ = f"complex_{formula.__name__}"
    compute.__doc__ = formula.__doc__
    function("x", "y", parts=2)(compute)
    return formula


def _narrowed(x: Components, fmt: Format, terms: int) -> Components:
    plain = ~x[0].isfinite() | (x[0] == 0)
    out = leave(sanitized(x, ~plain), fmt, terms)
    return special(plain, x[0].to(fmt.dtype), out)


def real(name: str, *arguments: Components) -> Components:
    """Evaluate a real function with as many components as its argument."""
    return fused.PROGRAMS[name].compute(arguments, FP64, len(arguments[0]))


def held(y: Components, value: Components) -> Components:
    """Return y where it is zero, to keep its sign; else the value."""
    return select(y[0] == 0, y, value)


def modulus(x: Components) -> Components:
    """Return |x|; NaN stays."""
    return signed(x, sign_of(torch.signbit(x[0])))


def sign(y: Components) -> Tensor:
    """Return 1.0 or -1.0 like the sign of y; 1.0 for NaN, whose sign depends on the processor."""
    return sign_of(torch.signbit(y[0]) & ~y[0].isnan())


def with_sign(x: Components, y: Components) -> Components:
    """Return x >= 0 with the sign of y."""
    return signed(x, sign(y))


def turned(x: Components, y: Components) -> Components:
    """Return the angle y for an exponent x: 0 if y is not finite and x is infinite."""
    return sanitized(y, y[0].isfinite() | ~x[0].isinf(), 0.0)


def half(x: Components) -> Components:
    """Return x / 2, where it is not subnormal."""
    return tuple(0.5 * c for c in x)


def squared(x: Components) -> Components:
    """Return x * x, as `torch.square` of an expansion tensor."""
    return ex.mul(x, x)


@complex_function
def exp(x: Components, y: Components) -> Parts:
    """Return e^x (cos y + i sin y), componentwise; real for real z, and 0 for x = -inf."""
    size, angle = real("exp", x), turned(x, y)
    return ex.mul(size, real("cos", angle)), held(y, ex.mul(size, real("sin", angle)))


@complex_function
def sinh(x: Components, y: Components) -> Parts:
    """Return sinh x cos y + i cosh x sin y, componentwise."""
    angle = turned(x, y)
    return (
        held(x, ex.mul(real("sinh", x), real("cos", angle))),
        held(y, ex.mul(real("cosh", x), real("sin", angle))),
    )


@complex_function
def cosh(x: Components, y: Components) -> Parts:
    """Return cosh x cos y + i sinh x sin y, componentwise."""
    angle = turned(x, y)
    imag = ex.mul(real("sinh", x), real("sin", angle))
    zero = (x[0] == 0) | (y[0] == 0)
    imag = special(zero, 0.0 * sign(x) * sign(y), imag)
    return ex.mul(real("cosh", x), real("cos", angle)), imag


@complex_function
def sin(x: Components, y: Components) -> Parts:
    """Return -i sinh(iz) = sin x cosh y + i cos x sinh y, componentwise."""
    first, second = sinh(minus(y), x)
    return second, minus(first)


@complex_function
def cos(x: Components, y: Components) -> Parts:
    """Return cosh(iz) = cos x cosh y - i sin x sinh y, componentwise."""
    return cosh(minus(y), x)


@complex_function
def tanh(x: Components, y: Components) -> Parts:
    """Return (t + i s c q) / (t^2 + c^2 q), t = tanh x, q = 1 / cosh^2 x, s = sin y, c = cos y.

    It is componentwise: the denominator is a sum of squares, and nothing overflows.
    """
    angle = turned(x, y)
    t, s, c = real("tanh", x), real("sin", angle), real("cos", angle)
    q = squared(ex.reciprocal(real("cosh", x)))
    size = ex.add(squared(t), ex.mul(squared(c), q))
    # Next to a pole the bits of a small t below the range would matter.
    lift = torch.where(t[0].abs() < _SMALL, _LIFT, 0)
    first = scale_all(ex.div(scale_all(t, lift), size), -lift)
    return held(x, first), held(y, ex.div(ex.mul(ex.mul(s, c), q), size))


@complex_function
def tan(x: Components, y: Components) -> Parts:
    """Return -i tanh(iz), componentwise."""
    first, second = tanh(minus(y), x)
    return second, minus(first)


@complex_function
def log(x: Components, y: Components) -> Parts:
    """Return log |z| + i atan2(y, x), the principal value; -inf for 0.

    Let p >= q be the moduli of the parts. log |z| is log1p((p - 1)(p + 1) + q^2) / 2 for p from 1/2
    to sqrt(2), which loses no bits near 1, else log p + log1p((q / p)^2) / 2.
    """
    a, b = modulus(x), modulus(y)
    swap = ex.sub(a, b)[0] < 0
    p, q = select(swap, b, a), select(swap, a, b)
    near = (p[0] >= 0.5) & (p[0] <= 1.4140625)
    one, unit = select(near, p, 1.0), torch.ones_like(p[0])
    square = squared(select(near, q, 0.0))
    middle = ex.add(ex.mul(ex.sub(one, unit), ex.add(one, unit)), square)
    plain = (p[0] == 0) | p[0].isinf()
    # Scale, since a quotient of numbers near the bottom of the range would lose its last
    # components.
    top, e = mantissa(sanitized(p, ~plain))
    ratio = ex.div(scale_all(sanitized(q, ~plain, 0.0), -e), top)
    wide = ex.add(real("log", p), half(real("log1p", squared(ratio))))
    size = select(near, half(real("log1p", middle)), wide)
    size = special(x[0].isnan() | y[0].isnan(), math.nan, size)
    return special(x[0].isinf() | y[0].isinf(), math.inf, size), real("atan2", y, x)


def larger(a: Tensor, b: Tensor) -> Tensor:
    """Return the larger of two numbers."""
    return torch.where(a < b, b, a)


@complex_function
def sqrt(x: Components, y: Components) -> Parts:
    """Return the square root whose real part is not negative, componentwise.

    It is t + iy / 2t with t = sqrt((|x| + |z|) / 2); for x < 0 the moduli of the parts are
    exchanged. z is first scaled by an even power of two. Both parts are infinite if y is, as in
    C99.
    """
    size = larger(x[0].abs(), y[0].abs())
    lift = torch.where(size < 2.0**-900, 200, 0)
    scaled = (exponent(scale(size, lift)) - lift + 1) >> 1
    a, b = (modulus(scale_all(v, -2 * scaled)) for v in (x, y))
    t = ex.sqrt(half(ex.add(a, real("hypot", a, b))))
    # Start from y itself: scaled together with a large x it would underflow.
    some = (y[0] != 0) & y[0].isfinite()
    top, e = mantissa(sanitized(modulus(y), some))
    double = sanitized(tuple(2.0 * c for c in t), t[0] != 0)
    other = scale_all(ex.div(sanitized(top, some, 0.0), double), e - scaled)
    other = special(y[0].isnan(), math.nan, other)
    t, back, infinite = scale_all(t, scaled), torch.signbit(x[0]), y[0].isinf()
    first, second = (special(infinite, math.inf, v) for v in (t, other))
    return select(back, second, first), with_sign(select(back, first, second), y)
