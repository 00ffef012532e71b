"""Error bounds of transforms, in the 2-norm.

Every step of an exact transform is a unitary matrix times the root of its radix, so that the
relative errors of the steps add up (Higham 2002, theorem 24.2, doi:10.1137/1.9780898718027):

- a product with the r-th roots: the bound of a real product of 2r terms, of_terms relative to
  T = sum |x_j| times sqrt(2), which is at most sqrt(2 r) times the result's norm; and rounded
  roots, u^terms each, sqrt(r) u^terms in all (0 for r = 1, 2, 4);
- a product with a root of unity: that of a complex product, and u^terms for the root;
- a real sequence of even length as a complex one of half the length: two sums and a product with
  the result of the shorter transform, whose two halves are unitary together;
- a chirp of length r in a convolution of length M: two transforms of length M, three products, the
  kernel's own error, times beta / sqrt(r), beta the largest modulus of the chirp's transform.

The bounds do not cover underflow.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch

from mcf.complexes.complex_bounds import mul as product
from mcf.elementary.declarations import composed
from mcf.fourier.transform import PRIME, chirps, convolution, radices
from mcf.kernels.bounds import Guarantee

# A function that returns the guarantee of a real operation by name, terms, dtype and count.
Real = Callable[[str, int, torch.dtype, "int | None"], Guarantee]


@functools.cache
def _peak(r: int) -> float:
    """Return a bound of the largest modulus of the transform of a chirp of length r."""
    _, kernel = chirps(r, -1, (torch.float64, 1, torch.device("cpu")))
    c = kernel[0][:2].double()
    largest = float((c[0] ** 2 + c[1] ** 2).max())
    return convolution(r) * math.sqrt(largest) * (1 + 2.0**-30)


def transform(n: int, terms: int, dtype: torch.dtype, unit: float, real: Real) -> float:
    """Return the relative error of a transform of length n; `unit` is u^terms."""
    turn = composed(product(_simple(terms, dtype, real)), unit)
    steps, left = [], n
    for r in radices(n):
        left //= r
        if r > PRIME:
            size, peak = convolution(r), _peak(r)
            inner = transform(size, terms, dtype, unit, real)
            wide = min(4, terms + 1) if dtype is torch.float64 else 2
            own = transform(size, wide, torch.float64, 2.0 ** (-53 * wide), real)
            kernel = unit + own * math.sqrt((2 * r - 1) * size) / peak
            chirp = composed(turn, inner, turn, kernel, inner, turn)
            steps.append(chirp * peak / math.sqrt(r))
        elif r > 1:
            sums = real("matmul", terms, dtype, 2 * r)
            rounded = 0.0 if r in (2, 4) else math.sqrt(r) * unit
            steps.append(composed(sums.relative + math.sqrt(2 * r) * sums.of_terms, rounded))
        if left > 1:
            steps.append(turn)
    return composed(*steps)


def halved(n: int, terms: int, dtype: torch.dtype, unit: float, real: Real) -> float:
    """Return the relative error of a real transform by `mcf.fourier.functions`, in all."""
    half, simple = transform(n // 2, terms, dtype, unit, real), _simple(terms, dtype, real)
    return composed(half, simple("add"), product(simple), unit, simple("add"))


def _simple(terms: int, dtype: torch.dtype, real: Real) -> Callable[[str], float]:
    return lambda name: real(name, terms, dtype, None).relative
