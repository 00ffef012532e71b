"""Declare Householder reflections of a panel, from which executors generate loops.

The columns of R, expansions of float64 in [h, w], become upper triangular by reflections
I - tau v v^T, whose product is I - V T V^T. For j = 0, 1, ...

1. x = R[j:, j] 2^-e, whose largest leading component is in [1/2, 1): each component is rounded
   once, and low ones are zero where the leading one is not finite.
2. s = x^T x; (d, tau) = reflector(x[0], s, whether all x[1:] are 0); v = (1, x[1:] / d).
3. R[j:, k] = R[j:, k] - v (tau (v^T R[j:, k])) for columns k >= j.
4. V[j:, j] = v; T[:j, j] = -(tau (T[:j, :j] (V[:, :j]^T v))), T[j, j] = tau.

Where the panel has all reflections of a matrix the same call may go on with it:

5. X = X - V (T^T (V^T X)) for the columns X of R on the right of the panel.
6. Q = E - V (T (V^T E)) for as many columns E of the identity as are wanted.

Of complex numbers v^T and V^T are of conjugates, so is the tau of 3 and the T^T of 5; beta is real,
and x[1:] = 0 has to be reflected where x[0] is not real.

Inner products are folds as those of a matrix product, over as many rows as stand here (V has zeros
above its diagonal), settled and cut to the components of R.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from mcf.kernels.algorithms import (
    complex_elimination,
    complex_reflection,
    distillation,
    elimination,
)
from mcf.kernels.algorithms import reflection as formulas
from mcf.kernels.algorithms.ieee import SUB
from mcf.kernels.bind import Algorithm, Formulas
from mcf.kernels.fold import GROUP, product_fold
from mcf.kernels.formats import FP64
from mcf.kernels.statements import written


@dataclasses.dataclass(frozen=True, eq=False)
class Products(Formulas):
    """Sums of products of float64 expansions, in the order of a matrix product.

    Products are added in trees of `count` numbers, the rest one by one. A complex product is two
    terms of either part.

    Args:
        state: the number of registers of a partial sum.
        count: the numbers of a tree.
        fold: the algorithms of a fold: "term", (x, y) -> x y, as partial sums; "merge" and
            "combine", both partial sums inside and outside the trees; "settle", partial sums -> as
            many components, of real numbers.
    """

    state: int
    count: int
    fold: Mapping[str, Algorithm]


@functools.cache
def products(terms: int, parts: int = 1) -> Products:
    """Return sums of products of numbers with `terms` components (per part, for complex ones)."""
    fold = product_fold(FP64, terms, terms, terms)
    settle = distillation.distill(fold.state, fold.state, partial=True)
    sums: dict[str, Any] = {"term": fold.term, "merge": fold.merge, "combine": fold.combine}
    conjugate: tuple[Algorithm, Algorithm]
    if parts == 2:
        sums = complex_reflection.sums(
            terms, fold.state, fold.term, fold.merge, fold.combine, settle
        )
        total = settle = sums.pop("settle")
        alone, joined = sums.pop("alone"), sums.pop("joined")
        conjugate = complex_reflection.conjugate[terms], complex_reflection.conjugate_by[terms]
    else:
        alone = fold.term
        cells = ", ".join(f"found[{k}]" for k in range(terms))
        body = ["found = settle(x)", f"return {cells},"]
        total = written(f"total{terms}", "x", body, "The number.", settle=settle)
        body = ["return combine(z, term(x, y))"]
        joined = written(f"joined{terms}", "z, x, y", body, "z + x y.", **sums)
        conjugate = formulas.conjugate, formulas.conjugate_by
    count = GROUP // parts
    trees = [f"term(x[{k}], y[{k}])" for k in range(count)]
    while len(trees) > 1:
        trees = [f"merge({p}, {q})" for p, q in zip(trees[::2], trees[1::2], strict=True)]
    name = f"tree{parts}{terms}"
    own = {
        # Partial sums -> a number.
        "total": total,
        "combine": sums["combine"],
        # Tuples of `count` numbers each -> the partial sums of their products.
        "tree": written(name, "x, y", [f"return {trees[0]}"], "Partial sums of x y.", **sums),
        # (x, y) -> x y, as the first product after no tree
        "alone": alone,
        # (z, x, y) -> z + x y, as a product after the trees
        "joined": joined,
        # x -> conj(x); (x, way) -> x, or conj(x) where the second is -1
        "conjugate": conjugate[0],
        "conjugate_by": conjugate[1],
    }
    whole = sums | {"settle": settle}
    return Products(parts * terms, parts, own, parts * fold.state, count, whole)


@dataclasses.dataclass(frozen=True, eq=False)
class Reflection(Formulas):
    """The reflections of a panel of float64 expansions, with the sums of inner products."""

    products: Products


@functools.cache
def reflection(terms: int, parts: int = 1) -> Reflection:
    """Return the reflections for numbers of `terms` components (per part, for complex numbers)."""
    f: ModuleType = complex_elimination if parts == 2 else elimination
    g: ModuleType = complex_reflection if parts == 2 else formulas
    families = {
        # (x, two powers of two) -> their product
        "scaled": g.scaled,
        # (x[0], s, flat) -> d, tau
        "reflector": g.reflector,
        # (x, d) -> x / d
        "quotient": f.quotient,
        # (x, y) -> x y
        "product": f.product,
        # x -> -x
        "minus": f.negative,
        # (z, m, w) -> z - m w
        "update": f.less_product,
        # (x, y) -> x - y
        "difference": f.difference if parts == 2 else SUB,
        # x -> |x|, whose exponent scales a column
        "magnitude": f.magnitude,
        # (flat, x) -> flat where x is 0, else 0
        "still_flat": f.still_flat,
    }
    own = {name: family[terms] for name, family in families.items()}
    own |= {"one": formulas.one_like[parts * terms], "zero": formulas.zero_like[parts * terms]}
    own |= {"powers": formulas.powers, "is_flat": formulas.is_flat}
    sums = products(terms, parts)
    own |= {**sums.algorithms, **elimination.SELECTION}
    return Reflection(parts * terms, parts, own, sums)
