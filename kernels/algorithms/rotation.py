"""Jacobi rotations of two rows, of one float64 component or of several."""

from mcf.kernels.algorithms.ieee import ADD, DIV, FMA, MUL, RECIPROCAL, SQRT, SUB, negated
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
from mcf.kernels.algorithms.selection import either, negated_where
from mcf.kernels.statements import family


def angle(a, b, g):
    """Return |cos| of the angle of two rows, from leading components of squared norms and of g."""
    size = sqrt(rn(a[0] * b[0]))
    return rn(div(absolute(g[0]), where(size > ZERO, size, const(1e999))))


def gram(x, y):
    """Return x^2, y^2 and x y from the first components."""
    return rn(x[0] * x[0]), rn(y[0] * y[0]), rn(x[0] * y[0])


def added(x, y):
    """Return the sums of the results of `gram`."""
    return rn(x[0] + y[0]), rn(x[1] + y[1]), rn(x[2] + y[2])


def rotation1(a, b, g, tolerance):
    """Return cosine and sine that make two rows orthogonal, |cos| of their angle, |t|.

    a and b are the rows' squared norms, g is their inner product. With z = (b - a) / 2 g the
    tangent is t = sign(z) / (|z| + sqrt(1 + z^2)), and 0 where |cos| <= tolerance. z^2 does not
    overflow: |z| <= sqrt(b / a) / 2 |cos|, where rows do not vanish.
    """
    cosine = angle(a, b, g)
    wanted = cosine > tolerance
    z = rn(div(rn(b[0] - a[0]), rn(const(2.0) * where(wanted, g[0], ONE))))
    t = rn(div(ONE, rn(absolute(z) + sqrt(rn(rn(z * z) + ONE)))))
    # Use the sign bit, so that a zero has a sign too.
    t = where(wanted, where(bits64(z) < whole(0), neg(t), t), ZERO)
    c = rn(div(ONE, sqrt(rn(rn(t * t) + ONE))))
    return (c,), (rn(t * c),), cosine, absolute(t)


def rotated1(c, s, x, y):
    """Return c x - s y and s x + c y."""
    first = rn(rn(c[0] * x[0]) + rn(neg(s[0]) * y[0]))
    return (first,), (rn(rn(s[0] * x[0]) + rn(c[0] * y[0])),)


def twice(x):
    """Return 2 x."""
    return tuple(rn(const(2.0) * a) for a in x)


def tangent(wanted, z, root, total, inverse, fma):
    """Return sign(z) / (|z| + sqrt(1 + z^2)) where `wanted`, else 0, and its cosine."""
    negative = bits64(z[0]) < whole(0)
    t = inverse(total(negated_where(negative, z), root(fma(z, z, one(z)))))
    t = either(wanted, negated_where(negative, t), zero(t))
    return t, inverse(root(fma(t, t, one(t))))


SEVERAL = (2, 3, 4)
TANGENT = {"root": SQRT, "total": ADD, "inverse": RECIPROCAL, "fma": FMA}


@family("a* b* g* tolerance", SEVERAL, quotient=DIV, difference=SUB, product=MUL, **TANGENT)
def rotation(a, b, g, tolerance, quotient, difference, product, **tangents):
    """Return cosine, sine, |cos| and |t| as `rotation1` does, in expansions."""
    cosine = angle(a, b, g)
    wanted = cosine > tolerance
    z = quotient(difference(b, a), twice(either(wanted, g, one(g))))
    t, c = tangent(wanted, z, **tangents)
    return c, product(t, c), cosine, absolute(t[0])


@family("c* s* x* y*", SEVERAL, fma=FMA, product=MUL)
def rotated(c, s, x, y, fma, product):
    """Return c x - s y and s x + c y, in expansions."""
    return fma(c, x, product(negated(s), y)), fma(s, x, product(c, y))


rotation = {1: rotation1} | rotation
rotated = {1: rotated1} | rotated


def converged(cosine, tangent, rows, tolerance):
    """Return whether rows are orthogonal, given the largest |cos| and |t| of a sweep.

    Later rotations by small angles restore an annihilated product only in proportion to the angle.
    Rows that were nearly parallel keep rounding errors.
    """
    small = cosine <= const(2.0**-20)
    small = small & (rn(rn(rows * cosine) * tangent) <= tolerance)
    return small | (cosine <= rn(const(4.0) * tolerance))
