"""How large the errors of operations on complex expansions can be, composed of those of real ones.

All are relative to the modulus of the exact result, so a part may be off by more of itself where it
is small beside the other, unless an operation is componentwise. With a relative error of a part of
at most e each, that of the number is at most e.
"""

from __future__ import annotations

import math
from collections.abc import Callable

# Of a real operation, by its name: the relative error in the working format.
Real = Callable[[str], float]


def composed(*errors: float) -> float:
    """(1 + e1)(1 + e2) ... - 1: of factors, and of what is rounded again."""
    return math.expm1(sum(map(math.log1p, errors)))


def inverse(error: float) -> float:
    """1 / (1 - e) - 1: of a divisor."""
    return error / (1 - error)


def mul(real: Real) -> float:
    """Of (ac - bd) + i(ad + bc), with m for a product and s for a sum of real ones.

    Of ac, bd, ad, bc two of one part have like signs, since (ac)(bd) and (ad)(bc) are equal, and
    the others cancel, or the other way round. With m' = m (1 + s) the errors are at most
    (m' + s)(r + t) in the one and m'(p + q) + s |p - q| in the other, r, t and p, q the moduli of
    the products, p = |xy| cos A cos B and so on; the sum of squares is largest where A = B and
    cos 2A = s / (m' + 2s): (m' + s)^2 + m'^2 + m' s^2 / (m' + 2s). That is (2.31 u)^2 for m = s = u
    and to first order; Brent, Percival and Zimmermann 2007, doi:10.1090/S0025-5718-07-01931-X, have
    sqrt(5) u there, by what is known of roundings beside their size.
    """
    s = real("add")
    m = real("mul") * (1 + s)
    return math.sqrt((m + s) ** 2 + m**2 + m * s**2 / (m + 2 * s))


def div(real: Real) -> float:
    """Of x conj(y) / |y|^2: a product, a sum of squares, a quotient of each part."""
    size = composed(real("square"), real("add"))
    return composed(mul(real), inverse(size), real("div"))


def _exp(real: Real) -> float:
    return composed(real("exp"), max(real("sin"), real("cos")), real("mul"))


def _hyperbolic(real: Real) -> float:
    outer = max(real("sinh"), real("cosh"))
    return composed(outer, max(real("sin"), real("cos")), real("mul"))


def _tanh(real: Real) -> float:
    """Every sum is one of numbers that are not negative."""
    q = composed(*2 * (composed(inverse(real("cosh")), real("div")),), real("square"))
    angle = max(real("sin"), real("cos"))
    first = composed(real("tanh"), real("tanh"), real("square"))
    second = composed(angle, angle, real("square"), q, real("mul"))
    size = composed(max(first, second), real("add"))
    top = composed(angle, angle, real("mul"), q, real("mul"))
    return composed(max(top, real("tanh")), inverse(size), real("div"))


def _log(real: Real) -> float:
    """Near |z| = 1 relative to |log z|, which holds the angle too.

    With p >= q, r = |z| and v = r^2 - 1 the error of v is at most e T, T = |p^2 - 1| + q^2, and
    that of log1p(v) / 2 then at most e T / (2 r^2 - 2 e T). T / 2r^2 <= log r for p >= 1; else it
    is (1/r^2 - 1) / 2 + sin(a)^2 with tan a = q / p, at most 2.17 |log r| + .64 a for 1/2 <= r, and
    so 2.27 |log z|. Elsewhere log p and log1p((q/p)^2) / 2 are at most twice and once |log r|.
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
    """Of each part of sqrt(1 - z): what 1 - x is off by changes a part by no more of itself."""
    return composed(real("add"), _sqrt(real))


def _height(real: Real) -> float:
    """Of asinh(ad + bc), and of ac + bd: products of roots that are added up; asinh is concave."""
    return composed(_root(real), _root(real), real("mul"), real("add"))


def _asin(real: Real) -> float:
    """An arctangent of a positive number is concave: it is off by no more of itself than that."""
    angle = composed(_height(real), real("atan2"))
    # ln 2 is added to moduli that were halved.
    return max(angle, composed(_height(real), real("asinh"), real("add")))


def _acos(real: Real) -> float:
    return max(composed(_root(real), inverse(_root(real)), real("atan2")), _asin(real))


def _atanh(real: Real) -> float:
    """With m for the errors of P = (1 - x)(1 + x) and Q = y^2, s for that of D = P - Q.

    The angle t of (D, 2y) is off by 2y dD / (4y^2 + D^2), dD <= m (|P| + Q) + s |D|. For P < 0 the
    sum is |D|, and 2y |D| / (4y^2 + D^2) = |sin t cos t| <= t. Else it is at most |D| + 2Q, and
    4 y Q / (4y^2 + D^2) = y sin(t)^2 <= t where D > 0, since y < 1 there; for D <= 0 it is at most
    1.3, and t at least pi / 2. Together (2m + s) t, to first order; 1.01 is for the others.
    """
    square = composed(real("add"), real("add"), real("mul"))
    angle = composed(1.01 * composed(square, square, real("add")), real("atan2"))
    below = composed(square, real("add"), real("sqrt"))
    ratio = composed(inverse(below), real("div"))
    return max(angle, composed(ratio, real("log1p"), real("add"), real("add")))


def _expm1(real: Real) -> float:
    """|expm1 x| is at most |w|, and 2 sin(y/2)^2 twice that: s^2 <= s sqrt(1 - s^2) or 1 <= |w|."""
    grown = composed(real("expm1"), real("cos"), real("mul"))
    turned = composed(real("sin"), real("sin"), real("square"))
    first = composed(grown + 2 * turned, real("add"))
    return math.hypot(first, composed(real("exp"), real("sin"), real("mul")))


def _log1p(real: Real) -> float:
    """As `_log` near 1, of v = x (2 + x) + y^2 for |x| <= 1/2, |y| <= 1; elsewhere of 1 + z.

    T = |x (2 + x)| + y^2 is at most 2.2 times 2 |1 + z|^2 |log1p z|, at -1/2, and |1 + z|^2 at
    least 1/4. Elsewhere |log(1 + z)| is log(3/2) and more.
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
# Errors of numbers near the smallest subnormal, in units of it: of two products of each part; of
# the scaling back of a quotient.
ABSOLUTE = {"complex_add": 0.0, "complex_mul": 64.0, "complex_div": 4.0, "complex_abs": 2.0}
# What underflow costs a quotient of scaled numbers, between .3 and 3, in the same units: relative.
SCALED = {"complex_div": 1400.0}
