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
from typing import Any

from mcf.kernels.algorithms import complex_elimination, distillation, elimination, ieee
from mcf.kernels.algorithms import complex_reflection as complex_formulas
from mcf.kernels.algorithms import reflection as formulas
from mcf.kernels.algorithms.families import written
from mcf.kernels.bind import Algorithm
from mcf.kernels.fold import GROUP, product_fold
from mcf.kernels.formats import FP64


# Instances are compared and hashed by identity, like `Elementwise`.
@dataclasses.dataclass(frozen=True, eq=False)
class Products:
    """Sums of products of float64 expansions, in the order of a matrix product.

    Products are added in trees of `count` numbers, the rest one by one. A complex product is two
    terms of either part.

    Args:
        terms: components of a number, of both parts of a complex one.
        state: the number of registers of a partial sum.
        count: the numbers of a tree.
        settle: partial sums -> as many components, of real numbers.
        total: partial sums -> a number.
        term: (x, y) -> x y, as partial sums.
        merge: both partial sums, inside a tree.
        combine: both partial sums, outside the trees.
        tree: tuples of `count` numbers each -> the partial sums of their products.
        alone: (x, y) -> x y, as the first product after no tree.
        joined: (z, x, y) -> z + x y, as a product after the trees.
        conjugate: x -> conj(x).
        conjugate_by: (x, way) -> x, or conj(x) where the second is -1.
    """

    terms: int
    state: int
    count: int
    settle: Algorithm
    total: Algorithm
    term: Algorithm
    merge: Algorithm
    combine: Algorithm
    tree: Algorithm
    alone: Algorithm
    joined: Algorithm
    conjugate: Algorithm
    conjugate_by: Algorithm

    @property
    def algorithms(self) -> dict[str, Algorithm]:
        """The algorithms by the names that loops give them."""
        names = ("total", "combine", "tree", "alone", "joined", "conjugate", "conjugate_by")
        return {name: getattr(self, name) for name in names}


@functools.cache
def products(terms: int, parts: int = 1) -> Products:
    """Return sums of products of numbers with `terms` components (per part, for complex ones)."""
    own: tuple[Any, ...]
    sums: dict[str, Any]
    fold = product_fold(FP64, terms, terms, terms)
    settle = distillation.distill(fold.state, fold.state, partial=True)
    if parts == 2:
        sums = complex_formulas.sums(terms, fold.state, fold.term, fold.merge, fold.combine, settle)
        total = settle = sums.pop("settle")
        own = complex_formulas.CONJUGATE[terms], complex_formulas.CONJUGATE_BY[terms]
    else:
        sums = {"term": fold.term, "merge": fold.merge, "combine": fold.combine}
        sums["alone"] = fold.term
        cells = ", ".join(f"found[{k}]" for k in range(terms))
        body = ["found = settle(x)", f"return {cells},"]
        total = written(f"total{terms}", "x", body, "The number.", settle=settle)
        body = ["return combine(z, term(x, y))"]
        sums["joined"] = written(f"joined{terms}", "z, x, y", body, "z + x y.", **sums)
        own = formulas.conjugate, formulas.conjugate_by
    count = GROUP // parts
    trees = [f"term(x[{k}], y[{k}])" for k in range(count)]
    while len(trees) > 1:
        trees = [f"merge({p}, {q})" for p, q in zip(trees[::2], trees[1::2], strict=True)]
    name = f"tree{parts}{terms}"
    both: dict[str, Any] = {k: sums[k] for k in ("term", "merge")}
    tree = written(name, "x, y", [f"return {trees[0]}"], "Partial sums of x y.", **both)
    order = (sums["term"], sums["merge"], sums["combine"], tree, sums["alone"], sums["joined"])
    return Products(parts * terms, parts * fold.state, count, settle, total, *order, *own)


@dataclasses.dataclass(frozen=True, eq=False)
class Reflection:
    """The reflections of a panel of float64 expansions.

    Args:
        terms: components of a number, of both parts of a complex one.
        parts: 1 for real numbers, 2 for complex ones.
        products: the sums of inner products.
        scaled: x and two powers of two -> their product.
        reflector: (x[0], s, flat) -> d, tau.
        quotient: (x, d) -> x / d.
        product: (x, y) -> x y.
        minus: x -> -x.
        update: (z, m, w) -> z - m w.
        difference: (x, y) -> x - y.
        magnitude: x -> |x|, whose exponent scales a column.
        still_flat: (flat, x) -> flat where x is 0, else 0.
        one: x -> 1.
        zero: x -> 0.
    """

    terms: int
    parts: int
    products: Products
    scaled: Algorithm
    reflector: Algorithm
    quotient: Algorithm
    product: Algorithm
    minus: Algorithm
    update: Algorithm
    difference: Algorithm
    magnitude: Algorithm
    still_flat: Algorithm
    one: Algorithm
    zero: Algorithm

    @property
    def algorithms(self) -> dict[str, Algorithm]:
        """The algorithms by the names that loops give them."""
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)[3:]}
        more = {"powers": formulas.powers, "is_flat": formulas.is_flat}
        return own | more | self.products.algorithms | elimination.SELECTION


@functools.cache
def reflection(terms: int, parts: int = 1) -> Reflection:
    """Return the reflections for numbers of `terms` components (per part, for complex numbers)."""
    own: tuple[Any, ...]
    if parts == 2:
        own = (complex_formulas.SCALED_PARTS, complex_formulas.REFLECTOR)
        f = complex_elimination
        own += (f.QUOTIENT, f.PRODUCT, f.NEGATIVE, f.LESS_PRODUCT, f.DIFFERENCE, f.MAGNITUDE)
        own += (f.STILL_FLAT,)
    else:
        own = (formulas.SCALED, formulas.REFLECTOR, ieee.DIV, ieee.MUL, ieee.MINUS)
        own += (elimination.LESS_PRODUCT, ieee.SUB, elimination.MAGNITUDE, elimination.STILL_FLAT)
    shaped = formulas.ONE_LIKE[parts * terms], formulas.ZERO_LIKE[parts * terms]
    found: list[Any] = [family[terms] for family in own]
    return Reflection(parts * terms, parts, products(terms, parts), *[*found, *shaped])
