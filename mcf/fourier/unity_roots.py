"""Roots of unity as expansions, each part correctly rounded."""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from torch import Tensor

from mcf.convert.rounding import convert
from mcf.elementary import fixed
from mcf.kernels.components import Components

# Bits of the fixed-point numbers; the guard bits absorb the errors of some millions of products.
_BITS, _GUARD = 340, 40


def _first(n: int) -> tuple[int, int]:
    """Return cos and sin of 2 pi / n in fixed point, by their series."""
    angle = (2 * fixed.pi() // n) >> (fixed.BITS - _BITS)
    parts, term, k = [0, 0], 1 << _BITS, 0
    while term:
        parts[k % 2] += term if k % 4 < 2 else -term
        k += 1
        term = (term * angle >> _BITS) // k
    return parts[0], parts[1]


def _times(x: tuple[int, int], y: tuple[int, int]) -> tuple[int, int]:
    return (x[0] * y[0] - x[1] * y[1]) >> _BITS, (x[0] * y[1] + x[1] * y[0]) >> _BITS


def _powers(x: tuple[int, int], count: int) -> list[tuple[int, int]]:
    """Return the powers 1, x, x^2, ..., `count` of them."""
    found = [(1 << _BITS, 0)]
    while len(found) < count:
        found.append(_times(found[-1], x))
    return found


def _circle(n: int, count: int) -> list[tuple[int, int]]:
    """Return exp(2 pi i k / n) for k < count in fixed point, each as a product of two powers."""
    step = math.isqrt(count) + 1
    near = _powers(_first(n), step + 1)
    far = _powers(near[step], count // step + 1)
    return [_times(far[k // step], near[k % step]) for k in range(count)]


def _components(values: list[int]) -> list[Tensor]:
    """Return fixed-point numbers as four float64 components, each rounding the remainder."""
    # Dropping the guard bits makes 0, 1/2 and 1 exact again.
    rest = [((v >> (_GUARD - 1)) + 1) >> 1 for v in values]
    scale = 2.0 ** (_GUARD - _BITS)
    columns = []
    for _ in range(4):
        # Python rounds an integer to the nearest float64.
        column = [float(v) for v in rest]
        rest = [v - int(c) for v, c in zip(rest, column, strict=True)]
        columns.append(torch.from_numpy(np.array(column) * scale))
    return columns


@functools.lru_cache(maxsize=16)
def _table(n: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return cos and sin of 2 pi k / n for k < n, in four float64 components.

    The values come from 340-bit integers: each component is that of the exact number, unless about
    a hundred bits after the last one are all 0 or all 1.
    """
    if n % 8:
        circle = _circle(n, n // 2 + 1)
        whole = [_components([v[k] for v in circle]) for k in (0, 1)]
        # The other half is the conjugate.
        back = torch.arange((n - 1) // 2, 0, -1, device="cpu")
        return (
            tuple(torch.cat((c, c[back])) for c in whole[0]),
            tuple(torch.cat((s, -s[back])) for s in whole[1]),
        )
    eighth = _circle(n, n // 8 + 1)
    near, up = (_components([v[k] for v in eighth]) for k in (0, 1))
    cosines, sines = [], []
    for c, s in zip(near, up, strict=True):
        # Extend to a quarter by exchanging sine and cosine, and to the full circle by signs.
        quarter = torch.cat((c, s[:-1].flip(0)))
        other = torch.cat((s, c[:-1].flip(0)))
        half = torch.cat((quarter, -quarter[:-1].flip(0)))
        upper = torch.cat((other, other[:-1].flip(0)))
        cosines.append(torch.cat((half, half[1:-1].flip(0))))
        sines.append(torch.cat((upper, -upper[1:-1].flip(0))))
    return tuple(cosines), tuple(sines)


@functools.lru_cache(maxsize=32)
def roots(n: int, dtype: torch.dtype, terms: int, device: torch.device) -> Components:
    """Return cos and sin of 2 pi k / n for k < n: components [2, n], the nearest expansions.

    The tensors are cached and must not be written to.
    """
    both = tuple(torch.stack(parts) for parts in zip(*_table(n), strict=True))
    # Round on the CPU, which always has float64.
    return tuple(c.to(device) for c in convert(both, dtype, terms))
