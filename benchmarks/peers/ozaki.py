"""Error-free slices on the native matrix product, to measure where they would pay.

Ozaki, Ogita, Oishi, Rump 2012 (doi:10.1007/s11075-011-9478-1): the rows of A and the columns of B
are cut into slices of integers so short that a float64 product of slices is exact. Products of one
weight are one long product. Its error is relative to the largest of a row and a column, so that the
library would need a fallback beside it; this one has none.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mcf.kernels import operations


def _slices(x: tuple[Tensor, ...], dim: int, count: int, bits: int) -> tuple[list[Tensor], Tensor]:
    """Integers of at most 2**bits, and the exponent of the first slice's unit."""
    _, exponent = torch.frexp(x[0].abs().amax(dim, keepdim=True))
    rest = [torch.ldexp(c, bits - exponent) for c in x]
    out = []
    for _ in range(count):
        whole = rest[0].round()
        rest[0] = rest[0] - whole
        out.append(whole)
        # What the first component has left joins those below it, exactly.
        for k in range(len(rest) - 1):
            s = rest[k] + rest[k + 1]
            t = s - rest[k]
            rest[k + 1] = (rest[k] - (s - t)) + (rest[k + 1] - t)
            rest[k] = s
        rest = [c * 2.0 ** (bits + 1) for c in rest]
    return out, exponent - bits


def matmul(x: tuple[Tensor, ...], y: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """x @ y for float64 expansions of n components, by triangular numbers of slices."""
    terms, inner = len(x), x[0].shape[1]
    count = 1
    while True:
        bits = (53 - math.ceil(math.log2(inner * count))) // 2
        if bits + (count - 1) * (bits + 1) >= 53 * terms + 2:
            break
        count += 1
    left, row = _slices(x, 1, count, bits)
    right, column = _slices(y, 0, count, bits)
    wide, tall = torch.cat(left, 1), torch.cat(right[::-1], 0)
    parts = []
    for k in range(1, count + 1):
        product = wide[:, : k * inner] @ tall[(count - k) * inner :]
        parts.append(torch.ldexp(product, row + column - (k - 1) * (bits + 1)))
    return operations.renormalize(tuple(parts), terms)
