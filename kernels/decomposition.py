"""Declare the decomposition of whole small matrices, from which executors generate loops.

One loop computes `eigh` of symmetric matrices, or `svd` of matrices with at most twice as many
columns as rows, in expansions of float64. `mcf.linalg.spectral` performs the same
operations in the same order on tensors:

1. Scale by a power of two, so that the largest magnitude is in [1/2, 1); `eigh` reads one
   triangle. `eigh` then adds a power of two above 1.4 times the Frobenius norm to the diagonal.
2. Orthogonalise the rows by sweeps in float64 (`rotation`), then correct them (`refinement`). The
   corrections start from the normalised rotated rows for `eigh`, and from the accumulated rotation
   for `svd`. If they do not converge or leave rows that are not orthogonal, sweeps in expansions
   follow, whose residuals are tested (`Limits`).
3. Normalise the rows to vectors. The values of `svd` are their norms; those of `eigh` are
   v^T (A v), by folds of matrix products, and the upper triangle of V^T (A V) is tested.
4. Sort values and vectors, and scale the values back.

The loop rejects a matrix, which the tensor operations then decompose, for elements that are
nonfinite, not canonical or near the ends of float64's range, for a zero norm, for sweeps that do
not converge, and for residuals above a limit.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

from mcf.kernels.algorithms import ieee, order
from mcf.kernels.algorithms import reflection as formulas
from mcf.kernels.bind import Algorithm, Formulas
from mcf.kernels.refinement import Refinement, refinement
from mcf.kernels.reflection import products
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


@dataclasses.dataclass(frozen=True, eq=False)
class Decomposition(Formulas):
    """Eigenvalues and eigenvectors, or singular values and vectors, of float64 expansions.

    Args:
        given: the number of components of matrices and results: `terms` or 1.
        rotations: the sweeps in float64.
        more: the sweeps in expansions.
        refinement: the corrections.
    """

    given: int
    rotations: Rotations
    more: Rotations
    refinement: Refinement


@functools.cache
def decomposition(given: int) -> Decomposition:
    """Return the decomposition of matrices with `given` components per element."""
    n = max(2, given)
    more, corrections = rotations(n), refinement(n)
    own: dict[str, Algorithm] = {
        # x -> whether it is finite and the nearest expansion of its sum
        "usual": order.usual[n],
        # x with +0 for zeros below the first component
        "tidy": order.tidy[n],
        # The square root.
        "root_of": ieee.SQRT[n],
        # (x, y) -> x y for a power of two y
        "times": formulas.times[n],
        # The sums of products of one component, for norms of the start.
        **{f"plain_{name}": f for name, f in products(1).algorithms.items()},
    }
    found = {**more.algorithms, **corrections.algorithms, **own}
    return Decomposition(n, 1, found, given, rotations(1), more, corrections)
