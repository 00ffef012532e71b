"""Error bounds of operations on complex expansions, composed from those of real ones.

All are relative to the modulus of the exact result. So unless an operation is componentwise, a part
that is small next to the other may have a larger relative error. If the relative error of each part
is at most e, that of the number is at most e.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from mcf.elementary.declarations import Real, composed, inverse


def mul(real: Real) -> float:
    """Return the error of (ac - bd) + i(ad + bc), with m for a real product and s for a real sum.

    Since (ac)(bd) = (ad)(bc), the two terms of one part have like signs and those of the other
    cancel. With m' = m (1 + s) the errors are at most (m' + s)(r + t) in the one and m'(p + q) + s
    |p - q| in the other, r, t and p, q the moduli of the products, p = |xy| cos A cos B and so on.
    The sum of squares is largest where A = B and cos 2A = s / (m' + 2s): (m' + s)^2 + m'^2 + m' s^2
    / (m' + 2s). That is (2.31 u)^2 for m = s = u to first order; Brent, Percival and Zimmermann
    2007, doi:10.1090/S0025-5718-07-01931-X, prove sqrt(5) u with further properties of roundings.
    """
    s = real("add")
    m = real("mul") * (1 + s)
    return math.sqrt((m + s) ** 2 + m**2 + m * s**2 / (m + 2 * s))


def div(real: Real) -> float:
    """Return the error of x conj(y) / |y|^2: a product, a sum of squares, quotients of parts."""
    size = composed(real("square"), real("add"))
    return composed(mul(real), inverse(size), real("div"))


def _exp(real: Real) -> float:
    return composed(real("exp"), max(real("sin"), real("cos")), real("mul"))


def _hyperbolic(real: Real) -> float:
    outer = max(real("sinh"), real("cosh"))
    return composed(outer, max(real("sin"), real("cos")), real("mul"))


def _tanh(real: Real) -> float:
    """Return the error of tanh; every sum in it is of numbers that are not negative."""
    q = composed(*2 * (composed(inverse(real("cosh")), real("div")),), real("square"))
    angle = max(real("sin"), real("cos"))
    first = composed(real("tanh"), real("tanh"), real("square"))
    second = composed(angle, angle, real("square"), q, real("mul"))
    size = composed(max(first, second), real("add"))
    top = composed(angle, angle, real("mul"), q, real("mul"))
    return composed(max(top, real("tanh")), inverse(size), real("div"))


def _log(real: Real) -> float:
    """Return the error of log near |z| = 1 relative to |log z|, which includes the angle.

    With p >= q, r = |z| and v = r^2 - 1 the error of v is at most e T, T = |p^2 - 1| + q^2. That of
    log1p(v) / 2 is then at most e T / (2 r^2 - 2 e T). T / 2r^2 <= log r for p >= 1. Otherwise it
    is (1/r^2 - 1) / 2 + sin(a)^2 with tan a = q / p. For r >= 1/2 this is at most
    2.17 |log r| + 0.64 a, and so 2.27 |log z|. Elsewhere log p and log1p((q/p)^2) / 2 are at most
    twice and once |log r|.
    """
    e = composed(real("add"), real("add"), real("mul"), real("add"))
    e = composed(e, real("square"))
    near = 2.27 * e / (1 - 12 * e) + max(real("log1p"), real("atan2"))
    small = composed(real("div"), real("div"), real("square"), real("log1p"))
    far = max(composed(2 * real("log") + small, real("add")), real("atan2"))
    return max(near, far)


def _sqrt(real: Real) -> float:
    size = composed(real("hypot"), real("add"))
    t = composed(size / 2 / (1 - size), real("sqrt"))
    return max(t, composed(inverse(t), real("div")))


def _root(real: Real) -> float:
    """Return the error of each part of sqrt(1 - z); the error of 1 - x is not amplified."""
    return composed(real("add"), _sqrt(real))


def _height(real: Real) -> float:
    """Return the error of asinh(ad + bc) and ac + bd, sums of products of roots."""
    return composed(_root(real), _root(real), real("mul"), real("add"))


def _asin(real: Real) -> float:
    """Return the error of asin; atan is concave on x > 0, so it does not amplify errors."""
    angle = composed(_height(real), real("atan2"))
    # ln 2 is added to moduli that were halved.
    return max(angle, composed(_height(real), real("asinh"), real("add")))


def _acos(real: Real) -> float:
    return max(composed(_root(real), inverse(_root(real)), real("atan2")), _asin(real))


def _atanh(real: Real) -> float:
    """Return the error of atanh, from m of P = (1 - x)(1 + x) and Q = y^2 and s of D = P - Q.

    The angle t of (D, 2y) has the error 2y dD / (4y^2 + D^2), dD <= m (|P| + Q) + s |D|. For P < 0
    the sum is |D|, and 2y |D| / (4y^2 + D^2) = |sin t cos t| <= t. Otherwise it is at most |D| +
    2Q. Then 4 y Q / (4y^2 + D^2) = y sin(t)^2 <= t for D > 0, since y < 1 there; for D <= 0 it is
    at most 1.3, and t at least pi / 2. Together (2m + s) t, to first order; the factor 1.01 covers
    higher orders.
    """
    square = composed(real("add"), real("add"), real("mul"))
    angle = composed(1.01 * composed(square, square, real("add")), real("atan2"))
    below = composed(square, real("add"), real("sqrt"))
    ratio = composed(inverse(below), real("div"))
    return max(angle, composed(ratio, real("log1p"), real("add"), real("add")))


def _expm1(real: Real) -> float:
    """Return the error of expm1 = w: |expm1 x| <= |w|, and 2 sin(y/2)^2 <= 2 |w|."""
    grown = composed(real("expm1"), real("cos"), real("mul"))
    turned = composed(real("sin"), real("sin"), real("square"))
    first = composed(grown + 2 * turned, real("add"))
    return math.hypot(first, composed(real("exp"), real("sin"), real("mul")))


def _log1p(real: Real) -> float:
    """Return the error of log1p, by v = x (2 + x) + y^2 for |x| <= 1/2, |y| <= 1, else by 1 + z.

    T = |x (2 + x)| + y^2 is at most 2.2 times 2 |1 + z|^2 |log1p z|, at -1/2, and |1 + z|^2 is at
    least 1/4. Elsewhere |log(1 + z)| is at least log(3/2).
    """
    e = composed(max(composed(real("add"), real("mul")), real("square")), real("add"))
    near = 2.2 * e / (1 - 12 * e) + max(real("log1p"), composed(real("add"), real("atan2")))
    return max(near, composed(real("add") / math.log(1.5), _log(real)))


def _to_base(real: Real) -> float:
    return composed(_log(real), real("mul"), real("mul"))


OPERATIONS: dict[str, Callable[[Real], float]] = {
    "complex_add": lambda real: real("add"),
    "complex_mul": mul,
    "complex_div": div,
    "complex_abs": lambda real: real("hypot"),
}
FUNCTIONS: dict[str, Callable[[Real], float]] = {
    "complex_exp": _exp,
    "complex_log": _log,
    "complex_log1p": _log1p,
    "complex_log2": _to_base,
    "complex_log10": _to_base,
    "complex_expm1": _expm1,
    "complex_sqrt": _sqrt,
    "complex_sinh": _hyperbolic,
    "complex_cosh": _hyperbolic,
    "complex_sin": _hyperbolic,
    "complex_cos": _hyperbolic,
    "complex_tanh": _tanh,
    "complex_tan": _tanh,
    "complex_asin": _asin,
    "complex_acos": _acos,
    "complex_atan": _atanh,
    "complex_asinh": _asin,
    "complex_acosh": _acos,
    "complex_atanh": _atanh,
}
# Underflow errors in units of the smallest subnormal, from two products per part or from scaling
# back a quotient.
ABSOLUTE = {"complex_add": 0.0, "complex_mul": 64.0, "complex_div": 4.0, "complex_abs": 2.0}
# Relative underflow error of a quotient of scaled numbers between 0.3 and 3, in the same units.
SCALED = {"complex_div": 1400.0}
