"""Formulas of Householder reflections on expansions, by number of components."""

from mcf.kernels.algorithms.families import written
from mcf.kernels.algorithms.ieee import DIV, MINUS, SQRT, SUB, each
from mcf.kernels.algorithms.primitives import (
    ONE,
    ZERO,
    absolute,
    bits64,
    const,
    from_bits64,
    greater,
    lesser,
    rn,
    where,
    whole,
)


def reflector(first, squares, flat):
    """Return the divisor of x below its first number, and tau; squares = x^T x.

    With beta = -sign(x_0) |x| these are x_0 - beta and (beta - x_0) / beta, but 1 and 0 if `flat`,
    i.e. all of x below is zero.
    """
    norm = root(squares)
    beta = chosen(first[0] > ZERO, minus(norm), norm)
    gap = difference(first, beta)
    tau = minus(quotient(gap, chosen(flat, one(beta), beta)))
    return chosen(flat, one(gap), gap), chosen(flat, zero(tau), tau)


def _by_terms(name, parameters, cells, doc, terms=(1, 2, 3, 4)):
    """Return a family of functions whose k-th result component is the expression `cells(k)`."""

    def make(n):
        body = [f"return {', '.join(cells(k) for k in range(n))},"]
        names = {"where": where, "ONE": ONE, "ZERO": ZERO, "rn": rn, "const": const}
        return written(f"{name}{n}", parameters, body, doc, **names)

    return {n: make(n) for n in terms}


# Complex numbers have up to 8 components.
CHOSEN = _by_terms(
    "chosen", "c, x, y", lambda k: f"where(c, x[{k}], y[{k}])", "x where c, else y.", range(1, 9)
)
# Registers shaped like x: a literal is not a register on every executor.
ONE_LIKE = _by_terms("one_like", "x", lambda k: "ZERO" if k else "ONE", "1.", range(1, 9))
ZERO_LIKE = _by_terms("zero_like", "x", lambda k: "ZERO", "0.", range(1, 9))


def _scaled(n):
    """Return the function that multiplies x by two powers of two."""
    body = [f"h{k} = rn(rn(x[{k}] * more) * main)" for k in range(n)]
    body.append("finite = rn(h0 - h0) == ZERO")
    cells = "".join(f"where(finite, h{k}, ZERO), " for k in range(1, n))
    body.append(f"return h0, {cells}")
    doc = "x more main, without low components where the leading one is not finite."
    return written(f"scaled{n}", "x, more, main", body, doc, rn=rn, where=where, ZERO=ZERO)


SCALED = {n: _scaled(n) for n in (1, 2, 3, 4)}
REFLECTOR = each(
    "reflector",
    "What x is divided by below its first number, and tau.",
    reflector,
    root=SQRT,
    minus=MINUS,
    difference=SUB,
    quotient=DIV,
    chosen=CHOSEN,
    one=ONE_LIKE,
    zero=ZERO_LIKE,
)

TIMES = _by_terms("times", "x, y", lambda k: f"rn(x[{k}] * y)", "x y for a power of two y.")
HALVED = _by_terms("halved", "x", lambda k: f"rn(x[{k}] * const(0.5))", "x / 2.", range(1, 9))


def powers(largest):
    """Return two powers of two whose product scales a magnitude to [1/2, 1).

    A power beyond the exponent range is applied as two factors, else the first is 1. Zero and what
    is not finite are left as they are.
    """
    exponent = ((bits64(largest[0]) >> 52) & 0x7FF) - 1022
    # Multiplying a subnormal number first makes its exponent readable.
    below = ((bits64(rn(largest[0] * const(2.0**54))) >> 52) & 0x7FF) - 1076
    exponent = where(exponent == whole(-1022), below, exponent)
    none = (largest[0] == ZERO) | (exponent == whole(1025))
    down = whole(0) - where(none, whole(0), exponent)
    main = greater(whole(-1022), lesser(whole(1023), down))
    return from_bits64((down - main + 1023) << 52), from_bits64((main + 1023) << 52)


def is_flat(flat):
    """Return whether all numbers of a column below its first are 0."""
    return flat[0] != ZERO


def conjugate(x):
    """Return a real number."""
    return x


def turned(x, way):
    """Return a real number, whichever the way."""
    return x


def mean(x, y):
    """Return |x + y| / 2 by first components."""
    return absolute(rn(rn(x[0] + y[0]) * const(0.5)))
