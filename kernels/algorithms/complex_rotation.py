"""Jacobi rotations of two complex rows, by components of a part; `rotation` has real ones.

Numbers are tuples as in `complex_elimination`; squared norms and cosines are real. Let g = x y^H
with phase p = g / |g|. The rows x and p y have the real inner product |g|, so their real rotation
makes x and y orthogonal. The second row is multiplied by conj(p) again, so that small rotations are
close to the identity.
"""

from mcf.kernels.algorithms import binary_scaling
from mcf.kernels.algorithms.ieee import ADD, DIV, FMA, MUL, SQUARE, SUB, negated
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
from mcf.kernels.algorithms.reflection import one, zero
from mcf.kernels.algorithms.rotation import SEVERAL, TANGENT, tangent, twice
from mcf.kernels.algorithms.selection import either
from mcf.kernels.statements import Complex, family


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


@family(
    "a* b* g** tolerance",
    SEVERAL,
    multiplied=binary_scaling.MULTIPLIED[64],
    squared=SQUARE,
    difference=SUB,
    quotient=DIV,
    product=MUL,
    **TANGENT,
)
def rotation(
    a, b, g, tolerance, *, multiplied, squared, difference, quotient, product, **tangents
):  # fmt: skip
    """Return the results of `complex_rotation1` in expansions."""
    x, y = g
    cosine = complex_angle(a[0], b[0], x[0], y[0])
    wanted = cosine > tolerance
    x, y = either(wanted, x, one(x)), either(wanted, y, zero(y))
    # Scaling prevents underflow of the squares.
    up = binary_scaling.exponent64(rn(absolute(x[0]) + absolute(y[0])))
    x, y = multiplied(x, neg(up)), multiplied(y, neg(up))
    size = tangents["root"](tangents["total"](squared(x), squared(y)))
    t, c = tangent(wanted, quotient(difference(b, a), twice(multiplied(size, up))), **tangents)
    s = quotient(product(t, c), size)
    return c, Complex(product(s, x), product(s, y)), cosine, absolute(t[0])


@family("c* s** x** y**", SEVERAL, fma=FMA, product=MUL)
def rotated(c, s, x, y, fma, product):
    """Return c x - s y and conj(s) x + c y."""
    p, q = negated(s.real), negated(s.imag)
    r = fma(c, x.real, fma(p, y.real, product(s.imag, y.imag)))
    u = fma(c, x.imag, fma(p, y.imag, product(q, y.real)))
    v = fma(c, y.real, fma(s.real, x.real, product(s.imag, x.imag)))
    w = fma(c, y.imag, fma(s.real, x.imag, product(q, x.real)))
    return Complex(r, u), Complex(v, w)


rotation = {1: complex_rotation1} | rotation
rotated = {1: complex_rotated1} | rotated


@family("x** y** z**", fma=FMA)
def fused(x, y, z, fma):
    """Return (Re x) y + z."""
    return Complex(fma(x.real, y.real, z.real), fma(x.real, y.imag, z.imag))


@family("x** y**", add=ADD)
def total(x, y, add):
    """Return x + y."""
    return Complex(add(x.real, y.real), add(x.imag, y.imag))


@family("x**")
def real(x):
    """Return Re x, as a complex number."""
    return Complex(x.real, zero(x.imag))


@family("x** y**")
def mean(x, y):
    """Return |Re| + |Im| of (x + conj(y)) / 2, by first components."""
    real = absolute(rn(rn(x.real[0] + y.real[0]) * const(0.5)))
    return rn(real + absolute(rn(rn(x.imag[0] - y.imag[0]) * const(0.5))))
