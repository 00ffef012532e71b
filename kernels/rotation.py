"""The declaration of one-sided Jacobi sweeps in float64, which executors make loops of.

The rows of X, an even number n, are rotated in pairs until the first `width` numbers of each are
orthogonal to those of all others; a rotation takes whole rows.

1. Before a sweep, and after the last, the first `width` numbers of rows whose absolute values are
   all below VANISHED there become 0.
2. A sweep has n - 1 rounds. In a round the rows at places i and n / 2 + i are pairs, independent of
   each other; then `next_order` says which row comes to which place. After a sweep all are where
   they were.
3. A pair's squared norms and inner product are sums of products x_k y_k, k < width, by halves:
   while there are m > 1, number k < m // 2 becomes k plus m // 2 + k; an odd last one stays, and
   comes after these. `rotation` has the angle, `rotated` what becomes of the rows.
4. The sweeps end when `converged` says so of the largest |cos| and |t| of a sweep, NaN the largest,
   or after SWEEPS.

Every operation is one of IEEE 754, and none depends on others' order: the bits are the same
everywhere.
"""

from __future__ import annotations

import functools

from mcf.kernels.algorithms.rotation import converged as converged
from mcf.kernels.algorithms.rotation import rotated as rotated
from mcf.kernels.algorithms.rotation import rotation as rotation

# A matrix of 256 rows takes ten sweeps; cyclic Jacobi takes more only where it does not converge.
SWEEPS = 40
# Rows this small are zero: products of two larger ones' squares, and the squares with all
# components, are in float64's range.
VANISHED = 2.0**-250


@functools.cache
def next_order(n: int) -> tuple[int, ...]:
    """Which place's row comes to each place for the next round: the first stays, the others go."""
    half = n // 2
    if half <= 1:
        return (0, 1)
    return (0, half, *range(1, half - 1), *range(half + 1, n), half - 1)
