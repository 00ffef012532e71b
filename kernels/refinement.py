"""Declare corrections of an orthogonal matrix, from which executors generate loops.

W, n rows, is orthogonal up to float64's rounding errors, and the rows of W M are so up to the same.
All numbers are float64 expansions.

1. `steps` times W becomes W + ((I - W W^T) / 2) W.
2. X = W M, whose rows that are all below VANISHED become 0; R = I - W W^T, G = X X^T,
   s_i = G_ii / (1 - R_ii).
3. N_ij = s_j R_ij + G_ij, d_ij = s_j - s_i; mean is (N_ij + N_ji) / 2 of first numbers. E_ij is
   R_ij / 2 where i = j, d_ij is 0 or |mean| > 2^-24 |d_ij|, else N_ij / d_ij. The error is the
   largest of all |R_ij|, and of |mean| / (sqrt(s_i) sqrt(s_j)) where i is not j and the product is
   positive; NaN is larger than all.
4. It is slow if not the error <= 2^-8 of the one before (1/4 at first), and done if the error <=
   tolerance, or if it is slow and the error <= 8 tolerance. If neither, W becomes W + E^T W, and 2
   follows.
5. Of a matrix that is done rows are apart where |G_ij| > tolerance sqrt(G_ii) sqrt(G_jj), i < j,
   for rows whose sqrt(G_ii) are at least a share of the largest, and 8 times that for a pair of
   others; all of first numbers.
6. Of what is stuck or apart `steps` times again W becomes W + ((I - W W^T) / 2) W, and X = W M with
   zeros as in 2: rotations begin there.

Of complex numbers transposes are of conjugates. R and G are Hermitian: what lies below the diagonal
is the conjugate of what lies above, and the diagonal is real. mean is half of N_ij + conj(N_ji).
Numbers have the size |Re| + |Im|, which is no less than the modulus; squared norms are real.

Products are folds as those of a matrix product, settled and cut to as many components.
"""

from __future__ import annotations

import dataclasses
import functools

from mcf.kernels.algorithms import complex_elimination, complex_rotation, elimination, ieee
from mcf.kernels.algorithms import reflection as formulas
from mcf.kernels.bind import Formulas
from mcf.kernels.reflection import Products, products

# Final states of a matrix. APART: it converged, but some rows are not orthogonal.
DONE, STUCK, APART = 1, 2, 3


@dataclasses.dataclass(frozen=True, eq=False)
class Refinement(Formulas):
    """Corrections of an orthogonal matrix of float64 expansions, with the sums of products."""

    products: Products


@functools.cache
def refinement(terms: int, parts: int = 1) -> Refinement:
    """Return the corrections for numbers of `terms` components (per part, for complex numbers)."""
    f, g, whole = complex_elimination, complex_rotation, parts == 2
    sums = products(terms, parts)
    own = {
        # (x, y) -> x + y
        "plus": (g.total if whole else ieee.ADD)[terms],
        # (x, y) -> x - y
        "difference": (f.difference if whole else ieee.SUB)[terms],
        # (x, y, z) -> x y + z for a real x
        "fused": (g.fused if whole else ieee.FMA)[terms],
        # (x, y) -> x / y for a real y
        "quotient": (f.over_real if whole else ieee.DIV)[terms],
        # The square root of one component.
        "root": ieee.SQRT[1],
        # x -> |x|
        "magnitude": (f.magnitude if whole else elimination.magnitude)[terms],
        # (x, y) -> |(x + conj(y)) / 2|
        "mean": g.mean[terms] if whole else formulas.mean,
        # x -> Re x
        "real": g.real[terms] if whole else formulas.conjugate,
        # x -> x / 2
        "halved": formulas.halved[parts * terms],
        **sums.algorithms,
    }
    return Refinement(parts * terms, parts, own, sums)
