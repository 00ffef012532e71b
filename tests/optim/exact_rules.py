"""Every rule without rounding, in the fixed point of `exact_adamw`: integers in units of 2**-BITS.

Each operation is off by less than one unit, 2**-200. Powers, roots and logarithms among the scalars
are mpmath's to as many bits.
"""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
from torch import Tensor

from tests.optim.exact_adamw import BITS, ONE, Integers, fixed, fixed_array

CONTEXT = mpmath.mp.clone()
CONTEXT.prec = BITS + 60


def real(x: Any) -> int:
    """A number of mpmath in fixed point."""
    return int(CONTEXT.floor(CONTEXT.mpf(x) * ONE))


def times(a: Any, b: Any) -> Any:
    return (a * b) >> BITS


def over(a: Any, b: Any) -> Any:
    return (a << BITS) // b


def root(x: Integers) -> Integers:
    return np.array([math.isqrt(int(k) << BITS) for k in x], dtype=object)


class Exact:
    """A rule on one tensor, each hyperparameter the exact value of the float64 given."""

    def __init__(self, rule: str, p: Tensor, options: dict[str, Any]) -> None:
        self.rule, self.options = rule, options
        self.p = fixed_array(p)
        self.m = np.zeros_like(self.p)
        self.v = np.zeros_like(self.p)
        self.largest = np.zeros_like(self.p)
        self.product = CONTEXT.mpf(1)
        self.t = 0

    def step(self, g: Tensor) -> None:
        """One step."""
        self.t += 1
        o = self.options
        decoupled = self.rule in ("adamw", "lion") or o.get("decoupled_weight_decay", False)
        decay = times(fixed(o["weight_decay"]), self.p)
        x = fixed_array(g) if decoupled else fixed_array(g) + decay
        direction = getattr(self, "adam" if self.rule == "adamw" else self.rule)(x)
        if decoupled:
            direction = direction + decay
        self.p = self.p - times(fixed(o["lr"]), direction)

    def moments(self, x: Integers) -> None:
        beta1, beta2 = (fixed(b) for b in self.options["betas"])
        self.m = times(beta1, self.m) + times(ONE - beta1, x)
        self.v = times(beta2, self.v) + times(ONE - beta2, times(x, x))

    def correction(self, index: int) -> Any:
        """1 - beta^t."""
        return 1 - CONTEXT.mpf(self.options["betas"][index]) ** self.t

    def adam(self, x: Integers) -> Integers:
        self.moments(x)
        self.largest = np.maximum(self.largest, self.v)
        v = self.largest if self.options.get("amsgrad") else self.v
        denominator = root(over(v, real(self.correction(1)))) + fixed(self.options["eps"])
        return over(over(self.m, real(self.correction(0))), denominator)

    def nadam(self, x: Integers) -> Integers:
        self.moments(x)
        beta1, psi = self.options["betas"][0], self.options["momentum_decay"]
        base = CONTEXT.mpf(0.96)
        mu, ahead = (
            CONTEXT.mpf(beta1) * (1 - base ** (k * CONTEXT.mpf(psi)) / 2)
            for k in (self.t, self.t + 1)
        )
        self.product *= mu
        weights = (1 - mu) / (1 - self.product), ahead / (1 - self.product * ahead)
        denominator = root(over(self.v, real(self.correction(1)))) + fixed(self.options["eps"])
        return over(times(real(weights[0]), x) + times(real(weights[1]), self.m), denominator)

    def radam(self, x: Integers) -> Integers:
        self.moments(x)
        first = over(self.m, real(self.correction(0)))
        beta2 = CONTEXT.mpf(self.options["betas"][1])
        rho = 2 / (1 - beta2) - 1
        rho_t = rho - 2 * self.t * beta2**self.t / self.correction(1)
        if rho_t <= 5:
            return first
        squared = (rho_t - 4) * (rho_t - 2) * rho / ((rho - 4) * (rho - 2) * rho_t)
        rate = CONTEXT.sqrt(squared * self.correction(1))
        return over(times(real(rate), first), root(self.v) + fixed(self.options["eps"]))

    def adamax(self, x: Integers) -> Integers:
        beta2 = fixed(self.options["betas"][1])
        norm = np.maximum(times(beta2, self.v), np.abs(x) + fixed(self.options["eps"]))
        self.moments(x)
        self.v = norm
        return over(over(self.m, real(self.correction(0))), norm)

    def lion(self, x: Integers) -> Integers:
        beta1, beta2 = (fixed(b) for b in self.options["betas"])
        ahead = times(beta1, self.m) + times(ONE - beta1, x)
        self.m = times(beta2, self.m) + times(ONE - beta2, x)
        return np.sign(ahead) * ONE

    def sgd(self, x: Integers) -> Integers:
        o = self.options
        if not o["momentum"]:
            return x
        fresh = ONE if self.t == 1 else ONE - fixed(o["dampening"])
        self.m = times(fixed(o["momentum"]), self.m) + times(fresh, x)
        return x + times(fixed(o["momentum"]), self.m) if o["nesterov"] else self.m
