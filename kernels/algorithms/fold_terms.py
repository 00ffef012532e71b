"""Terms of folds: an expansion, or a product of two, as registers of a partial sum.

If components are narrower than the registers, one register holds two of them.
"""

from mcf.kernels.algorithms.ieee import SUB
from mcf.kernels.algorithms.primitives import ZERO, rn
from mcf.kernels.algorithms.transforms import fast_two_sum, two_prod, two_sum
from mcf.kernels.statements import Family, family, kept, recorded

# Sums of components that are narrower than the registers.


def narrow2_in2(x):
    """Return x of two narrower components, exactly."""
    return fast_two_sum(x[0], x[1])


def narrow3_in2(x):
    """Return x of three narrower components; x1 + x2 is rounded: error 2**-53 |x1|."""
    return fast_two_sum(x[0], rn(x[1] + x[2]))


def narrow3_in3(x):
    """Return x of three components that add up in pairs without error, exactly."""
    s, e = fast_two_sum(x[0], x[1])
    t, f = two_sum(e, x[2])
    return s, t, f


def narrow4_in2(x):
    """Return x of four components of at most 11 bits; error 2**-53 |x1|."""
    return fast_two_sum(x[0], rn(x[1] + rn(x[2] + x[3])))


def narrow4_in3(x):
    """Return x of four components of at most 24 bits, exactly except for one rounding of x2."""
    s, e = fast_two_sum(x[0], x[1])
    t, f = two_sum(e, rn(x[2] + x[3]))
    return s, t, f


# Sums of products of one order of magnitude, in one register.


def order1(x, y):
    """x0 y1 + x1 y0."""
    return rn(rn(x[0] * y[1]) + rn(x[1] * y[0]))


def order2(x, y):
    """x0 y2 + x2 y0 + x1 y1."""
    return rn(rn(rn(x[0] * y[2]) + rn(x[2] * y[0])) + rn(x[1] * y[1]))


def order3(x, y):
    """x0 y3 + x3 y0 + x1 y2 + x2 y1."""
    return rn(rn(rn(x[0] * y[3]) + rn(x[3] * y[0])) + rn(rn(x[1] * y[2]) + rn(x[2] * y[1])))


def order4(x, y):
    """x1 y3 + x3 y1 + x2 y2, of four components each."""
    return rn(rn(rn(x[1] * y[3]) + rn(x[3] * y[1])) + rn(x[2] * y[2]))


# Products in the registers' format: all terms down to u**(s - 1), with their rounding errors.


def product21_in2(x, y):
    """(x0, x1) * y; error at most 2.1 u^2 |x y|."""
    p, e = two_prod(x[0], y[0])
    return p, rn(e + rn(x[1] * y[0]))


def product22_in2(x, y):
    """(x0, x1) * (y0, y1) without x1 * y1; error at most 7 u^2 |x y|."""
    p, e = two_prod(x[0], y[0])
    return p, rn(e + order1(x, y))


def product31_in3(x, y):
    """(x0, x1, x2) * y."""
    p, e = two_prod(x[0], y[0])
    q, f = two_prod(x[1], y[0])
    q, g = two_sum(q, e)
    return p, q, rn(rn(f + g) + rn(x[2] * y[0]))


def product33_in3(x, y):
    """(x0, x1, x2) * (y0, y1, y2) without terms below u^2."""
    p, e = two_prod(x[0], y[0])
    q, f = two_prod(x[0], y[1])
    r, g = two_prod(x[1], y[0])
    q, h = two_sum(q, r)
    q, k = two_sum(q, e)
    return p, q, rn(order2(x, y) + rn(rn(f + g) + rn(h + k)))


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
    """(x0, x1, x2, x3) * (y0, y1, y2, y3) without terms below u^3."""
    p, e = two_prod(x[0], y[0])
    q, f = two_prod(x[0], y[1])
    r, g = two_prod(x[1], y[0])
    q, a = two_sum(q, r)
    q, b = two_sum(q, e)
    # Order u^2: three products, two errors of products, two errors of sums.
    t, h = two_prod(x[0], y[2])
    v, k = two_prod(x[2], y[0])
    w, m = two_prod(x[1], y[1])
    t, c = two_sum(t, v)
    f, d = two_sum(f, g)
    a, o = two_sum(a, b)
    t, i = two_sum(t, w)
    f, j = two_sum(f, a)
    t, z = two_sum(t, f)
    errors = rn(rn(rn(h + k) + m) + rn(rn(c + d) + rn(o + i)))
    return p, q, t, rn(rn(order3(x, y) + errors) + rn(j + z))


# Products of components so narrow that they multiply exactly in the registers.


def narrow_product22_in2(x, y):
    """(x0, x1) * (y0, y1); relative error 2**-53 |x0 y1 + x1 y0|."""
    return fast_two_sum(rn(x[0] * y[0]), rn(order1(x, y) + rn(x[1] * y[1])))


def narrow_product33_in2(x, y):
    """(x0, x1, x2) * (y0, y1, y2); relative error 2**-53 |x0 y1 + x1 y0|."""
    last = rn(rn(rn(x[1] * y[2]) + rn(x[2] * y[1])) + rn(x[2] * y[2]))
    return fast_two_sum(rn(x[0] * y[0]), rn(order1(x, y) + rn(order2(x, y) + last)))


def narrow_product33_in3(x, y):
    """(x0, x1, x2) * (y0, y1, y2), except for rounding errors of second-order terms."""
    cross, e = two_sum(rn(x[0] * y[1]), rn(x[1] * y[0]))
    s, f = fast_two_sum(rn(x[0] * y[0]), cross)
    last = rn(rn(rn(x[1] * y[2]) + rn(x[2] * y[1])) + rn(x[2] * y[2]))
    t, g = two_sum(f, rn(order2(x, y) + last))
    return s, t, rn(e + g)


def narrow_product44_in2(x, y):
    """Four by four components of at most 11 bits; relative error 2**-53 |x0 y1 + x1 y0|."""
    least = rn(rn(rn(x[2] * y[3]) + rn(x[3] * y[2])) + rn(x[3] * y[3]))
    low = rn(order2(x, y) + rn(order3(x, y) + rn(order4(x, y) + least)))
    return fast_two_sum(rn(x[0] * y[0]), rn(order1(x, y) + low))


def narrow_product44_in3(x, y):
    """Four by four components of at most 24 bits, down to the fourth order."""
    cross, e = two_sum(rn(x[0] * y[1]), rn(x[1] * y[0]))
    s, f = fast_two_sum(rn(x[0] * y[0]), cross)
    t, g = two_sum(f, rn(order2(x, y) + rn(order3(x, y) + order4(x, y))))
    return s, t, rn(e + g)


# Tables of terms by numbers of components and of registers.


def value(count, state):
    """Return a function from `count` components to `state` registers, padded with zeros."""
    name, doc = f"value{count}_in{state}", f"{count} components in {state} registers."
    return recorded(name, lambda x: (*x, *[ZERO] * (state - count)), {"x": count}, doc)


def product11(state):
    """Return the exact product of single components in `state` registers, padded with zeros."""
    padding = (ZERO,) * (state - 2)
    name, doc = f"product11_in{state}", "x * y exactly."
    return recorded(name, lambda x, y: (*two_prod(x[0], y[0]), *padding), {"x": 1, "y": 1}, doc)


def narrow_by_float(count, state):
    """Return the product of narrow components and a float: the sum of exact products."""
    whole = kept(NARROW_SUM[count, state], state)
    name, doc = f"narrow_product{count}1_in{state}", "The sum of the exact products by y."
    sizes = {"x": count, "y": 1}
    return recorded(name, lambda x, y: whole(tuple(rn(a * y[0]) for a in x)), sizes, doc)


def in_both_orders(products):
    """Add the products of exchanged operands, for a float times an expansion."""

    def exchanged(key):
        right, left, state = key
        term = products[left, right, state]
        run, name = kept(term, state), f"{term.__name__}_exchanged"
        return recorded(name, lambda x, y: run(y, x), {"x": right, "y": left}, term.__doc__)

    others = [(right, left, state) for left, right, state in products if left != right]
    return products | Family(exchanged, others)


# Sums by (components, state): WIDE for components in the registers' format, or one of any format.
WIDE_SUM = Family(lambda key: value(*key), ((1, 2), (1, 3), (1, 4), (2, 2), (3, 3), (4, 4)))
NARROW_SUM = {
    (2, 2): narrow2_in2,
    (3, 2): narrow3_in2,
    (3, 3): narrow3_in3,
    (4, 2): narrow4_in2,
    (4, 3): narrow4_in3,
} | Family(WIDE_SUM.__getitem__, ((1, 2), (1, 3), (1, 4)))
# Products by (left, right, state).
WIDE_PRODUCT = in_both_orders(
    {
        (2, 1, 2): product21_in2,
        (2, 2, 2): product22_in2,
        (3, 1, 3): product31_in3,
        (3, 3, 3): product33_in3,
        (4, 1, 4): product41_in4,
        (4, 4, 4): product44_in4,
    }
    | Family(lambda key: product11(key[2]), ((1, 1, 2), (1, 1, 3), (1, 1, 4)))
)
NARROW_PRODUCT = in_both_orders(
    {
        (2, 2, 2): narrow_product22_in2,
        (3, 3, 2): narrow_product33_in2,
        (3, 3, 3): narrow_product33_in3,
        (4, 4, 2): narrow_product44_in2,
        (4, 4, 3): narrow_product44_in3,
    }
    | Family(
        lambda key: narrow_by_float(key[0], key[2]),
        [(n, 1, state) for n, state in NARROW_SUM if state < 4],
    )
)


# Squared differences of components in the registers' format, one per register.
@family("x* y*", minus=SUB, product=Family(lambda n: WIDE_PRODUCT[n, n, n], (2, 3, 4)))
def squared_gap(x, y, minus, product):
    """Return the square of x - y."""
    gap = minus(x, y)
    return product(gap, gap)


def gap_of(enter, count, state):
    """Return the square of x - y; `enter` converts `count` components to `state` registers."""
    entered, gap = kept(enter, state), kept(squared_gap[state], state)
    name, doc = f"squared_gap{state}_{enter.__name__}", "The square of x - y, for narrower x."
    sizes = {"x": count, "y": state}
    return recorded(name, lambda x, y: gap(entered(x), y), sizes, doc)
