"""Expansions that break arithmetic, and the exact value of what an operation should return.

Values are Python integers in units of a power of two, so that nothing here rounds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.kernels.formats import Format
from tests.helpers.adversarial import Draw

Array = np.ndarray[Any, np.dtype[Any]]
Integers = np.ndarray[Any, np.dtype[np.object_]]


def draw(fmt: Format, terms: int, count: int, seed: int, low: int, high: int) -> list[Array]:
    """Normalised expansions whose leading exponents lie in [low, high], as float64 arrays."""
    source = Draw(fmt, seed)
    parts = [source.numbers(source.exponents(count, low, high))]
    while len(parts) < terms:
        parts.append(source.low(parts[-1]))
    return parts


def partners(fmt: Format, x: Sequence[Array], seed: int, low: int, high: int) -> list[Array]:
    """For each expansion one that is hard to add: ties and cancellation down to a random depth."""
    source = Draw(fmt, seed)
    count = len(x[0])
    depth = source.rng.integers(0, len(x) + 1, count)
    y = [np.where(depth > 0, -x[0], source.partners(x[0]))]
    size = np.abs(y[0])
    outside = (size > np.ldexp(1.0, high)) | ((size < np.ldexp(1.0, low)) & (size != 0))
    y[0] = np.where(outside, source.numbers(source.exponents(count, low, high)), y[0])
    for k in range(1, len(x)):
        wanted = np.where(depth > k, -x[k], source.partners(x[k]))
        fits = (np.abs(wanted) <= source.ulp(y[-1]) / 2) & (y[-1] != 0)
        y.append(np.where(fits & (depth >= k), wanted, source.low(y[-1])))
    return y


def tensors(fmt: Format, parts: Sequence[Array]) -> tuple[Tensor, ...]:
    """The components as tensors of the format."""
    source = Draw(fmt, 0)
    return tuple(source.tensor(p) for p in parts)


def _whole(t: Tensor) -> tuple[Array, Array]:
    """Odd integers and exponents of the elements; 0 has exponent 0."""
    fraction, exponent = np.frexp(t.detach().double().numpy().ravel())
    mantissas = (fraction * 2.0**53).astype(np.int64)
    lowest_bit = (mantissas & -mantissas).astype(np.float64)
    trailing = np.where(mantissas == 0, 0, np.frexp(lowest_bit)[1] - 1)
    exponents = exponent.astype(np.int64) - 53 + trailing
    return mantissas >> trailing, np.where(mantissas == 0, 0, exponents)


def lowest(components: Sequence[Tensor]) -> int:
    """The largest k <= 0 such that 2**k divides every element."""
    return min(0, *(int(_whole(t)[1].min(initial=0)) for t in components))


def value(components: Sequence[Tensor], unit: int) -> Integers:
    """The exact sums of finite components in units of 2**unit, which must divide them."""
    total: Any = 0
    for t in components:
        integers, exponents = _whole(t)
        shifts = np.where(integers == 0, 0, exponents - unit)
        assert (shifts >= 0).all(), "not a multiple of the unit"
        out = np.empty(len(integers), dtype=object)
        out[:] = [m << s for m, s in zip(integers.tolist(), shifts.tolist(), strict=True)]
        total = total + out
    return total


def roots(x: Integers) -> Integers:
    """floor(sqrt(x)) of integers."""
    out = np.empty(len(x), dtype=object)
    out[:] = [math.isqrt(v) for v in x]
    return out


def is_normalised(components: Sequence[Tensor], fmt: Format) -> Tensor:
    """Where |x[k + 1]| <= ulp(x[k]) / 2 holds for finite components."""
    source = Draw(fmt, 0)
    good = torch.ones(components[0].shape, dtype=torch.bool)
    for hi, lo in itertools.pairwise(components):
        h, low = hi.double().numpy(), lo.double().numpy()
        limit = np.where(h == 0, 0.0, source.ulp(h) / 2)
        good &= torch.from_numpy(np.abs(low) <= limit)
    return good
