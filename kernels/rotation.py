"""Declare one-sided Jacobi sweeps, from which executors generate loops.

The rows of X, expansions of float64, an even number n, are rotated in pairs until the first `width`
numbers of each are orthogonal to those of all others; a rotation takes whole rows.

1. Before a sweep, and after the last, the first `width` numbers of rows whose absolute values are
   all below VANISHED there become 0.
2. A sweep has n - 1 rounds. In a round the rows at places i and n / 2 + i are pairs, independent of
   each other; then `next_order` says which row comes to which place. After a sweep all are where
   they were.
3. A pair's squared norms and inner product: in expansions the fold of a matrix product, settled and
   cut to as many components. Of one component sums of products x_k y_k, k < width, by halves: while
   there are m > 1, number k < m // 2 becomes k plus m // 2 + k; an odd last one stays, and comes
   after these. `rotation` has the angle, `rotated` what becomes of the rows.
   Of complex rows squared norms are real and the inner product is x y^H; of one component the
   products that are added by halves are Re x_k Re x_k + Im x_k Im x_k, the same of y, and
   Re x_k Re y_k + Im x_k Im y_k and Im x_k Re y_k - Re x_k Im y_k. In 1 numbers have the size
   |Re| + |Im|.
4. The sweeps end when `converged` says so of the largest |cos| and |t| of a sweep, NaN the largest,
   or after SWEEPS.

Every operation is one of IEEE 754, and none depends on others' order: the bits are the same
everywhere.
"""

from __future__ import annotations

import dataclasses
import functools
from types import ModuleType

from mcf.kernels.algorithms import complex_elimination, complex_rotation, elimination
from mcf.kernels.algorithms import rotation as formulas
from mcf.kernels.bind import Formulas
from mcf.kernels.reflection import Products, products

# A matrix of 256 rows takes ten sweeps. Cyclic Jacobi takes more only if it does not converge.
SWEEPS = 40
# Rows below this magnitude count as zero. Products of the squares of two larger rows, and the
# squares with all components, stay in float64's range.
VANISHED = 2.0**-250


@functools.cache
def next_order(n: int) -> tuple[int, ...]:
    """Return whose row each position gets for the next round; the first row stays."""
    half = n // 2
    if half <= 1:
        return (0, 1)
    return (0, half, *range(1, half - 1), *range(half + 1, n), half - 1)


@functools.cache
def places_of(n: int) -> list[list[int]]:
    """Return the row at each place, for each round of a sweep."""
    found = [list(range(n))]
    for _ in range(n - 2):
        found.append([found[-1][k] for k in next_order(n)])
    return found


@dataclasses.dataclass(frozen=True, eq=False)
class Rotations(Formulas):
    """Jacobi sweeps on float64 expansions, with the sums of inner products."""

    products: Products


@functools.cache
def rotations(terms: int, parts: int = 1) -> Rotations:
    """Return the sweeps for numbers of `terms` components (per part, for complex numbers)."""
    f: ModuleType = complex_rotation if parts == 2 else formulas
    size = complex_elimination.magnitude if parts == 2 else elimination.magnitude
    sums = products(terms, parts)
    own = {
        # x -> |x|
        "magnitude": size[terms],
        # (x, y) -> x x^H, y y^H and x y^H, as one tuple, of one component
        "gram": f.gram,
        # The sums of two such tuples.
        "added": f.added,
        # (x x^H, y y^H, x y^H, tolerance) -> cosine, sine, |cos| of the angle, |t|
        "rotation": f.rotation[terms],
        # (cosine, sine, x, y) -> the rotated x and y
        "rotated": f.rotated[terms],
        # (|cos|, |t|, rows, tolerance) -> whether the rows are orthogonal
        "converged": formulas.converged,
        **sums.algorithms,
    }
    return Rotations(parts * terms, parts, own, sums)
