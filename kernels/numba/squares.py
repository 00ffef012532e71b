"""Sums of squares in integers on a CPU: what `mcf.optim.norm` sums, several times faster."""

from __future__ import annotations

import functools
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

# Elements that are widened at a time: they stay in the cache.
BLOCK = 1 << 14


@functools.cache
def _loop(kind: type, high_bits: int, low_bits: int) -> Any:
    one, shift, scale = kind(1), kind(2.0**high_bits), kind(2.0**low_bits)
    whole = np.int32 if kind is np.float32 else np.int64

    # Nothing is contracted or reordered: without fastmath these are IEEE operations.
    @numba.njit(nogil=True)
    def loop(x, first, second):
        high, low = np.int64(0), np.int64(0)
        for i in range(x.size):
            y = kind(x[i]) * one * first * second
            t = y * y * shift
            h = whole(t)
            high += np.int64(h)
            low += np.int64(whole(np.rint((t - kind(h)) * scale)))
        return high, low

    return loop


def sums(t: Tensor, first: float, second: float, high: int, low: int) -> tuple[int, int]:
    """The sums over (g first second)^2 = h 2**-high + l 2**-(high + low) + rest of h and of l.

    h is rounded down and l to nearest, ties to even. The squares of 16-bit numbers are exact in
    float32 where they are not too small to count, those of float32 in float64.

    Args:
        t: a contiguous 16-bit or float32 tensor on the CPU.
        first: a power of two.
        second: another; with both |g first second| < 1.
        high: at most 28.
        low: at most 30.
    """
    kind: type = np.float32 if t.dtype.itemsize == 2 else np.float64
    loop = _loop(kind, high, low)
    flat = t.detach().view(-1)
    whole, rest = 0, 0
    for start in range(0, flat.numel(), BLOCK):
        part = flat[start : start + BLOCK].to(torch.float32).numpy()
        h, n = loop(part, kind(first), kind(second))
        whole += int(h)
        rest += int(n)
    return whole, rest
