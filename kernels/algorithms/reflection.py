"""Formulas of Householder reflections on expansions, by number of components."""

from mcf.kernels.algorithms.families import written
from mcf.kernels.algorithms.ieee import DIV, MINUS, SQRT, SUB, each
from mcf.kernels.algorithms.primitives import ONE, ZERO, rn, where


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


def _by_terms(name, parameters, cells, doc):
    """Return a family of functions whose k-th result component is the expression `cells(k)`."""

    def make(n):
        body = [f"return {', '.join(cells(k) for k in range(n))},"]
        return written(f"{name}{n}", parameters, body, doc, where=where, ONE=ONE, ZERO=ZERO)

    return {n: make(n) for n in (1, 2, 3, 4)}


CHOSEN = _by_terms("chosen", "c, x, y", lambda k: f"where(c, x[{k}], y[{k}])", "x where c, else y.")
# Registers shaped like x: a literal is not a register on every executor.
ONE_LIKE = _by_terms("one_like", "x", lambda k: "ZERO" if k else "ONE", "1.")
ZERO_LIKE = _by_terms("zero_like", "x", lambda k: "ZERO", "0.")


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
