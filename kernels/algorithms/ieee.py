"""Operations on expansions of 1 to 4 components, with IEEE 754's special values.

Each is a family by number of components. It combines a network (`sums`, `products`, `quotients`,
`roots`) with the plain operation on the leading components. A network may compute inf - inf or
0 * inf, and it adds +0 to -0. So the plain value is taken if the network's leading component is
NaN, or if both are zero; low components are zero if the leading one is not finite. All of this is
branch-free. With one component the plain operation is used alone, rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mcf.kernels.algorithms.primitives import ONE, ZERO, div, neg, rn, sqrt, where
from mcf.kernels.algorithms.products import PRODUCT
from mcf.kernels.algorithms.quotients import INVERSE, OVER_FLOAT, QUOTIENT, inverse2
from mcf.kernels.algorithms.roots import ROOT, root2
from mcf.kernels.algorithms.short_products import SQUARED, TIMES_FLOAT
from mcf.kernels.algorithms.sums import PLUS_FLOAT, SUM
from mcf.kernels.algorithms.transforms import finite_only, two_prod, two_sum
from mcf.kernels.statements import Family, family


def leading(plain, r0):
    """Return r0, or the plain operation's result if r0 is NaN or both are 0.

    Expansions may cancel although their leading components do not, if one of these is a tie.
    """
    return where((r0 == r0) & ((r0 != ZERO) | (plain != ZERO)), r0, plain)


def settled(plain, r):
    """Return a network's result with the plain operation's special values."""
    first, *low = finite_only(r)
    return leading(plain, first), *low


def operation(
    name: str, arguments: str, doc: str, plain: Callable[..., Any], network: Mapping[int, Any]
) -> Family:
    """Return networks with the special values of a plain operation (none for one component).

    Args:
        name: the prefix of the algorithms' names.
        arguments: as in `family`.
        doc: the docstring of the algorithms.
        plain: the operation on the leading components.
        network: algorithms by number of components.
    """

    def form(*given: Any, network: Any) -> Any:
        return settled(plain(*given), network(*given))

    form.__name__, form.__doc__ = name, doc
    found = family(arguments, (2, 3, 4), network=network)(form)
    return {1: network[1]} | found if 1 in network else found


# Networks made of others.


def negated(x):
    """Return -x, component by component."""
    return tuple(map(neg, x))


minus = family("x*")(negated)


@family("x* y*", total=SUM)
def difference(x, y, total):
    """Return x - y as a sum."""
    return total(x, negated(y))


@family("x* y.", total={2: PLUS_FLOAT[2]})
def less_float(x, y, total):
    """Return x - y of a float y, as a sum."""
    return total(x, negated(y))


@family("x* y* z*", (2, 3, 4), total=SUM, product=PRODUCT)
def sum_of_product(x, y, z, total, product):
    """Return x * y + z, the product rounded as `mul` rounds it."""
    return total(product(x, y), z)


@family("x* y. z*", total=SUM, product=TIMES_FLOAT)
def sum_of_scaled(x, y, z, total, product):
    """Return x * y + z of a float y, the product rounded as `mul` rounds it."""
    return total(product(x, y), z)


@family("x*", inverse=INVERSE, rooted=ROOT)
def inverse_root(x, inverse, rooted):
    """Return 1 / sqrt(x) as a root and a quotient."""
    return inverse(rooted(x))


# Operations on one component that round more than once.


def reciprocal1(x):
    """RN(1 / x)."""
    return (rn(div(ONE, x[0])),)


def rsqrt1(x):
    """Return 1 / sqrt(x), computed as a pair."""
    r = inverse2(root2((x[0], ZERO)))
    return (leading(rn(div(ONE, rn(sqrt(x[0])))), r[0]),)


def fma1(x, y, z):
    """Return x * y + z, rounded like a pair."""
    p, e = two_prod(x[0], y[0])
    s, t = two_sum(p, z[0])
    return (leading(rn(p + z[0]), rn(s + rn(t + e))),)


# The plain operations of those that have a form for a float as second argument, too.


def plus(x, y):
    """RN(x0 + y0)."""
    return rn(x[0] + y[0])


def less(x, y):
    """RN(x0 - y0)."""
    return rn(x[0] - y[0])


def times(x, y):
    """RN(x0 y0)."""
    return rn(x[0] * y[0])


def over(x, y):
    """RN(x0 / y0)."""
    return rn(div(x[0], y[0]))


def times_plus(x, y, z):
    """RN(RN(x0 y0) + z0)."""
    return rn(rn(x[0] * y[0]) + z[0])


ADD = operation("add", "x* y*", "x + y.", plus, SUM)
SUB = operation("sub", "x* y*", "x - y.", less, difference)
MUL = operation("mul", "x* y*", "x * y.", times, PRODUCT)
DIV = operation("div", "x* y*", "x / y.", over, QUOTIENT)
SQUARE = operation("square", "x*", "x * x.", lambda x: rn(x[0] * x[0]), SQUARED)
SQRT = operation("sqrt", "x*", "The square root of x.", lambda x: rn(sqrt(x[0])), ROOT)
FMA = {1: fma1} | operation("fma", "x* y* z*", "x * y + z.", times_plus, sum_of_product)
RECIPROCAL = {1: reciprocal1} | operation(
    "reciprocal", "x*", "1 / x.", lambda x: rn(div(ONE, x[0])), INVERSE
)
RSQRT = {1: rsqrt1} | operation(
    "rsqrt", "x*", "1 / sqrt(x).", lambda x: rn(div(ONE, rn(sqrt(x[0])))), inverse_root
)

# Families for a float as second argument.
ADD_FLOAT = operation("add_float", "x* y.", "x + y.", plus, {2: PLUS_FLOAT[2]})
SUB_FLOAT = operation("sub_float", "x* y.", "x - y.", less, less_float)
MUL_FLOAT = operation("mul_float", "x* y.", "x * y.", times, TIMES_FLOAT)
DIV_FLOAT = operation("div_float", "x* y.", "x / y.", over, OVER_FLOAT)
FMA_FLOAT = operation("fma_float", "x* y. z*", "x * y + z.", times_plus, sum_of_scaled)


def sign(x, y, network):
    """Return -1, 0 or 1 for the sign of x - y; NaN if x and y are not ordered.

    Args:
        x: an expansion.
        y: another expansion.
        network: x - y without its special values: NaN for infinities, of which equal ones give 0.
    """
    d = network(x, y)[0]
    d = where((d != d) & (x[0] == y[0]), ZERO, d)
    less = (d < ZERO) | ((d != d) & (x[0] < y[0]))
    more = (d > ZERO) | ((d != d) & (x[0] > y[0]))
    zero_or_nan = where(d == ZERO, ZERO, d)
    return where(less, ZERO - ONE, where(more, ONE, zero_or_nan))


@family("x* y*", network=difference)
def compare(x, y, network):
    """The sign of x - y."""
    return (sign(x, y, network),)


def _truth(name, doc, holds):
    """Return whether a condition holds for the sign, as 1 or 0."""

    def form(x, y, network):
        return (where(holds(sign(x, y, network)), ONE, ZERO),)

    form.__name__, form.__doc__ = name, doc
    return family("x* y*", network=difference)(form)


LT = _truth("lt", "1 where x < y, else 0.", lambda s: s < ZERO)
LE = _truth("le", "1 where x <= y, else 0.", lambda s: s <= ZERO)
EQ = _truth("eq", "1 where x = y, else 0.", lambda s: s == ZERO)
NE = _truth("ne", "0 where x = y, else 1.", lambda s: s != ZERO)
