"""Operations on expansions of 1 to 4 components, with IEEE 754's special values.

Each is a family by number of components. It combines a network (`sums`, `products`, `quotients`,
`roots`) with the plain operation on the leading components, whose value `special.settled*` takes if
the network's result is NaN. With one component the plain operation is used alone, rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

from mcf.kernels.algorithms.families import filled
from mcf.kernels.algorithms.primitives import ONE, ZERO, div, rn, sqrt, where
from mcf.kernels.algorithms.products import product1, product2, product3, product4
from mcf.kernels.algorithms.quotients import (
    by_float2,
    inverse2,
    inverse3,
    inverse4,
    quotient1,
    quotient2,
    quotient3,
    quotient4,
)
from mcf.kernels.algorithms.roots import root1, root2, root3, root4
from mcf.kernels.algorithms.short_products import (
    squared1,
    squared2,
    squared3,
    squared4,
    times_float2,
    times_float3,
    times_float4,
)
from mcf.kernels.algorithms.special import leading, settled2, settled3, settled4
from mcf.kernels.algorithms.sums import (
    minus1,
    minus2,
    minus3,
    minus4,
    plus_float2,
    plus_float3,
    plus_float4,
    sum1,
    sum2,
    sum3,
    sum4,
)
from mcf.kernels.algorithms.transforms import two_prod, two_sum

Family = Mapping[int, Callable[..., Any]]


def numbered(*functions: FunctionType, first: int = 1) -> dict[int, FunctionType]:
    """Return functions by number of components, starting at `first`."""
    return dict(enumerate(functions, first))


SETTLED = numbered(settled2, settled3, settled4, first=2)
SUM = numbered(sum1, sum2, sum3, sum4)
MINUS = numbered(minus1, minus2, minus3, minus4)
PRODUCT = numbered(product1, product2, product3, product4)
QUOTIENT = numbered(quotient1, quotient2, quotient3, quotient4)
ROOT = numbered(root1, root2, root3, root4)
SQUARED = numbered(squared1, squared2, squared3, squared4)
INVERSE = numbered(inverse2, inverse3, inverse4, first=2)
TIMES_FLOAT = numbered(times_float2, times_float3, times_float4, first=2)
PLUS_FLOAT = {2: plus_float2}
# Same bits as adding zero-padded operands, except for the sign of zero.
BARE_PLUS_FLOAT = numbered(plus_float2, plus_float3, plus_float4, first=2)
OVER_FLOAT = {2: by_float2}


# The plain operations on leading components.


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


def itself_squared(x):
    """RN(x0 x0)."""
    return rn(x[0] * x[0])


def root(x):
    """RN(sqrt(x0))."""
    return rn(sqrt(x[0]))


def one_over(x, one):
    """RN(1 / x0)."""
    return rn(div(one, x[0]))


def one_over_root(x, one):
    """RN(1 / RN(sqrt(x0)))."""
    return rn(div(one, rn(sqrt(x[0]))))


def times_plus(x, y, z):
    """RN(RN(x0 y0) + z0)."""
    return rn(rn(x[0] * y[0]) + z[0])


# Forms: `plain`, `network` and `settled` are filled in for each member of a family.


def of_one(x):
    """Form: a network of x with the plain operation's special values."""
    return settled(plain(x), network(x))


def of_two(x, y):
    """Form: a network of x and y with the plain operation's special values."""
    return settled(plain(x, y), network(x, y))


def of_three(x, y, z):
    """Form: a network of x, y and z with the plain operation's special values."""
    return settled(plain(x, y, z), network(x, y, z))


def of_one_and_1(x, one):
    """Form: a network of x and the number 1 with the plain operation's special values."""
    return settled(plain(x, one), network(x, one))


def difference(x, y):
    """Form: x - y as a sum."""
    return total(x, minus(y))


def sum_of_product(x, y, z):
    """Form: x * y + z, the product rounded as `mul` rounds it."""
    return total(product(x, y), z)


def inverse_of_root(x, one):
    """Form: 1 / sqrt(x) as a root and a quotient."""
    return inverse(rooted(x), one)


def sign_of_difference(x, y):
    """Form: -1, 0 or 1 for the sign of x - y; NaN if x and y are not ordered."""
    d = network(x, y)
    return (ordered(x[0], y[0], d[0]),)


def truth(x, y):
    """Form: 1 if `asked` holds for the sign of x - y, else 0."""
    (s,) = sign(x, y)
    return (where(asked(s), ONE, ZERO),)


def each(name: str, doc: str, form: FunctionType, **families: Any) -> dict[int, FunctionType]:
    """Fill a form for each number of components that all families have.

    Args:
        name: the prefix of the functions' names; the number of components follows.
        doc: the functions' docstring.
        form: one of the forms above.
        families: values for the names in the form: functions by number of components, or one
            function for all.
    """
    counts = [set(f) for f in families.values() if isinstance(f, Mapping)]

    def fill(n: int) -> FunctionType:
        found = {k: f[n] if isinstance(f, Mapping) else f for k, f in families.items()}
        return filled(form, f"{name}{n}", doc, **found)

    return {n: fill(n) for n in sorted(set.intersection(*counts))}


def family(name: str, doc: str, form: FunctionType, plain: Any, network: Family) -> Any:
    """Return networks with the special values of a plain operation (none for one component)."""
    alone = {n: f for n, f in network.items() if n == 1}
    return alone | each(name, doc, form, settled=SETTLED, plain=plain, network=network)


def reciprocal1(x, one):
    """RN(1 / x)."""
    return (rn(div(one, x[0])),)


def rsqrt1(x, one):
    """Return 1 / sqrt(x), computed as a pair."""
    r = inverse2(root2((x[0], ZERO)), one)
    return (leading(one_over_root(x, one), r[0]),)


def fma1(x, y, z):
    """Return x * y + z, rounded like a pair."""
    p, e = two_prod(x[0], y[0])
    s, t = two_sum(p, z[0])
    return (leading(rn(p + z[0]), rn(s + rn(t + e))),)


def ordered(x0, y0, d):
    """Return the sign of d; if d is NaN, that of x0 - y0, where equal infinities give 0."""
    d = where((d != d) & (x0 == y0), ZERO, d)
    less = (d < ZERO) | ((d != d) & (x0 < y0))
    more = (d > ZERO) | ((d != d) & (x0 > y0))
    zero_or_nan = where(d == ZERO, ZERO, d)
    return where(less, ZERO - ONE, where(more, ONE, zero_or_nan))


# Conditions on a sign, which is NaN if numbers are not ordered.


def negative(s):
    """Return whether x < y, given the sign of x - y."""
    return s < ZERO


def not_positive(s):
    """Return whether x <= y, given the sign of x - y."""
    return s <= ZERO


def zero(s):
    """Return whether x = y, given the sign of x - y."""
    return s == ZERO


def not_zero(s):
    """Return whether x < y, x > y or they are not ordered, given the sign of x - y."""
    return s != ZERO


_differences = each("difference", "x - y.", difference, total=SUM, minus=MINUS)
_roots = each("inverse_root", "1 / sqrt(x).", inverse_of_root, inverse=INVERSE, rooted=ROOT)
_fused = each("sum_of_product", "x * y + z.", sum_of_product, total=SUM, product=PRODUCT)
_fused_float = each("sum_of_scaled", "x * y + z.", sum_of_product, total=SUM, product=TIMES_FLOAT)
_less_float = each("less_float", "x - y.", difference, total=PLUS_FLOAT, minus=minus1)

ADD = family("add", "x + y.", of_two, plus, SUM)
SUB = family("sub", "x - y.", of_two, less, _differences)
MUL = family("mul", "x * y.", of_two, times, PRODUCT)
DIV = family("div", "x / y.", of_two, over, QUOTIENT)
SQUARE = family("square", "x * x.", of_one, itself_squared, SQUARED)
SQRT = family("sqrt", "The square root of x.", of_one, root, ROOT)
RECIPROCAL = {1: reciprocal1} | family("reciprocal", "1 / x.", of_one_and_1, one_over, INVERSE)
RSQRT = {1: rsqrt1} | family("rsqrt", "1 / sqrt(x).", of_one_and_1, one_over_root, _roots)
FMA = {1: fma1} | each(
    "fma", "x * y + z.", of_three, settled=SETTLED, plain=times_plus, network=_fused
)
COMPARE = each("compare", "The sign of x - y.", sign_of_difference, network=_differences)
LT = each("lt", "1 where x < y, else 0.", truth, sign=COMPARE, asked=negative)
LE = each("le", "1 where x <= y, else 0.", truth, sign=COMPARE, asked=not_positive)
EQ = each("eq", "1 where x = y, else 0.", truth, sign=COMPARE, asked=zero)
NE = each("ne", "0 where x = y, else 1.", truth, sign=COMPARE, asked=not_zero)

# Families for a float as second argument.
ADD_FLOAT = family("add_float", "x + y.", of_two, plus, PLUS_FLOAT)
SUB_FLOAT = family("sub_float", "x - y.", of_two, less, _less_float)
MUL_FLOAT = family("mul_float", "x * y.", of_two, times, TIMES_FLOAT)
DIV_FLOAT = family("div_float", "x / y.", of_two, over, OVER_FLOAT)
FMA_FLOAT = family("fma_float", "x * y + z.", of_three, times_plus, _fused_float)
