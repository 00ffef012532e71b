"""Formulas of Householder reflections on complex expansions, by components of a part.

They correspond to the real formulas of `reflection`. A complex number is a pair of tuples, as in
`complex_elimination`. A partial sum of complex products holds the sum of the real parts, then of
the imaginary parts. Each product adds two terms to each sum, in the order of a real fold over
interleaved parts.
"""

from mcf.kernels.algorithms.ieee import DIV, MINUS, SQRT, SUB
from mcf.kernels.algorithms.primitives import ZERO, neg
from mcf.kernels.algorithms.reflection import CHOSEN, ONE_LIKE, SCALED, ZERO_LIKE
from mcf.kernels.statements import Complex, family, kept, recorded


def reflector(first, squares, flat, root, minus, difference, over, chosen, one, zero):
    """d = x[0] - beta and tau = -d / beta with beta = -sign(Re x[0]) |x|; 1 and 0 if `flat`."""
    x, y = first
    norm = root(squares.real)
    beta = chosen(x[0] > ZERO, minus(norm), norm)
    t = difference(x, beta)
    flat = flat & (y[0] == ZERO)
    below = chosen(flat, one(beta), beta)
    p, q = minus(over(t, below)), minus(over(y, below))
    t, y = chosen(flat, one(t), t), chosen(flat, zero(y), y)
    return Complex(t, y), Complex(chosen(flat, zero(p), p), chosen(flat, zero(q), q))


def scaled_parts(x, more, main, scaled):
    """Return x more main, each part as a real number."""
    return Complex(scaled(x.real, more, main), scaled(x.imag, more, main))


def conjugate(x):
    """Return the complex conjugate."""
    return Complex(x.real, tuple(map(neg, x.imag)))


def conjugate_by(x, way):
    """Return x, or its conjugate where `way` is -1 and not 1."""
    return Complex(x.real, tuple(a * way for a in x.imag))


REFLECTOR = family(
    "complex_reflector",
    reflector,
    "first** squares** flat",
    "What x is divided by below its first number, and tau.",
    root=SQRT,
    minus=MINUS,
    difference=SUB,
    over=DIV,
    chosen=CHOSEN,
    one=ONE_LIKE,
    zero=ZERO_LIKE,
)
SCALED_PARTS = family(
    "complex_scaled",
    scaled_parts,
    "x** more main",
    "x more main, each part as a real number.",
    scaled=SCALED,
)
CONJUGATE = family("complex_conjugate", conjugate, "x**", "The complex conjugate.")
CONJUGATE_BY = family(
    "complex_conjugate_by",
    conjugate_by,
    "x** way",
    "x, or its conjugate where `way` is -1 and not 1.",
)


def _terms(x, y, term):
    """Return the two terms of the real part of x y, and those of the imaginary part."""
    return (
        (term(x.real, y.real), term(tuple(map(neg, x.imag)), y.imag)),
        (term(x.real, y.imag), term(x.imag, y.real)),
    )


def sums(n, state, term, merge, combine, settle):
    """Return folds of complex products, built from the functions and the state of a real fold."""
    term, merge, combine = (kept(f, state) for f in (term, merge, combine))
    settle = kept(settle, n)

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
            "settle", lambda x: Complex(*map(settle, x)), "The components.", x=state
        ),
    }
