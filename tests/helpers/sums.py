"""Sums and dot products that are hard to compute, and their exact values."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from mcf.kernels.exact import Number, rounding
from mcf.kernels.formats import Format
from tests.helpers.exactly import integers
from tests.helpers.expansions import draw, tensors

Components = tuple[Tensor, ...]
# Every finite float64 is a multiple of 2**-1074, a product of two of 2**-2148.
UNIT = Fraction(1, 2**1074)


def values(x: Sequence[Tensor]) -> list[Fraction]:
    """The exact value of each element."""
    return [Fraction(int(v)) * UNIT for v in sum(integers(c) for c in x)]


def nearest(value: Number, fmt: Format, terms: int) -> list[float]:
    """RN(v), RN(v - RN(v)), ... as floats."""
    rn = rounding(fmt)
    out = []
    for _ in range(terms):
        x = rn(value)
        out.append(float(x))
        value = value - x if isinstance(x, Fraction) else Fraction(0)
    return out


def cancelling(fmt: Format, terms: int, shape: tuple[int, ...], seed: int) -> Components:
    """Normalised expansions of any sign, of which neighbours nearly cancel; wide exponents."""
    count = int(np.prod(shape))
    low, high = (-4, 4) if fmt.emax < 20 else (-20, 20)
    parts = draw(fmt, terms, count, seed, low, high)
    rng = np.random.default_rng(seed)
    for k, part in enumerate(parts):
        # The leading components come in opposite pairs; of the lowest every second is 0.
        half = count // 2
        part[half : 2 * half] = -part[:half] if k < max(1, terms - 1) else 0
    order = rng.permutation(count)
    return tuple(t.reshape(shape) for t in tensors(fmt, [p[order] for p in parts]))


def exact_dot(x: Sequence[Tensor], y: Sequence[Tensor]) -> tuple[Fraction, Fraction]:
    """The dot product of two vectors of expansions and T, that of the absolute values."""
    products = [a * b for a, b in zip(values(x), values(y), strict=True)]
    return sum(products, Fraction(0)), sum(map(abs, products), Fraction(0))


def exact_sum(x: Sequence[Tensor]) -> tuple[Fraction, Fraction]:
    """The sum of a vector of expansions and T, that of the absolute values."""
    given = values(x)
    return sum(given, Fraction(0)), sum(map(abs, given), Fraction(0))


def ill_conditioned_dot(n: int, condition: float, seed: int) -> tuple[Tensor, Tensor]:
    """Float64 vectors whose dot product has about the condition number 2 T / |exact|.

    Algorithm 6.1 (GenDot) of Ogita, Rump, Oishi 2005, doi:10.1137/030601818: the first half has
    random exponents up to half the condition's, the second half cancels what has been summed.
    """
    rng = np.random.default_rng(seed)
    half = n // 2
    b = int(condition).bit_length()
    e = np.rint(rng.random(half) * b / 2)
    e[0], e[-1] = np.rint(b / 2) + 1, 0
    x = np.zeros(n)
    y = np.zeros(n)
    x[:half] = (2 * rng.random(half) - 1) * 2.0**e
    y[:half] = (2 * rng.random(half) - 1) * 2.0**e
    total = sum((Fraction(p) * Fraction(q) for p, q in zip(x, y, strict=True)), Fraction(0))
    for i, exponent in enumerate(np.rint(np.linspace(b / 2, 0, n - half)), start=half):
        x[i] = (2 * rng.random() - 1) * 2.0**exponent
        y[i] = float(((2 * rng.random() - 1) * 2.0**exponent - total) / Fraction(x[i]))
        total += Fraction(x[i]) * Fraction(y[i])
    order = rng.permutation(n)
    return torch.from_numpy(x[order]), torch.from_numpy(y[order])
