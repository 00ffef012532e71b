"""Formulas of Householder reflections on complex expansions, by components of a part.

They correspond to the real formulas of `reflection`. A complex number is a pair of tuples, as in
`complex_elimination`. A partial sum of complex products holds the sum of the real parts, then of
the imaginary parts. Each product adds two terms to each sum, in the order of a real fold over
interleaved parts.
"""

from mcf.kernels.algorithms import reflection
from mcf.kernels.algorithms.ieee import DIV, SQRT, SUB, negated
from mcf.kernels.algorithms.primitives import ZERO
from mcf.kernels.algorithms.reflection import one, zero
from mcf.kernels.algorithms.selection import either, negated_where
from mcf.kernels.statements import Complex, family, kept, recorded


@family("first** squares** flat", root=SQRT, difference=SUB, over=DIV)
def reflector(first, squares, flat, root, difference, over):
    """Return the divisor of x below its first number, and tau.

    d = x[0] - beta and tau = -d / beta with beta = -sign(Re x[0]) |x|; 1 and 0 if `flat`.
    """
    x, y = first
    norm = root(squares.real)
    beta = negated_where(x[0] > ZERO, norm)
    t = difference(x, beta)
    flat = flat & (y[0] == ZERO)
    below = either(flat, one(beta), beta)
    p, q = negated(over(t, below)), negated(over(y, below))
    t, y = either(flat, one(t), t), either(flat, zero(y), y)
    return Complex(t, y), Complex(either(flat, zero(p), p), either(flat, zero(q), q))


@family("x** more main", by_part=reflection.scaled)
def scaled(x, more, main, by_part):
    """Return x more main, each part as a real number."""
    return Complex(*(by_part(part, more, main) for part in x))


@family("x**")
def conjugate(x):
    """Return the complex conjugate."""
    return Complex(x.real, negated(x.imag))


@family("x** way")
def conjugate_by(x, way):
    """Return x, or its conjugate where `way` is -1 and not 1."""
    return Complex(x.real, tuple(a * way for a in x.imag))


def _terms(x, y, term):
    """Return the two terms of the real part of x y, and those of the imaginary part."""
    return (
        (term(x.real, y.real), term(negated(x.imag), y.imag)),
        (term(x.real, y.imag), term(x.imag, y.real)),
    )


def sums(n, state, term, merge, combine, settle):
    """Return folds of complex products, built from the functions and the state of a real fold."""
    term, merge, combine = (kept(f, state) for f in (term, merge, combine))
    whole = kept(settle, state)

    def product(join):
        return lambda x, y: Complex(*(join(*terms) for terms in _terms(x, y, term)))

    def pairs(join):
        return lambda x, y: Complex(join(x.real, y.real), join(x.imag, y.imag))

    def joined(z, x, y):
        parts = zip(z, _terms(x, y, term), strict=True)
        return Complex(*(combine(combine(part, p), q) for part, (p, q) in parts))

    def function(name, form, doc, **sizes):
        def formed(*given):
            halves = (len(x) // 2 for x in given)
            return form(*(Complex(x[:k], x[k:]) for x, k in zip(given, halves, strict=True)))

        return recorded(f"complex_{name}{n}", formed, {a: 2 * k for a, k in sizes.items()}, doc)

    return {
        "term": function("term", product(merge), "x y, as partial sums.", x=n, y=n),
        "merge": function("merge", pairs(merge), "Both partial sums.", x=state, y=state),
        "combine": function("combine", pairs(combine), "The next partial sums.", x=state, y=state),
        "alone": function("alone", product(combine), "x y, its terms in a row.", x=n, y=n),
        "joined": function("joined", joined, "z + x y, likewise.", z=state, x=n, y=n),
        "settle": function(
            "settle", lambda x: Complex(*(whole(p)[:n] for p in x)), "The components.", x=state
        ),
    }
