"""Declare the decomposition of whole small matrices, from which executors generate loops.

All of `eigh` of symmetric matrices, or of `svd` of matrices of no more than twice as many columns
as rows, in expansions of float64. What is computed, and in which order, is what
`mcf.linalg.eigen` and `mcf.linalg.singular` have as operations on tensors:

1. Elements, of which `eigh` reads one triangle, are divided by a power of two so that the largest
   is below 1 and at least 1/2. `eigh` adds a power of two to the diagonal, above 1.4 times the
   Frobenius norm.
2. Rows are made orthogonal: sweeps in float64 (`rotation`), then corrections (`refinement`). The
   start of the corrections are the turned rows over their norms of `eigh`, what has turned them of
   `svd`. Where corrections do not end, or leave rows apart, sweeps in expansions follow, and what
   these leave is looked at (`Limits`).
3. Rows over their norms are vectors. Of `svd` the norms are the values, of `eigh` those are
   v^T (A v), by folds of matrix products, and what V^T (A V) has above the diagonal is looked at.
4. Values, and vectors with them, are put in order, and values multiplied by the power of two.

A matrix is left to those operations where anything is not usual: numbers that are not finite, not
the nearest expansions of their sums, or near the ends of float64's range, a norm that is zero,
sweeps that do not converge, or more than a limit where something is looked at.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

from mcf.kernels.algorithms import distillation, ieee, order
from mcf.kernels.bind import Algorithm
from mcf.kernels.fold import Fold, product_fold
from mcf.kernels.formats import FP64
from mcf.kernels.refinement import Refinement, refinement
from mcf.kernels.rotation import Rotations, rotations

# Final states of a matrix. LEFT: nothing was done. ROTATE: the sweeps of `more` are needed.
DONE, LEFT, ROTATE = 1, 2, 3
# Largest exponent of an element of a matrix that is decomposed, and of its eigenvalues.
LARGEST, HIGHEST = 1022, 1000


class Limits(NamedTuple):
    """Bounds of the residuals, in units of u^terms, tested on leading components.

    Args:
        own: bounds the diagonal of W W^T - I, times the number of rows.
        off: bounds the other elements of W W^T.
        cosine: bounds x y^T / (|x| |y|) for rows x, y of X; square roots have one component.
        drift: bounds W M - X relative to |M|, times the number of rows.
        mixed: bounds 2^(1/2) times the upper triangle of V^T A V, likewise relative to |A|.

    Norms are Frobenius norms of elements rounded to multiples of a step, so that the sums of
    squares do not depend on the order. Let t be the sum of squares of M, each rounded down to a
    multiple of 2^-10, and 2^k the largest power of two with 4^k <= t. The steps of the residuals
    are limit 2^k / (64 columns); nonzero elements count one step more, and at most LOST steps.
    """

    own: float
    off: float
    cosine: float
    drift: float
    mixed: float


LOST = 2**24


class Numbers(NamedTuple):
    """Numeric parameters of a decomposition; exponents are those of powers of two.

    Args:
        symmetric: whether it is `eigh`, else `svd`.
        plain: the exponent of the sweeps' tolerance.
        tolerance: the exponent of the corrections' tolerance.
        steps: the number of orthogonalisation steps before the corrections.
        share: the exponent of the relative size, to the largest row, above which rows are tested.
        limits: the bounds of the residuals.
    """

    symmetric: bool
    plain: int
    tolerance: int
    steps: int
    share: int
    limits: Limits


# Instances are compared and hashed by identity, like `Elementwise`.
@dataclasses.dataclass(frozen=True, eq=False)
class Decomposition:
    """Eigenvalues and eigenvectors, or singular values and vectors, of float64 expansions.

    Args:
        given: the number of components of matrices and results: `terms` or 1.
        terms: the number of components of the computation.
        rotations: the sweeps in float64.
        more: the sweeps in expansions.
        refinement: the corrections.
        plain: the fold of products of one component, for norms of the start.
        settle_plain: its partial sums -> as many components.
        usual: x -> whether it is finite and the nearest expansion of its sum.
        tidy: x with +0 for zeros below the first component.
        root: the square root.
    """

    given: int
    terms: int
    rotations: Rotations
    more: Rotations
    refinement: Refinement
    plain: Fold
    settle_plain: Algorithm
    usual: Algorithm
    tidy: Algorithm
    root: Algorithm


@functools.cache
def decomposition(given: int) -> Decomposition:
    """Return the decomposition of matrices with `given` components per element."""
    terms = max(2, given)
    plain = product_fold(FP64, 1, 1, 1)
    return Decomposition(
        given,
        terms,
        rotations(1),
        rotations(terms),
        refinement(terms),
        plain,
        distillation.distill(plain.state, plain.state, partial=True),
        order.USUAL[terms],
        order.TIDY[terms],
        ieee.SQRT[terms],
    )
