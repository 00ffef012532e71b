"""Jacobi rotations of two complex rows, by components of a part; `rotation` has real ones.

Numbers are tuples as in `complex_elimination`; squared norms and cosines are real. Let g = x y^H
with phase p = g / |g|. The rows x and p y have the real inner product |g|, so their real rotation
makes x and y orthogonal. The second row is multiplied by conj(p) again, so that small rotations are
close to the identity.
"""

from __future__ import annotations

from mcf.kernels.algorithms import binary_scaling
from mcf.kernels.algorithms.complex_elimination import family, half
from mcf.kernels.algorithms.complex_elimination import whole as both
from mcf.kernels.algorithms.families import filled, written
from mcf.kernels.algorithms.ieee import ADD, DIV, FMA, MINUS, MUL, RECIPROCAL, SQRT, SQUARE, SUB
from mcf.kernels.algorithms.primitives import (
    ONE,
    ZERO,
    absolute,
    bits64,
    const,
    div,
    neg,
    rn,
    sqrt,
    where,
    whole,
)
from mcf.kernels.algorithms.reflection import CHOSEN, ONE_LIKE, ZERO_LIKE
from mcf.kernels.algorithms.rotation import TWICE


def complex_angle(a, b, x, y):
    """Return |Re| + |Im| of the cosine of the angle of two rows, from leading components.

    At most sqrt(2) above its modulus, and never below: no square that may underflow.
    """
    size = sqrt(rn(a * b))
    return rn(div(rn(absolute(x) + absolute(y)), where(size > ZERO, size, const(1e999))))


def gram(x, y):
    """Return |x|^2, |y|^2 and both parts of x conj(y), of one component a part."""
    return (
        rn(rn(x[0] * x[0]) + rn(x[1] * x[1])),
        rn(rn(y[0] * y[0]) + rn(y[1] * y[1])),
        rn(rn(x[0] * y[0]) + rn(x[1] * y[1])),
        rn(rn(x[1] * y[0]) - rn(x[0] * y[1])),
    )


def added(x, y):
    """Return the sums of the results of `gram`."""
    return rn(x[0] + y[0]), rn(x[1] + y[1]), rn(x[2] + y[2]), rn(x[3] + y[3])


def complex_rotation1(a, b, g, tolerance):
    """Return the cosine, the complex sine, |cos| of the rows' angle, and |t|.

    As `rotation1` for |g|, with the sine times g / |g|; |g| is the larger part times
    sqrt(1 + q^2), q the quotient of both.
    """
    x, y = g
    cosine = complex_angle(a[0], b[0], x, y)
    wanted = cosine > tolerance
    x, y = where(wanted, x, ONE), where(wanted, y, ZERO)
    more, less = absolute(x), absolute(y)
    swapped = more < less
    more, less = where(swapped, less, more), where(swapped, more, less)
    q = rn(div(less, more))
    size = rn(more * sqrt(rn(rn(q * q) + ONE)))
    z = rn(div(rn(b[0] - a[0]), rn(const(2.0) * size)))
    t = rn(div(ONE, rn(absolute(z) + sqrt(rn(rn(z * z) + ONE)))))
    t = where(wanted, where(bits64(z) < whole(0), neg(t), t), ZERO)
    c = rn(div(ONE, sqrt(rn(rn(t * t) + ONE))))
    s = rn(t * c)
    return (c,), (rn(s * rn(div(x, size))), rn(s * rn(div(y, size)))), cosine, absolute(t)


def complex_rotated1(c, s, x, y):
    """Return c x - s y and conj(s) x + c y."""
    p, q = neg(s[0]), neg(s[1])
    first = (
        rn(rn(c[0] * x[0]) + rn(rn(p * y[0]) + rn(s[1] * y[1]))),
        rn(rn(c[0] * x[1]) + rn(rn(p * y[1]) + rn(q * y[0]))),
    )
    second = (
        rn(rn(rn(s[0] * x[0]) + rn(s[1] * x[1])) + rn(c[0] * y[0])),
        rn(rn(rn(s[0] * x[1]) + rn(q * x[0])) + rn(c[0] * y[1])),
    )
    return first, second


def _multiplied(n):
    """Return a function that computes x 2^k in float64 registers."""
    normal, power = binary_scaling.normal64, binary_scaling.power64
    factors = filled(
        binary_scaling.factors, "factors64", "As `factors`.", normal=normal, power=power
    )
    form = vars(binary_scaling)[f"multiplied{n}"]
    return filled(form, f"multiplied{n}_64", "x 2^k.", factors=factors)


def _rotation(n):
    return [
        f"x, y = {half('g', n, 0)}, {half('g', n, 1)}",
        "cosine = angle(a[0], b[0], x[0], y[0])",
        "wanted = cosine > tolerance",
        "x, y = chosen(wanted, x, one(x)), chosen(wanted, y, zero(y))",
        # Scaling prevents underflow of the squares.
        "up = exponent(rn(absolute(x[0]) + absolute(y[0])))",
        "x, y = multiplied(x, neg(up)), multiplied(y, neg(up))",
        "size = root(total(squared(x), squared(y)))",
        "z = quotient(difference(b, a), twice(multiplied(size, up)))",
        "negative = bits64(z[0]) < whole(0)",
        "most = chosen(negative, minus(z), z)",
        "t = inverse(total(most, root(fma(z, z, one(z)))), ONE)",
        "t = chosen(wanted, chosen(negative, minus(t), t), zero(t))",
        "c = inverse(root(fma(t, t, one(t))), ONE)",
        "s = quotient(product(t, c), size)",
        "p, q = product(s, x), product(s, y)",
        f"return c, ({both('p', 'q', n)}), cosine, absolute(t[0])",
    ]


def _rotated(n):
    halves = {name + str(k): half(name, n, k) for name in "sxy" for k in (0, 1)}
    return [
        *(f"{name} = {text}" for name, text in halves.items()),
        "p, q = minus(s0), minus(s1)",
        "r = fma(c, x0, fma(p, y0, product(s1, y1)))",
        "u = fma(c, x1, fma(p, y1, product(q, y0)))",
        "v = fma(c, y0, fma(s0, x0, product(s1, x1)))",
        "w = fma(c, y1, fma(s0, x1, product(q, x0)))",
        f"return ({both('r', 'u', n)}), ({both('v', 'w', n)})",
    ]


_FROM_TWO = (2, 3, 4)


def _several(name, parameters, body, doc, **families):
    def make(n):
        found = {k: f[n] if isinstance(f, dict) else f for k, f in families.items()}
        return written(f"{name}{n}", parameters, body(n), doc, **found)

    return {n: make(n) for n in _FROM_TWO}


ROTATION = {1: complex_rotation1} | _several(
    "complex_rotation",
    "a, b, g, tolerance",
    _rotation,
    "The cosine, the complex sine, |cos| of the angle of two rows, |t|.",
    angle=complex_angle,
    exponent=binary_scaling.exponent64,
    multiplied={n: _multiplied(n) for n in _FROM_TWO},
    squared=SQUARE,
    root=SQRT,
    total=ADD,
    difference=SUB,
    quotient=DIV,
    product=MUL,
    inverse=RECIPROCAL,
    fma=FMA,
    minus=MINUS,
    twice=TWICE,
    chosen=CHOSEN,
    one=ONE_LIKE,
    zero=ZERO_LIKE,
    ONE=ONE,
    absolute=absolute,
    bits64=bits64,
    whole=whole,
    neg=neg,
    rn=rn,
)
ROTATED = {1: complex_rotated1} | _several(
    "complex_rotated",
    "c, s, x, y",
    _rotated,
    "c x - s y and conj(s) x + c y.",
    fma=FMA,
    product=MUL,
    minus=MINUS,
)


def _fused(n):
    return [
        f"real = {half('x', n, 0)}",
        *(f"{'pq'[k]} = fma(real, {half('y', n, k)}, {half('z', n, k)})" for k in (0, 1)),
        f"return {both('p', 'q', n)}",
    ]


def _total(n):
    return [
        *(f"{'pq'[k]} = total({half('x', n, k)}, {half('y', n, k)})" for k in (0, 1)),
        f"return {both('p', 'q', n)}",
    ]


FUSED = family("complex_fused", "x, y, z", _fused, "(Re x) y + z.", fma=FMA)
TOTAL = family("complex_total", "x, y", _total, "x + y.", total=ADD)
REAL = family(
    "complex_real",
    "x",
    lambda n: ["return " + ", ".join(f"x[{k}]" if k < n else "ZERO" for k in range(2 * n))],
    "Re x, as a complex number.",
)
MEAN = family(
    "complex_mean",
    "x, y",
    lambda n: [
        "p = absolute(rn(rn(x[0] + y[0]) * const(0.5)))",
        f"return rn(p + absolute(rn(rn(x[{n}] - y[{n}]) * const(0.5))))",
    ],
    "|Re| + |Im| of (x + conj(y)) / 2, by first components.",
    rn=rn,
    const=const,
    absolute=absolute,
)
