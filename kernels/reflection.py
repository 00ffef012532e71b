"""The declaration of Householder's reflections of a panel, from which executors make loops.

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

Inner products are folds as those of a matrix product, over as many rows as stand here (V has zeros
above its diagonal), settled and cut to the components of R.
"""

from __future__ import annotations

import dataclasses
import functools

from mcf.kernels.algorithms import distillation, elimination, ieee
from mcf.kernels.algorithms import reflection as formulas
from mcf.kernels.bind import Algorithm
from mcf.kernels.fold import Fold, product_fold
from mcf.kernels.formats import FP64


# Compared and hashed by identity, as `Elementwise`.
@dataclasses.dataclass(frozen=True, eq=False)
class Reflection:
    """The reflections of a panel of float64 expansions.

    Args:
        terms: components.
        fold: of inner products.
        scaled: x and two powers of two -> their product.
        settle: partial sums -> as many components.
        reflector: (x[0], s, flat) -> d, tau.
        quotient: (x, d) -> x / d.
        product: (x, y) -> x y.
        minus: x -> -x.
        update: (z, m, w) -> z - m w.
        difference: (x, y) -> x - y.
    """

    terms: int
    fold: Fold
    scaled: Algorithm
    settle: Algorithm
    reflector: Algorithm
    quotient: Algorithm
    product: Algorithm
    minus: Algorithm
    update: Algorithm
    difference: Algorithm


@functools.cache
def reflection(terms: int) -> Reflection:
    """The reflections of panels with a number of components."""
    fold = product_fold(FP64, terms, terms, terms)
    return Reflection(
        terms,
        fold,
        formulas.SCALED[terms],
        distillation.distill(fold.state, fold.state, partial=True),
        formulas.REFLECTOR[terms],
        ieee.DIV[terms],
        ieee.MUL[terms],
        ieee.MINUS[terms],
        elimination.LESS_PRODUCT[terms],
        ieee.SUB[terms],
    )
