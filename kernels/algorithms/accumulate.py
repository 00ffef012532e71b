"""What accurate sums and products of matrices are made of: terms, and how partial sums merge.

A partial sum of s = 2, 3 or 4 registers is a tuple, largest first, whose low registers may overlap
by some bits: each register collects the rounding errors of the one before it, as in SumK and DotK
of Ogita, Rump, Oishi 2005 (doi:10.1137/030601818). Let T be the sum of the absolute values of the
terms. `merge` alone keeps register k within a multiple of u**k T; `settle` brings it back to
u**k T, so that errors grow with the number of merges and not with its powers.

The first register goes through plain additions only, so that infinities and NaN come out as IEEE
arithmetic has them; `settle` does not let the NaN errors of an infinity reach it.
"""

from mcf.kernels.algorithms.primitives import ZERO, rn, where
from mcf.kernels.algorithms.transforms import fast_two_sum, two_prod, two_sum


def merge2(a, b):
    """a + b of two registers: Sum2's step for partial sums; 8 operations."""
    s, t = two_sum(a[0], b[0])
    return s, rn(rn(a[1] + b[1]) + t)


def merge3(a, b):
    """a + b of three registers, SumK's step with K = 3."""
    s0, t = two_sum(a[0], b[0])
    s1, e = two_sum(a[1], b[1])
    s1, f = two_sum(s1, t)
    return s0, s1, rn(rn(a[2] + b[2]) + rn(e + f))


def merge4(a, b):
    """a + b of four registers, SumK's step with K = 4."""
    s0, t = two_sum(a[0], b[0])
    s1, e = two_sum(a[1], b[1])
    s1, f = two_sum(s1, t)
    s2, g = two_sum(a[2], b[2])
    s2, h = two_sum(s2, e)
    s2, k = two_sum(s2, f)
    return s0, s1, s2, rn(rn(rn(a[3] + b[3]) + g) + rn(h + k))


def settle2(a):
    """The same sum with |a1| <= u |a0|."""
    finite = a[0] - a[0] == ZERO
    return two_sum(a[0], where(finite, a[1], ZERO))


def settle3(a):
    """The same sum after one sweep of TwoSum from the last register to the first."""
    finite = a[0] - a[0] == ZERO
    s, c = two_sum(where(finite, a[1], ZERO), where(finite, a[2], ZERO))
    s, b = two_sum(a[0], s)
    return s, b, c


def settle4(a):
    """The same sum after one sweep of TwoSum from the last register to the first."""
    finite = a[0] - a[0] == ZERO
    s, d = two_sum(where(finite, a[2], ZERO), where(finite, a[3], ZERO))
    s, c = two_sum(where(finite, a[1], ZERO), s)
    s, b = two_sum(a[0], s)
    return s, b, c, d


def combine2(a, b):
    """Merge and settle."""
    return settle2(merge2(a, b))


def combine3(a, b):
    """Merge and settle."""
    return settle3(merge3(a, b))


def combine4(a, b):
    """Merge and settle."""
    return settle4(merge4(a, b))


# Terms of sums. Where components are narrower than the registers, two of them go into one register.


def value1_in2(x):
    """x of one component."""
    return x[0], ZERO


def value1_in3(x):
    """x of one component."""
    return x[0], ZERO, ZERO


def value1_in4(x):
    """x of one component."""
    return x[0], ZERO, ZERO, ZERO


def value2_in2(x):
    """x of two components in the registers' format."""
    return x[0], x[1]


def value3_in3(x):
    """x of three components in the registers' format."""
    return x[0], x[1], x[2]


def value4_in4(x):
    """x of four components in the registers' format."""
    return x[0], x[1], x[2], x[3]


def narrow2_in2(x):
    """x of two narrower components, exact."""
    return fast_two_sum(x[0], x[1])


def narrow3_in2(x):
    """x of three narrower components; the last two add up to half an ulp of 2**-53 |x1|."""
    return fast_two_sum(x[0], rn(x[1] + x[2]))


def narrow4_in2(x):
    """x of four components of at most 11 bits; relative error 2**-53 |x1|."""
    return fast_two_sum(x[0], rn(x[1] + rn(x[2] + x[3])))


def narrow4_in3(x):
    """x of four components of at most 24 bits; exact but for 2**-53 |x2|."""
    s, e = fast_two_sum(x[0], x[1])
    t, f = two_sum(e, rn(x[2] + x[3]))
    return s, t, f


# Products in the registers' format: every term down to u**(s - 1) with its rounding error.


def product11_in2(x, y):
    """x * y exactly."""
    return two_prod(x[0], y[0])


def product11_in3(x, y):
    """x * y exactly."""
    p, e = two_prod(x[0], y[0])
    return p, e, ZERO


def product11_in4(x, y):
    """x * y exactly."""
    p, e = two_prod(x[0], y[0])
    return p, e, ZERO, ZERO


def product21_in2(x, y):
    """(x0, x1) * y; error at most 2.1 u^2 |x y|."""
    p, e = two_prod(x[0], y[0])
    return p, rn(e + rn(x[1] * y[0]))


def product22_in2(x, y):
    """(x0, x1) * (y0, y1) without x1 * y1; error at most 7 u^2 |x y|."""
    p, e = two_prod(x[0], y[0])
    return p, rn(e + rn(rn(x[0] * y[1]) + rn(x[1] * y[0])))


def product31_in3(x, y):
    """(x0, x1, x2) * y."""
    p, e = two_prod(x[0], y[0])
    q, f = two_prod(x[1], y[0])
    q, g = two_sum(q, e)
    return p, q, rn(rn(f + g) + rn(x[2] * y[0]))


def product33_in3(x, y):
    """(x0, x1, x2) * (y0, y1, y2) without what is below u^2."""
    p, e = two_prod(x[0], y[0])
    q, f = two_prod(x[0], y[1])
    r, g = two_prod(x[1], y[0])
    q, h = two_sum(q, r)
    q, k = two_sum(q, e)
    low = rn(rn(rn(x[0] * y[2]) + rn(x[2] * y[0])) + rn(x[1] * y[1]))
    return p, q, rn(low + rn(rn(f + g) + rn(h + k)))


def product41_in4(x, y):
    """(x0, x1, x2, x3) * y."""
    p, e = two_prod(x[0], y[0])
    q, f = two_prod(x[1], y[0])
    r, g = two_prod(x[2], y[0])
    q, h = two_sum(q, e)
    r, k = two_sum(r, f)
    r, m = two_sum(r, h)
    return p, q, r, rn(rn(rn(x[3] * y[0]) + g) + rn(k + m))


def product44_in4(x, y):
    """(x0, x1, x2, x3) * (y0, y1, y2, y3) without what is below u^3."""
    p, e = two_prod(x[0], y[0])
    q, f = two_prod(x[0], y[1])
    r, g = two_prod(x[1], y[0])
    q, a = two_sum(q, r)
    q, b = two_sum(q, e)
    # Order u^2: three products, two errors of products, two of sums.
    t, h = two_prod(x[0], y[2])
    v, k = two_prod(x[2], y[0])
    w, m = two_prod(x[1], y[1])
    t, c = two_sum(t, v)
    f, d = two_sum(f, g)
    a, o = two_sum(a, b)
    t, i = two_sum(t, w)
    f, j = two_sum(f, a)
    t, z = two_sum(t, f)
    low = rn(rn(x[0] * y[3]) + rn(x[3] * y[0])) + rn(rn(x[1] * y[2]) + rn(x[2] * y[1]))
    errors = rn(rn(h + k) + m) + rn(rn(c + d) + rn(o + i))
    return p, q, t, rn(rn(rn(low) + rn(errors)) + rn(j + z))


# Products of components so narrow that they multiply exactly in the registers.


def narrow_product11_in2(x, y):
    """x * y exactly."""
    return rn(x[0] * y[0]), ZERO


def narrow_product11_in3(x, y):
    """x * y exactly."""
    return rn(x[0] * y[0]), ZERO, ZERO


def narrow_product21_in2(x, y):
    """(x0, x1) * y exactly."""
    return fast_two_sum(rn(x[0] * y[0]), rn(x[1] * y[0]))


def narrow_product22_in2(x, y):
    """(x0, x1) * (y0, y1); relative error 2**-53 |x0 y1 + x1 y0|."""
    cross = rn(rn(x[0] * y[1]) + rn(x[1] * y[0]))
    return fast_two_sum(rn(x[0] * y[0]), rn(cross + rn(x[1] * y[1])))


def narrow_product31_in2(x, y):
    """(x0, x1, x2) * y; relative error 2**-53 |x1 y|."""
    return fast_two_sum(rn(x[0] * y[0]), rn(rn(x[1] * y[0]) + rn(x[2] * y[0])))


def narrow_product33_in2(x, y):
    """(x0, x1, x2) * (y0, y1, y2); relative error 2**-53 |x0 y1 + x1 y0|."""
    cross = rn(rn(x[0] * y[1]) + rn(x[1] * y[0]))
    below = rn(rn(rn(x[0] * y[2]) + rn(x[2] * y[0])) + rn(x[1] * y[1]))
    last = rn(rn(rn(x[1] * y[2]) + rn(x[2] * y[1])) + rn(x[2] * y[2]))
    return fast_two_sum(rn(x[0] * y[0]), rn(cross + rn(below + last)))


def narrow_product41_in2(x, y):
    """(x0, x1, x2, x3) * y for components of at most 11 bits; relative error 2**-53 |x1 y|."""
    low = rn(rn(x[2] * y[0]) + rn(x[3] * y[0]))
    return fast_two_sum(rn(x[0] * y[0]), rn(rn(x[1] * y[0]) + low))


def narrow_product44_in2(x, y):
    """Four by four components of at most 11 bits; relative error 2**-53 |x0 y1 + x1 y0|."""
    cross = rn(rn(x[0] * y[1]) + rn(x[1] * y[0]))
    below = rn(rn(rn(x[0] * y[2]) + rn(x[2] * y[0])) + rn(x[1] * y[1]))
    third = rn(rn(rn(x[0] * y[3]) + rn(x[3] * y[0])) + rn(rn(x[1] * y[2]) + rn(x[2] * y[1])))
    last = rn(rn(rn(x[1] * y[3]) + rn(x[3] * y[1])) + rn(x[2] * y[2]))
    least = rn(rn(rn(x[2] * y[3]) + rn(x[3] * y[2])) + rn(x[3] * y[3]))
    low = rn(below + rn(third + rn(last + least)))
    return fast_two_sum(rn(x[0] * y[0]), rn(cross + low))


def narrow_product41_in3(x, y):
    """(x0, x1, x2, x3) * y for components of at most 24 bits; exact but for 2**-53 |x2 y|."""
    s, e = fast_two_sum(rn(x[0] * y[0]), rn(x[1] * y[0]))
    t, f = two_sum(e, rn(rn(x[2] * y[0]) + rn(x[3] * y[0])))
    return s, t, f


def narrow_product44_in3(x, y):
    """Four by four components of at most 24 bits, down to the fourth order."""
    cross, e = two_sum(rn(x[0] * y[1]), rn(x[1] * y[0]))
    s, f = fast_two_sum(rn(x[0] * y[0]), cross)
    below = rn(rn(rn(x[0] * y[2]) + rn(x[2] * y[0])) + rn(x[1] * y[1]))
    third = rn(rn(rn(x[0] * y[3]) + rn(x[3] * y[0])) + rn(rn(x[1] * y[2]) + rn(x[2] * y[1])))
    last = rn(rn(rn(x[1] * y[3]) + rn(x[3] * y[1])) + rn(x[2] * y[2]))
    t, g = two_sum(f, rn(below + rn(third + last)))
    return s, t, rn(e + g)


# A float times an expansion.


def product12_in2(x, y):
    """x * (y0, y1)."""
    return product21_in2(y, x)


def product13_in3(x, y):
    """x * (y0, y1, y2)."""
    return product31_in3(y, x)


def product14_in4(x, y):
    """x * (y0, y1, y2, y3)."""
    return product41_in4(y, x)


def narrow_product12_in2(x, y):
    """x * (y0, y1)."""
    return narrow_product21_in2(y, x)


def narrow_product13_in2(x, y):
    """x * (y0, y1, y2)."""
    return narrow_product31_in2(y, x)


def narrow_product14_in2(x, y):
    """x * (y0, y1, y2, y3)."""
    return narrow_product41_in2(y, x)


def narrow_product14_in3(x, y):
    """x * (y0, y1, y2, y3)."""
    return narrow_product41_in3(y, x)
