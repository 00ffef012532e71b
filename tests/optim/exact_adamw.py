"""AdamW without rounding, for long runs: integers in units of 2**-BITS.

Fractions would grow by 53 bits a step. In fixed point each operation is off by less than one unit,
2**-200, and contracting recursions keep it there: exact for any purpose.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

BITS = 200
ONE = 1 << BITS

Integers = np.ndarray[Any, np.dtype[np.object_]]


def fixed(x: float) -> int:
    """A float as an integer in units of 2**-BITS; exact above 2**-200."""
    n, d = x.as_integer_ratio()
    return (n << BITS) // d


def fixed_array(t: Tensor) -> Integers:
    return np.array([fixed(x) for x in t.double().flatten().tolist()], dtype=object)


def floats(x: Integers) -> Tensor:
    return torch.tensor([int(k) / ONE for k in x], dtype=torch.float64)


class ExactAdamW:
    """AdamW on one tensor, each hyperparameter the exact value of the float64 given.

    m <- b1 m + (1 - b1) g; v <- b2 v + (1 - b2) g^2;
    p <- p - lr (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + weight_decay p).
    """

    def __init__(
        self, p: Tensor, betas: tuple[float, float], eps: float = 1e-8, weight_decay: float = 0.0
    ) -> None:
        self.p = fixed_array(p)
        self.m = np.zeros_like(self.p)
        self.v = np.zeros_like(self.p)
        self.beta1, self.beta2 = (fixed(b) for b in betas)
        self.eps, self.weight_decay = fixed(eps), fixed(weight_decay)
        # beta1^t and beta2^t.
        self.power1 = self.power2 = ONE

    def moments(self, g: Tensor) -> None:
        """The moments after the gradient g."""
        x = fixed_array(g)
        self.m = (self.beta1 * self.m + (ONE - self.beta1) * x) >> BITS
        self.v = (self.beta2 * self.v + (ONE - self.beta2) * ((x * x) >> BITS)) >> BITS
        self.power1 = (self.beta1 * self.power1) >> BITS
        self.power2 = (self.beta2 * self.power2) >> BITS

    def step(self, g: Tensor, lr: float) -> None:
        """One step."""
        self.moments(g)
        first = (self.m << BITS) // (ONE - self.power1)
        second = (self.v << BITS) // (ONE - self.power2)
        root = np.array([math.isqrt(int(x) << BITS) for x in second], dtype=object)
        ratio = (first << BITS) // (root + self.eps)
        self.p = self.p - ((fixed(lr) * (ratio + ((self.weight_decay * self.p) >> BITS))) >> BITS)
