"""The operations on expansions of one to four components, special values as IEEE 754 has them.

Each is its network (`sums`, `products`, `quotients`, `roots`) and `special.settled*`.
"""

from mcf.kernels.algorithms.primitives import div, rn, sqrt
from mcf.kernels.algorithms.products import product1, product2, product3, product4
from mcf.kernels.algorithms.quotients import quotient1, quotient2, quotient3, quotient4
from mcf.kernels.algorithms.roots import root1, root2, root3, root4
from mcf.kernels.algorithms.special import settled2, settled3, settled4
from mcf.kernels.algorithms.sums import minus2, minus3, minus4, sum1, sum2, sum3, sum4


def add1(x, y):
    """RN(x + y)."""
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
    """RN(x - y)."""
    return (rn(x[0] - y[0]),)


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
    """RN(x * y)."""
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
    """RN(x / y)."""
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


def sqrt1(x):
    """RN(sqrt(x))."""
    return root1(x)


def sqrt2(x):
    """sqrt(x)."""
    return settled2(rn(sqrt(x[0])), root2(x))


def sqrt3(x):
    """sqrt(x)."""
    return settled3(rn(sqrt(x[0])), root3(x))


def sqrt4(x):
    """sqrt(x)."""
    return settled4(rn(sqrt(x[0])), root4(x))
