"""Inputs that break arithmetic: ties, cancelling pairs, wide exponents, both ends of the range.

Everything is drawn in float64, in which the numbers of every format are exact, and seeded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.kernels.formats import Format

Array = np.ndarray[Any, np.dtype[Any]]


def specials(fmt: Format) -> Tensor:
    """Zeros, infinities, NaN, and the numbers at every edge of the format, both signs."""
    smallest, normal, largest = (float(x) for x in (fmt.min_subnormal, fmt.min_normal, fmt.max))
    ulp = float(2 * fmt.u)
    finite = [
        smallest, 2 * smallest, 3 * smallest, normal - smallest, normal, normal + smallest,
        1 - ulp / 2, 1.0, 1 + ulp, 2 - ulp, 2.0, 3.0, largest / 2, largest * (1 - ulp), largest,
    ]  # fmt: skip
    values = [0.0, *finite, np.inf]
    t = torch.tensor([*values, *(-x for x in values), np.nan], dtype=torch.float64)
    return t.to(fmt.dtype)


def all_pairs(t: Tensor) -> tuple[Tensor, Tensor]:
    """Every ordered pair of the elements."""
    a, b = torch.broadcast_tensors(t[:, None], t[None, :])
    return a.reshape(-1), b.reshape(-1)


class Draw:
    """A seeded source of numbers of one format, as float64 arrays.

    Args:
        fmt: the format.
        seed: of the generator.
    """

    def __init__(self, fmt: Format, seed: int) -> None:
        self.fmt = fmt
        self.rng = np.random.default_rng(seed)

    def tensor(self, x: Array) -> Tensor:
        """The numbers as a tensor of the format; they must be numbers of it."""
        t = torch.from_numpy(np.ascontiguousarray(x))
        out = t.to(self.fmt.dtype)
        assert torch.equal(out.double(), t), "not a number of the format"
        return out

    def exponents(self, n: int, low: int | None = None, high: int | None = None) -> Array:
        """Uniform exponents from low (the smallest subnormal's at least) to high, both included."""
        bottom = self.fmt.emin - self.fmt.p + 1
        low = bottom if low is None else max(low, bottom)
        high = self.fmt.emax if high is None else min(high, self.fmt.emax)
        return self.rng.integers(low, high + 1, n)

    def numbers(self, exponents: Array) -> Array:
        """Numbers of given exponents, with mantissas at which roundings turn."""
        p, n = self.fmt.p, len(exponents)
        one, full = 1 << (p - 1), (1 << p) - 1
        bit = np.int64(1) << self.rng.integers(0, p, n)
        few = self.rng.integers(0, 4, n)
        mantissa = np.choose(
            self.rng.integers(0, 8, n),
            [
                self.rng.integers(one, full + 1, n),
                self.rng.integers(one, full + 1, n),
                self.rng.integers(one, full + 1, n) & ~(bit - 1),
                np.full(n, one),
                np.minimum(one + few, full),
                full - few,
                np.minimum(one | bit, full),
                full ^ bit,
            ],
        )
        mantissa |= one
        # Below the normal range the low bits do not exist.
        missing = np.clip(self.fmt.emin - exponents, 0, 62)
        sign = self.rng.choice([-1.0, 1.0], n)
        x = np.ldexp((mantissa >> missing).astype(np.float64), exponents + missing - p + 1)
        return sign * x

    def ulp(self, x: Array) -> Array:
        """The distance between neighbours above |x|."""
        exponent = np.frexp(x)[1] - 1
        exponent = np.where(x == 0, self.fmt.emin, np.maximum(exponent, self.fmt.emin))
        return np.ldexp(1.0, exponent - self.fmt.p + 1)

    def rounded(self, x: Array) -> Array:
        """Float64 values as numbers of the format, those that overflow as its largest number."""
        limit = float(self.fmt.max)
        t = torch.from_numpy(np.clip(x, -limit, limit))
        return t.to(self.fmt.dtype).double().numpy()

    def partners(self, a: Array) -> Array:
        """For each number another that makes the sum hard: a tie, a cancellation, near, far."""
        n, p = len(a), self.fmt.p
        exponent = np.where(a == 0, self.fmt.emin, np.frexp(a)[1] - 1)
        gap = self.rng.integers(-p - 3, p + 4, n)
        bottom = self.fmt.emin - p + 1
        near = self.numbers(np.clip(exponent + gap, bottom, self.fmt.emax))
        sign = self.rng.choice([-1.0, 1.0], n)
        steps = self.rng.integers(-3, 4, n)
        power = np.ldexp(1.0, self.rng.integers(-p - 2, p + 3, n))
        with np.errstate(over="ignore", under="ignore"):
            choices = [
                near,
                near,
                self.numbers(self.exponents(n)),
                # Half an ulp of a, and odd multiples: ties.
                sign * (self.rng.integers(0, 4, n) + 0.5) * self.ulp(a),
                -a + steps * self.ulp(a),
                -a * power,
                a * power,
                steps * self.ulp(a) + near,
            ]
            return self.rounded(np.choose(self.rng.integers(0, len(choices), n), choices))

    def low(self, hi: Array) -> Array:
        """For each hi a lo with RN(hi + lo) = hi: zero, a tie, the largest, anything smaller."""
        n, p = len(hi), self.fmt.p
        exponent = np.where(hi == 0, self.fmt.emin, np.frexp(hi)[1] - 1)
        bottom = self.fmt.emin - p + 1
        gap = np.where(self.rng.random(n) < 0.7, 1, self.rng.integers(1, p + 4, n))
        e = exponent - p - gap
        lo = np.where(e >= bottom, self.numbers(np.maximum(e, bottom)), 0.0)
        tie = self.ulp(hi) / 2 * self.rng.choice([-1.0, 1.0], n)
        even = np.fmod(hi / self.ulp(hi), 2) == 0
        lo = np.where(even & (self.rng.random(n) < 0.2), tie, lo)
        lo = np.where((self.rng.random(n) < 0.05) | (hi == 0), 0.0, lo)
        lo = self.rounded(lo)
        # What is left: below a power of two the gap to the neighbour is half as wide.
        power = np.abs(np.frexp(hi)[0]) == 0.5
        too_far = power & (np.signbit(lo) != np.signbit(hi)) & (np.abs(lo) > self.ulp(hi) / 4)
        lo = np.where(too_far, self.rounded(lo / 2), lo)
        return np.where(np.abs(lo) > self.ulp(hi) / 2, 0.0, lo)
