"""Jacobi rotations of two rows, of one float64 component or of several."""

from mcf.kernels.algorithms.ieee import ADD, DIV, FMA, MINUS, MUL, RECIPROCAL, SQRT, SUB, each
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


def rotation_of_several(a, b, g, tolerance):
    """Return cosine, sine, |cos| and |t| as `rotation1` does, in expansions."""
    cosine = angle(a, b, g)
    wanted = cosine > tolerance
    z = quotient(difference(b, a), twice(chosen(wanted, g, one(g))))
    negative = bits64(z[0]) < whole(0)
    size = chosen(negative, minus(z), z)
    t = inverse(total(size, root(fma(z, z, one(z)))), ONE)
    t = chosen(wanted, chosen(negative, minus(t), t), zero(t))
    c = inverse(root(fma(t, t, one(t))), ONE)
    return c, product(t, c), cosine, absolute(t[0])


def rotated_several(c, s, x, y):
    """Return c x - s y and s x + c y, in expansions."""
    return fma(c, x, product(minus(s), y)), fma(s, x, product(c, y))


TWICE = family("twice", lambda x: tuple(rn(const(2.0) * a) for a in x), "x*", "2 x.")
SEVERAL = {
    "fma": {n: FMA[n] for n in (2, 3, 4)},
    "product": MUL,
    "minus": MINUS,
}
ROTATION = {1: rotation1} | each(
    "rotation",
    "Cosine and sine that make two rows orthogonal, |cos| of their angle, |t|.",
    rotation_of_several,
    **SEVERAL,
    quotient=DIV,
    difference=SUB,
    total=ADD,
    inverse=RECIPROCAL,
    root=SQRT,
    twice=TWICE,
    chosen=CHOSEN,
    one=ONE_LIKE,
    zero=ZERO_LIKE,
)
ROTATED = {1: rotated1} | each("rotated", "c x - s y and s x + c y.", rotated_several, **SEVERAL)


def converged(cosine, tangent, rows, tolerance):
    """Return whether rows are orthogonal, given the largest |cos| and |t| of a sweep.

    Later rotations by small angles restore an annihilated product only in proportion to the angle.
    Rows that were nearly parallel keep rounding errors.
    """
    small = cosine <= const(2.0**-20)
    small = small & (rn(rn(rows * cosine) * tangent) <= tolerance)
    return small | (cosine <= rn(const(4.0) * tolerance))
