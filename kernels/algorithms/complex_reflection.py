"""Formulas of Householder reflections on complex expansions, by components of a part.

They correspond to those of `reflection` on real numbers; numbers are tuples as in
`complex_elimination`. A partial sum of complex products holds the sum of the real part, then of the
imaginary part. Each product adds two terms to either, in the order of a real fold over interleaved
parts.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

from mcf.kernels.algorithms.complex_elimination import Family, family, half, whole
from mcf.kernels.algorithms.families import written
from mcf.kernels.algorithms.ieee import DIV, MINUS, SQRT, SUB
from mcf.kernels.algorithms.primitives import neg
from mcf.kernels.algorithms.reflection import CHOSEN, ONE_LIKE, SCALED, ZERO_LIKE


def _reflector(n: int) -> list[str]:
    """d = x[0] - beta and tau = -d / beta with beta = -sign(Re x[0]) |x|; 1 and 0 if `flat`."""
    return [
        f"x, y = {half('first', n, 0)}, {half('first', n, 1)}",
        f"norm = root({half('squares', n, 0)})",
        "beta = chosen(first[0] > ZERO, minus(norm), norm)",
        "t = difference(x, beta)",
        f"flat = flat & (first[{n}] == ZERO)",
        "below = chosen(flat, one(beta), beta)",
        "p, q = minus(over(t, below)), minus(over(y, below))",
        "t, y = chosen(flat, one(t), t), chosen(flat, zero(y), y)",
        "p, q = chosen(flat, zero(p), p), chosen(flat, zero(q), q)",
        f"return ({whole('t', 'y', n)}), ({whole('p', 'q', n)})",
    ]


REFLECTOR = family(
    "complex_reflector",
    "first, squares, flat",
    _reflector,
    "What x is divided by below its first number, and tau.",
    root=SQRT,
    minus=MINUS,
    difference=SUB,
    over=DIV,
    chosen=CHOSEN,
    one=ONE_LIKE,
    zero=ZERO_LIKE,
)
SCALED_PARTS: Family = family(
    "complex_scaled",
    "x, more, main",
    lambda n: [
        *(f"{'pq'[k]} = scaled({half('x', n, k)}, more, main)" for k in (0, 1)),
        f"return {whole('p', 'q', n)}",
    ],
    "x more main, each part as a real number.",
    scaled=SCALED,
)
CONJUGATE: Family = family(
    "complex_conjugate",
    "x",
    lambda n: [f"return {', '.join(f'x[{k}]' if k < n else f'neg(x[{k}])' for k in range(2 * n))}"],
    "The complex conjugate.",
    neg=neg,
)
TURNED: Family = family(
    "complex_turned",
    "x, way",
    lambda n: [f"return {', '.join(f'x[{k}]' + ' * way' * (k >= n) for k in range(2 * n))}"],
    "x, or its conjugate where `way` is -1 and not 1.",
)


def sums(
    n: int, state: int, term: Any, merge: Any, combine: Any, settle: Any
) -> dict[str, FunctionType]:
    """Return folds of complex products, built from the functions and the state of a real fold."""
    a, b, c, d = (half(x, n, k) for x in "xy" for k in (0, 1))
    less = "(" + "".join(f"neg(x[{n + k}]), " for k in range(n)) + ")"
    terms = [
        f"p, q = term({a}, {c}), term({less}, {d})",
        f"r, s = term({a}, {d}), term({b}, {c})",
    ]
    both = f"return {whole('p', 'r', state)}"
    called = {"term": term, "merge": merge, "combine": combine, "settle": settle, "neg": neg}

    def function(name: str, parameters: str, doc: str, *body: str) -> FunctionType:
        return written(f"complex_{name}{n}", parameters, list(body), doc, **called)

    def pairs(name: str) -> list[str]:
        x, y = ([half(v, state, k) for k in (0, 1)] for v in "xy")
        return [f"p, r = {name}({x[0]}, {y[0]}), {name}({x[1]}, {y[1]})", both]

    first, second = half("z", state, 0), half("z", state, 1)
    later = f"p, r = combine(combine({first}, p), q), combine(combine({second}, r), s)"
    settled = f"p, r = settle({half('x', state, 0)}), settle({half('x', state, 1)})"
    merged, alone = (f"p, r = {f}(p, q), {f}(r, s)" for f in ("merge", "combine"))
    return {
        "term": function("term", "x, y", "x y, as partial sums.", *terms, merged, both),
        "merge": function("merge", "x, y", "Both partial sums.", *pairs("merge")),
        "combine": function("combine", "x, y", "The next partial sums.", *pairs("combine")),
        "alone": function("alone", "x, y", "x y, its terms in a row.", *terms, alone, both),
        "joined": function("joined", "z, x, y", "z + x y, likewise.", *terms, later, both),
        "settle": function(
            "settle", "x", "The components.", settled, f"return {whole('p', 'r', n)}"
        ),
    }
