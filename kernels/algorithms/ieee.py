"""The operations on expansions of one to four components, special values as IEEE 754 has them.

Each is its network (`sums`, `products`, `quotients`, `roots`), or a few, and `special.settled*`.
"""

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
    sum1,
    sum2,
    sum3,
    sum4,
)
from mcf.kernels.algorithms.transforms import two_prod, two_sum


def add1(x, y):
    """x + y."""
    return sum1(x, y)


def add2(x, y):
    """x + y."""
    return settled2(rn(x[0] + y[0]), sum2(x, y))


def add3(x, y):
    """x + y."""
    return settled3(rn(x[0] + y[0]), sum3(x, y))


def add4(x, y):
    """x + y."""
    return settled4(rn(x[0] + y[0]), sum4(x, y))


def sub1(x, y):
    """x - y."""
    return sum1(x, minus1(y))


def sub2(x, y):
    """x - y."""
    return settled2(rn(x[0] - y[0]), sum2(x, minus2(y)))


def sub3(x, y):
    """x - y."""
    return settled3(rn(x[0] - y[0]), sum3(x, minus3(y)))


def sub4(x, y):
    """x - y."""
    return settled4(rn(x[0] - y[0]), sum4(x, minus4(y)))


def mul1(x, y):
    """x * y."""
    return product1(x, y)


def mul2(x, y):
    """x * y."""
    return settled2(rn(x[0] * y[0]), product2(x, y))


def mul3(x, y):
    """x * y."""
    return settled3(rn(x[0] * y[0]), product3(x, y))


def mul4(x, y):
    """x * y."""
    return settled4(rn(x[0] * y[0]), product4(x, y))


def div1(x, y):
    """x / y."""
    return quotient1(x, y)


def div2(x, y):
    """x / y."""
    return settled2(rn(div(x[0], y[0])), quotient2(x, y))


def div3(x, y):
    """x / y."""
    return settled3(rn(div(x[0], y[0])), quotient3(x, y))


def div4(x, y):
    """x / y."""
    return settled4(rn(div(x[0], y[0])), quotient4(x, y))


def square1(x):
    """x * x."""
    return squared1(x)


def square2(x):
    """x * x."""
    return settled2(rn(x[0] * x[0]), squared2(x))


def square3(x):
    """x * x."""
    return settled3(rn(x[0] * x[0]), squared3(x))


def square4(x):
    """x * x."""
    return settled4(rn(x[0] * x[0]), squared4(x))


def sqrt1(x):
    """The square root of x."""
    return root1(x)


def sqrt2(x):
    """The square root of x."""
    return settled2(rn(sqrt(x[0])), root2(x))


def sqrt3(x):
    """The square root of x."""
    return settled3(rn(sqrt(x[0])), root3(x))


def sqrt4(x):
    """The square root of x."""
    return settled4(rn(sqrt(x[0])), root4(x))


def reciprocal1(x, one):
    """1 / x."""
    return (rn(div(one, x[0])),)


def reciprocal2(x, one):
    """1 / x."""
    return settled2(rn(div(one, x[0])), inverse2(x, one))


def reciprocal3(x, one):
    """1 / x."""
    return settled3(rn(div(one, x[0])), inverse3(x, one))


def reciprocal4(x, one):
    """1 / x."""
    return settled4(rn(div(one, x[0])), inverse4(x, one))


def rsqrt1(x, one):
    """1 / sqrt(x), by way of pairs."""
    plain = rn(div(one, rn(sqrt(x[0]))))
    r = inverse2(root2((x[0], ZERO)), one)
    return (leading(plain, r[0]),)


def rsqrt2(x, one):
    """1 / sqrt(x)."""
    plain = rn(div(one, rn(sqrt(x[0]))))
    return settled2(plain, inverse2(root2(x), one))


def rsqrt3(x, one):
    """1 / sqrt(x)."""
    plain = rn(div(one, rn(sqrt(x[0]))))
    return settled3(plain, inverse3(root3(x), one))


def rsqrt4(x, one):
    """1 / sqrt(x)."""
    plain = rn(div(one, rn(sqrt(x[0]))))
    return settled4(plain, inverse4(root4(x), one))


def fma1(x, y, z):
    """x * y + z, rounded as a pair is."""
    p, e = two_prod(x[0], y[0])
    s, t = two_sum(p, z[0])
    return (leading(rn(p + z[0]), rn(s + rn(t + e))),)


def fma2(x, y, z):
    """x * y + z, the product rounded as `mul` rounds."""
    plain = rn(rn(x[0] * y[0]) + z[0])
    return settled2(plain, sum2(product2(x, y), z))


def fma3(x, y, z):
    """x * y + z, the product rounded as `mul` rounds."""
    plain = rn(rn(x[0] * y[0]) + z[0])
    return settled3(plain, sum3(product3(x, y), z))


def fma4(x, y, z):
    """x * y + z, the product rounded as `mul` rounds."""
    plain = rn(rn(x[0] * y[0]) + z[0])
    return settled4(plain, sum4(product4(x, y), z))


def compare1(x, y):
    """-1, 0 or 1 for the sign of x - y; NaN where they are not ordered."""
    d = sum1(x, minus1(y))
    return (ordered(x[0], y[0], d[0]),)


def compare2(x, y):
    """-1, 0 or 1 for the sign of x - y; NaN where they are not ordered."""
    d = sum2(x, minus2(y))
    return (ordered(x[0], y[0], d[0]),)


def compare3(x, y):
    """-1, 0 or 1 for the sign of x - y; NaN where they are not ordered."""
    d = sum3(x, minus3(y))
    return (ordered(x[0], y[0], d[0]),)


def compare4(x, y):
    """-1, 0 or 1 for the sign of x - y; NaN where they are not ordered."""
    d = sum4(x, minus4(y))
    return (ordered(x[0], y[0], d[0]),)


def ordered(x0, y0, d):
    """The sign of d, or where d is NaN that of x0 - y0: infinities are equal to themselves."""
    d = where((d != d) & (x0 == y0), ZERO, d)
    less = (d < ZERO) | ((d != d) & (x0 < y0))
    more = (d > ZERO) | ((d != d) & (x0 > y0))
    zero_or_nan = where(d == ZERO, ZERO, d)
    return where(less, ZERO - ONE, where(more, ONE, zero_or_nan))


def add_float2(x, y):
    """x + y for a float y."""
    return settled2(rn(x[0] + y[0]), plus_float2(x, y))


def sub_float2(x, y):
    """x - y for a float y."""
    return settled2(rn(x[0] - y[0]), plus_float2(x, minus1(y)))


def mul_float2(x, y):
    """x * y for a float y."""
    return settled2(rn(x[0] * y[0]), times_float2(x, y))


def mul_float3(x, y):
    """x * y for a float y."""
    return settled3(rn(x[0] * y[0]), times_float3(x, y))


def mul_float4(x, y):
    """x * y for a float y."""
    return settled4(rn(x[0] * y[0]), times_float4(x, y))


def div_float2(x, y):
    """x / y for a float y."""
    return settled2(rn(div(x[0], y[0])), by_float2(x, y))


def fma_float2(x, y, z):
    """x * y + z for a float y."""
    plain = rn(rn(x[0] * y[0]) + z[0])
    return settled2(plain, sum2(times_float2(x, y), z))


def fma_float3(x, y, z):
    """x * y + z for a float y."""
    plain = rn(rn(x[0] * y[0]) + z[0])
    return settled3(plain, sum3(times_float3(x, y), z))


def fma_float4(x, y, z):
    """x * y + z for a float y."""
    plain = rn(rn(x[0] * y[0]) + z[0])
    return settled4(plain, sum4(times_float4(x, y), z))
