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

from mcf.kernels.algorithms import complex_elimination, distillation, elimination, ieee
from mcf.kernels.algorithms import complex_reflection as complex_formulas
from mcf.kernels.algorithms import reflection as formulas
from mcf.kernels.bind import Algorithm
from mcf.kernels.fold import Fold, product_fold
from mcf.kernels.formats import FP64


# Instances are compared and hashed by identity, like `Elementwise`.
@dataclasses.dataclass(frozen=True, eq=False)
class Reflection:
    """The reflections of a panel of float64 expansions.

    Args:
        terms: components of a number, of both parts of a complex one.
        parts: 1 for real numbers, 2 for complex ones.
        fold: the fold of inner products.
        scaled: x and two powers of two -> their product.
        settle: partial sums -> as many components.
        reflector: (x[0], s, flat) -> d, tau.
        quotient: (x, d) -> x / d.
        product: (x, y) -> x y.
        minus: x -> -x.
        update: (z, m, w) -> z - m w.
        difference: (x, y) -> x - y.
        magnitude: x -> |x|, whose exponent scales a column.
        conjugate: x -> conj(x), of complex numbers.
        turned: (x, way) -> x, or conj(x) where the second is -1, of complex numbers.
    """

    terms: int
    parts: int
    fold: Fold | ComplexFold
    scaled: Algorithm
    settle: Algorithm
    reflector: Algorithm
    quotient: Algorithm
    product: Algorithm
    minus: Algorithm
    update: Algorithm
    difference: Algorithm
    magnitude: Algorithm
    conjugate: Algorithm | None = None
    turned: Algorithm | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class ComplexFold:
    """The counterpart of `Fold` for products of complex numbers: partial sums of both parts.

    `alone` and `joined` are products on their own; each part of one consists of two consecutive
    terms.
    """

    state: int
    term: Algorithm
    merge: Algorithm
    combine: Algorithm
    alone: Algorithm
    joined: Algorithm


@functools.cache
def reflection(terms: int, parts: int = 1) -> Reflection:
    """Return the reflections for numbers of `terms` components (per part, for complex numbers)."""
    fold = product_fold(FP64, terms, terms, terms)
    settle = distillation.distill(fold.state, fold.state, partial=True)
    if parts == 2:
        return _of_complex(terms, fold, settle)
    return Reflection(
        terms,
        parts,
        fold,
        formulas.SCALED[terms],
        settle,
        formulas.REFLECTOR[terms],
        ieee.DIV[terms],
        ieee.MUL[terms],
        ieee.MINUS[terms],
        elimination.LESS_PRODUCT[terms],
        ieee.SUB[terms],
        elimination.MAGNITUDE[terms],
    )


def complex_fold(terms: int, fold: Fold, settle: Algorithm) -> tuple[ComplexFold, Algorithm]:
    """Return the fold of complex products, and the algorithm that finalizes its partial sums.

    Args:
        terms: components of a part.
        fold: the fold of products of real numbers.
        settle: its partial sums -> as many components.
    """
    sums = complex_formulas.sums(terms, fold.state, fold.term, fold.merge, fold.combine, settle)
    settle = sums.pop("settle")
    return ComplexFold(2 * fold.state, **sums), settle


def _of_complex(terms: int, fold: Fold, settle: Algorithm) -> Reflection:
    sums, settle = complex_fold(terms, fold, settle)
    return Reflection(
        2 * terms,
        2,
        sums,
        complex_formulas.SCALED_PARTS[terms],
        settle,
        complex_formulas.REFLECTOR[terms],
        complex_elimination.QUOTIENT[terms],
        complex_elimination.PRODUCT[terms],
        complex_elimination.NEGATIVE[terms],
        complex_elimination.LESS_PRODUCT[terms],
        complex_elimination.DIFFERENCE[terms],
        complex_elimination.MAGNITUDE[terms],
        complex_formulas.CONJUGATE[terms],
        complex_formulas.TURNED[terms],
    )
