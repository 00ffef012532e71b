"""Elementary functions of complex numbers, from real functions of their parts.

Signed zeros, infinities and NaN are those of C99, Annex G; a sign that it leaves open is equal on
every executor. Each is computed in float64, with at least two components, and rounded once to the
format.

Of inverse functions the sign of a zero part selects the side of the branch cut, and conjugates have
conjugate values. They are componentwise: in the first quadrant the formulas of Kahan (1987, "Branch
cuts for complex elementary functions") add numbers of one sign only, and 1 - x is exact to the last
component. Errors of expm1 and log1p are relative to the modulus of the result, also if it is small:
a cancellation in a part is no larger than the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

import torch
from torch import Tensor

from mcf.elementary import fixed, fused
from mcf.elementary import working as ex
from mcf.elementary.operator import function
from mcf.elementary.tables import Components, constant
from mcf.kernels import operations as op
from mcf.kernels.formats import FP64, Format

Parts = tuple[Components, Components]
# Below 2**-400 a quotient lifted by 2**600 keeps all components; the divisor is at least 2**-700.
_SMALL, _LIFT = 2.0**-400, 600
# A function of both parts of the argument, with as many components each as the result's parts.
Formula = Callable[[Components, Components], Parts]


def complex_function(formula: Formula) -> Formula:
    """Register a formula as the program `complex_<name>`, whose results are both parts."""

    def compute(first: Components, second: Components, fmt: Format, terms: int) -> Components:
        count = terms if fmt is FP64 else max(2, terms)
        x, y = (ex.head(ex.enter(a, fmt), count) for a in (first, second))
        found = formula(x, y)
        if fmt is FP64:
            return (*found[0], *found[1])
        return (*_narrowed(found[0], fmt, terms), *_narrowed(found[1], fmt, terms))

    name, doc = f"complex_{formula.__name__}", formula.__doc__ or ""
    function("x", "y", called=name, doc=doc, parts=2, float32=False)(compute)
    return formula


def _narrowed(x: Components, fmt: Format, terms: int) -> Components:
    plain = ~x[0].isfinite() | (x[0] == 0)
    out = ex.leave(ex.sanitized(x, ~plain), fmt, terms)
    return ex.special(plain, x[0].to(fmt.dtype), out)


def real(name: str, *arguments: Components) -> Components:
    """Evaluate a real function with as many components as its argument."""
    return fused.PROGRAMS[name].compute(arguments, FP64, len(arguments[0]))


def held(y: Components, value: Components) -> Components:
    """Return y where it is zero, to keep its sign; else the value."""
    return ex.select(y[0] == 0, y, value)


def modulus(x: Components) -> Components:
    """Return |x|; NaN stays."""
    return ex.signed(x, ex.sign_of(torch.signbit(x[0])))


def sign(y: Components) -> Tensor:
    """Return 1.0 or -1.0 like the sign of y; 1.0 for NaN, whose sign depends on the processor."""
    return ex.sign_of(torch.signbit(y[0]) & ~y[0].isnan())


def with_sign(x: Components, y: Components) -> Components:
    """Return x >= 0 with the sign of y."""
    return ex.signed(x, sign(y))


def turned(x: Components, y: Components) -> Components:
    """Return the angle y for an exponent x: 0 if y is not finite and x is infinite."""
    return ex.sanitized(y, y[0].isfinite() | ~x[0].isinf(), 0.0)


def half(x: Components) -> Components:
    """Return x / 2, where it is not subnormal."""
    return tuple(0.5 * c for c in x)


def squared(x: Components) -> Components:
    """Return x * x, as `torch.square` of an expansion tensor."""
    return op.mul(x, x)


@complex_function
def exp(x: Components, y: Components) -> Parts:
    """Return e^x (cos y + i sin y), componentwise; real for real z, and 0 for x = -inf."""
    size, angle = real("exp", x), turned(x, y)
    return op.mul(size, real("cos", angle)), held(y, op.mul(size, real("sin", angle)))


@complex_function
def sinh(x: Components, y: Components) -> Parts:
    """Return sinh x cos y + i cosh x sin y, componentwise."""
    angle = turned(x, y)
    return (
        held(x, op.mul(real("sinh", x), real("cos", angle))),
        held(y, op.mul(real("cosh", x), real("sin", angle))),
    )


@complex_function
def cosh(x: Components, y: Components) -> Parts:
    """Return cosh x cos y + i sinh x sin y, componentwise."""
    angle = turned(x, y)
    imag = op.mul(real("sinh", x), real("sin", angle))
    zero = (x[0] == 0) | (y[0] == 0)
    imag = ex.special(zero, 0.0 * sign(x) * sign(y), imag)
    return op.mul(real("cosh", x), real("cos", angle)), imag


@complex_function
def sin(x: Components, y: Components) -> Parts:
    """Return -i sinh(iz) = sin x cosh y + i cos x sinh y, componentwise."""
    first, second = sinh(ex.minus(y), x)
    return second, ex.minus(first)


@complex_function
def cos(x: Components, y: Components) -> Parts:
    """Return cosh(iz) = cos x cosh y - i sin x sinh y, componentwise."""
    return cosh(ex.minus(y), x)


@complex_function
def tanh(x: Components, y: Components) -> Parts:
    """Return (t + i s c q) / (t^2 + c^2 q), t = tanh x, q = 1 / cosh^2 x, s = sin y, c = cos y.

    It is componentwise: the denominator is a sum of squares, and nothing overflows.
    """
    angle = turned(x, y)
    t, s, c = real("tanh", x), real("sin", angle), real("cos", angle)
    q = squared(op.reciprocal(real("cosh", x)))
    size = op.add(squared(t), op.mul(squared(c), q))
    # Next to a pole the bits of a small t below the range would matter.
    lift = torch.where(t[0].abs() < _SMALL, _LIFT, 0)
    first = ex.scale_all(op.div(ex.scale_all(t, lift), size), -lift)
    return held(x, first), held(y, op.div(op.mul(op.mul(s, c), q), size))


@complex_function
def tan(x: Components, y: Components) -> Parts:
    """Return -i tanh(iz), componentwise."""
    first, second = tanh(ex.minus(y), x)
    return second, ex.minus(first)


@complex_function
def log(x: Components, y: Components) -> Parts:
    """Return log |z| + i atan2(y, x), the principal value; -inf for 0.

    Let p >= q be the moduli of the parts. log |z| is log1p((p - 1)(p + 1) + q^2) / 2 for p from 1/2
    to sqrt(2), which loses no bits near 1, else log p + log1p((q / p)^2) / 2.
    """
    a, b = modulus(x), modulus(y)
    swap = op.sub(a, b)[0] < 0
    p, q = ex.select(swap, b, a), ex.select(swap, a, b)
    near = (p[0] >= 0.5) & (p[0] <= 1.4140625)
    one, unit = ex.select(near, p, 1.0), torch.ones_like(p[0])
    square = squared(ex.select(near, q, 0.0))
    middle = op.add(op.mul(op.sub(one, unit), op.add(one, unit)), square)
    plain = (p[0] == 0) | p[0].isinf()
    # Scale, since a quotient of numbers near the bottom of the range would lose its last
    # components.
    top, e = ex.mantissa(ex.sanitized(p, ~plain))
    ratio = op.div(ex.scale_all(ex.sanitized(q, ~plain, 0.0), -e), top)
    wide = op.add(real("log", p), half(real("log1p", squared(ratio))))
    size = ex.select(near, half(real("log1p", middle)), wide)
    size = ex.special(x[0].isnan() | y[0].isnan(), math.nan, size)
    return ex.special(x[0].isinf() | y[0].isinf(), math.inf, size), real("atan2", y, x)


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
    scaled = (ex.exponent(ex.scale(size, lift)) - lift + 1) >> 1
    a, b = (modulus(ex.scale_all(v, -2 * scaled)) for v in (x, y))
    t = op.sqrt(half(op.add(a, real("hypot", a, b))))
    # Start from y itself: scaled together with a large x it would underflow.
    some = (y[0] != 0) & y[0].isfinite()
    top, e = ex.mantissa(ex.sanitized(modulus(y), some))
    double = ex.sanitized(tuple(2.0 * c for c in t), t[0] != 0)
    other = ex.scale_all(op.div(ex.sanitized(top, some, 0.0), double), e - scaled)
    other = ex.special(y[0].isnan(), math.nan, other)
    t, back, infinite = ex.scale_all(t, scaled), torch.signbit(x[0]), y[0].isinf()
    first, second = (ex.special(infinite, math.inf, v) for v in (t, other))
    return ex.select(back, second, first), with_sign(ex.select(back, first, second), y)


# Beyond _HUGE, moduli are divided by 2**_SHIFT to stay finite.
_HUGE, _SHIFT = 2.0**1000, 8
# From this |z| on, terms of 1 / |z|^2 are below the last bit of four components.
_FAR = 2.0**150
# Below this the distance to 1 is scaled before it is squared.
_NEAR = 2.0**-300
# tan(pi / 8) to 600 bits.
_EIGHTH = Fraction(math.isqrt(2 << 1200), 1 << 600) - 1


def _one(like: Components) -> Components:
    return ex.head((torch.ones_like(like[0]),), len(like))


def _ln2(times: int, like: Components) -> Components:
    return constant(times * fixed.to_fraction(fixed.ln2()), len(like), like[0].device)


def _infinite(x: Components, y: Components) -> Tensor:
    return x[0].isinf() | y[0].isinf()


def _unknown(x: Components, y: Components, angle: Components) -> Components:
    """Return an angle, or NaN where x + iy is NaN."""
    return ex.special(x[0].isnan() | y[0].isnan(), math.nan, angle)


class _Arcs(NamedTuple):
    """Intermediate results from which asin and acos of x + iy, x, y >= 0, are computed.

    Attributes:
        sine: a point whose angle is the real part of asin.
        cosine: a point whose angle is half of the real part of acos.
        height: the modulus of the imaginary part of both.
    """

    sine: tuple[Components, Components]
    cosine: tuple[Components, Components]
    height: Components


def _arcs(x: Components, y: Components) -> _Arcs:
    """Return `_Arcs` from a - ib = sqrt(1 - z) and c + id = sqrt(1 + z), all nonnegative.

    asin z = atan2(x, ac + bd) + i asinh(ad + bc), acos z = 2 atan2(a, c) - i asinh(ad + bc).
    """
    infinite = _infinite(x, y)
    wide, high = x[0].isinf(), y[0].isinf()
    x, y = ex.sanitized(x, ~infinite), ex.sanitized(y, ~infinite)
    a, b = sqrt(op.sub(_one(x), x), y)
    c, d = sqrt(op.add(x, _one(x)), y)
    huge = larger(x[0], y[0]) > _HUGE
    down = torch.where(huge, -_SHIFT, 0)
    p, q = ex.scale_all(a, down), ex.scale_all(b, down)
    side = op.add(op.mul(p, c), op.mul(q, d))
    height = ex.special(infinite, math.inf, op.add(op.mul(p, d), op.mul(q, c)))
    more = ex.select(huge, tuple(k.expand(huge.shape) for k in _ln2(_SHIFT, x)), 0.0)
    flat, up = (ex.head((torch.where(v, 1.0, 0.0).to(x[0].dtype),), len(x)) for v in (wide, high))
    eighth = tuple(k.expand(wide.shape) for k in constant(_EIGHTH, len(x), x[0].device))
    return _Arcs(
        (ex.select(infinite, flat, ex.scale_all(x, down)), ex.select(infinite, up, side)),
        (
            ex.select(infinite, ex.select(wide & high, eighth, up), a),
            ex.select(infinite, _one(x), c),
        ),
        op.add(real("asinh", height), more),
    )


def _asin(x: Components, y: Components) -> Parts:
    arcs = _arcs(x, y)
    return held(x, _unknown(x, y, real("atan2", *arcs.sine))), arcs.height


def _acos(x: Components, y: Components) -> Parts:
    """Return acos(x + i|y|), the imaginary part without its sign."""
    arcs = _arcs(modulus(x), modulus(y))
    back, zero = torch.signbit(x[0]), x[0] == 0
    # pi / 2 for a zero x and any y.
    a, c = (ex.select(zero & y[0].isnan(), _one(x), v) for v in arcs.cosine)
    angle = real("atan2", ex.select(back, c, a), ex.select(back, a, c))
    angle = ex.select(zero, angle, _unknown(x, y, angle))
    return tuple(2.0 * v for v in angle), arcs.height


@complex_function
def asin(x: Components, y: Components) -> Parts:
    """Return atan2(x, ac + bd) + i asinh(ad + bc), a - ib = sqrt(1 - z), c + id = sqrt(1 + z)."""
    first, second = _asin(modulus(x), modulus(y))
    return with_sign(first, x), with_sign(second, y)


@complex_function
def asinh(x: Components, y: Components) -> Parts:
    """Return -i asin(iz)."""
    first, second = _asin(modulus(y), modulus(x))
    return with_sign(second, x), with_sign(first, y)


@complex_function
def acos(x: Components, y: Components) -> Parts:
    """Return 2 atan2(a, c) - i asinh(ad + bc), a - ib = sqrt(1 - z), c + id = sqrt(1 + z)."""
    first, second = _acos(x, y)
    return first, with_sign(second, tuple(-v for v in y))


@complex_function
def acosh(x: Components, y: Components) -> Parts:
    """Return i acos(z) or -i acos(z), whichever has a nonnegative real part."""
    first, second = _acos(x, y)
    return second, with_sign(first, y)


def _atanh(x: Components, y: Components) -> Parts:
    """Return atanh for x, y >= 0: log1p(4x / s) / 4 + i atan2(2y, (1 - x)(1 + x) - y^2) / 2.

    s = (1 - x)^2 + y^2. Near 1, where s may vanish, log(2x / sqrt(s)) / 2 replaces the first term;
    far out x / |z|^2, computed from scaled numbers.
    """
    infinite, unknown, zero = _infinite(x, y), y[0].isnan(), x
    x, y = ex.sanitized(x, ~infinite), ex.sanitized(y, ~infinite, 0.0)
    size = larger(x[0], y[0])
    far = infinite | (size > _FAR)
    e = torch.where(far, ex.exponent(size), 0)
    x, y = ex.scale_all(x, -e), ex.scale_all(y, -e)
    one = ex.head((torch.where(far, 0.0, 1.0).to(size.dtype),), len(x))
    low, high = op.sub(one, x), op.add(x, one)
    near = larger(low[0].abs(), y[0]) < _NEAR
    lift = torch.where(near, 800, 0)
    u, v = ex.scale_all(low, lift), ex.scale_all(y, lift)
    s = op.add(op.mul(u, u), op.mul(v, v))
    ratio = op.div(
        ex.scale_all(x, torch.where(near, 1, torch.where(far, 0, 2))),
        ex.select(near, op.sqrt(s), s),
    )
    # The factor 2^100 is left out of 2x / sqrt(s), so that it does not overflow.
    size_log = real(
        "log1p", ex.sanitized(ex.scale_all(ratio, torch.where(near, 700, 0)), ~far, 0.0)
    )
    close = half(op.add(size_log, tuple(k.expand(e.shape) for k in _ln2(100, x))))
    first = ex.select(far, ex.scale_all(ratio, -e), ex.select(near, close, half(half(size_log))))
    angle = real("atan2", ex.scale_all(y, 1 - e), op.sub(op.mul(low, high), op.mul(y, y)))
    # Next to an infinity x is ignored; it may be NaN.
    angle = ex.special(unknown, math.nan, angle)
    return held(zero, ex.special(infinite, 0.0, first)), half(angle)


@complex_function
def atanh(x: Components, y: Components) -> Parts:
    """Return log1p(4x / ((1 - x)^2 + y^2)) / 4 + i atan2(2y, (1 - x)(1 + x) - y^2) / 2."""
    first, second = _atanh(modulus(x), modulus(y))
    return with_sign(first, x), with_sign(second, y)


@complex_function
def atan(x: Components, y: Components) -> Parts:
    """Return -i atanh(iz)."""
    first, second = _atanh(modulus(y), modulus(x))
    return with_sign(second, x), with_sign(first, y)


@complex_function
def expm1(x: Components, y: Components) -> Parts:
    """Return e^z - 1 = (e^x - 1) cos y - 2 sin(y / 2)^2 + i e^x sin y, with small terms."""
    angle = turned(x, y)
    grown, sine = real("expm1", x), real("sin", half(angle))
    size = op.mul(grown, real("cos", angle))
    twice = tuple(2.0 * c for c in squared(sine))
    first = ex.select(y[0] == 0, size, op.add(size, ex.minus(twice)))
    return first, held(y, op.mul(real("exp", x), real("sin", angle)))


@complex_function
def log1p(x: Components, y: Components) -> Parts:
    """Return log(1 + z); near 0 the real part is log(1 + x (2 + x) + y^2) / 2.

    Near means |x| <= 1/2 and |y| <= 1.
    """
    near = (x[0].abs() <= 0.5) & (y[0].abs() <= 1.0)
    one = ex.head((torch.ones_like(x[0]),), len(x))
    a, b = ex.select(near, x, 0.5), ex.select(near, y, 0.0)
    size = op.add(op.mul(a, op.add(a, tuple(2.0 * c for c in one))), squared(b))
    beyond, angle = log(op.add(one, x), y)
    unknown = x[0].isnan() | y[0].isnan()
    first = ex.select(near, half(real("log1p", size)), beyond)
    zero = (x[0] == 0) & (y[0] == 0)
    infinite = x[0].isinf() | y[0].isinf()
    first = ex.special(zero, x[0], ex.special(unknown & ~infinite, math.nan, first))
    return first, angle


def _to_base(x: Components, y: Components, log_base: int) -> Parts:
    inverse = constant(Fraction(fixed.ONE, log_base), len(x), x[0].device)
    factor = tuple(c.expand(x[0].shape) for c in inverse)
    first, second = log(x, y)
    return op.mul(first, factor), held(second, op.mul(second, factor))


@complex_function
def log2(x: Components, y: Components) -> Parts:
    """Return log(z) / log(2)."""
    return _to_base(x, y, fixed.ln2())


@complex_function
def log10(x: Components, y: Components) -> Parts:
    """Return log(z) / log(10)."""
    return _to_base(x, y, fixed.ln10())
