"""Jacobi's rotation of two rows in plain float64."""

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


def rotation(a, b, g, tolerance):
    """Cosine and sine that make two rows orthogonal, |cos| of their angle, |t|.

    a and b are the rows' squared norms, g is their inner product. With z = (b - a) / 2 g the
    tangent is t = sign(z) / (|z| + sqrt(1 + z^2)), and 0 where |g| <= tolerance sqrt(a b). z^2 does
    not overflow: |z| <= sqrt(b / a) / 2 |cos|, where rows do not vanish.
    """
    size = sqrt(rn(a * b))
    cosine = rn(div(absolute(g), where(size > ZERO, size, const(1e999))))
    wanted = cosine > tolerance
    z = rn(div(rn(b - a), rn(const(2.0) * where(wanted, g, ONE))))
    t = rn(div(ONE, rn(absolute(z) + sqrt(rn(rn(z * z) + ONE)))))
    # The sign of a zero too.
    t = where(wanted, where(bits64(z) < whole(0), neg(t), t), ZERO)
    c = rn(div(ONE, sqrt(rn(rn(t * t) + ONE))))
    return c, rn(t * c), cosine, absolute(t)


def rotated(c, s, x, y):
    """c x - s y and s x + c y."""
    return rn(rn(c * x) + rn(neg(s) * y)), rn(rn(s * x) + rn(c * y))


def converged(cosine, tangent, rows, tolerance):
    """Whether the rows are orthogonal after a sweep in which these were the largest |cos|, |t|.

    What a rotation annihilates, later ones by small angles bring back that much smaller; of rows
    that were all but parallel rounding errors are left.
    """
    small = cosine <= const(2.0**-20)
    small = small & (rn(rn(rows * cosine) * tangent) <= tolerance)
    return small | (cosine <= rn(const(4.0) * tolerance))
