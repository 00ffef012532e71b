"""Every rule without rounding, as its paper writes it: integers in units of 2**-BITS.

Fractions would grow by 53 bits in each step. In fixed point each operation is off by less than one
unit, 2**-200, and contracting recursions keep it there. Powers, roots and logarithms among the
scalars are mpmath's to as many bits.
"""

from __future__ import annotations

import math
from typing import Any

import mpmath
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


# Rules whose weight decay is part of the gradient, unless an option says otherwise.
COUPLED = ("adam", "nadam", "radam", "adamax", "sgd")


class Exact:
    """A rule on one tensor, each hyperparameter the exact value of the float64 given."""

    def __init__(self, rule: str, p: Tensor, options: dict[str, Any]) -> None:
        self.rule, self.options = rule, options
        self.p = fixed_array(p)
        self.m = np.zeros_like(self.p)
        self.v = np.zeros_like(self.p)
        self.largest = np.zeros_like(self.p)
        self.product = CONTEXT.mpf(1)
        # Further averages and the gradient of before; x and z of schedule-free AdamW.
        self.n, self.before = np.zeros_like(self.p), np.zeros_like(self.p)
        self.x, self.z = self.p.copy(), self.p.copy()
        # Whether the rate of each step of StableAdamW was divided.
        self.clipped: list[bool] = []
        self.weights, self.largest_rate = CONTEXT.mpf(0), CONTEXT.mpf(0)
        self.t = 0

    def step(self, g: Tensor) -> None:
        """One step."""
        self.t += 1
        o = self.options
        decoupled = self.rule not in COUPLED or o.get("decoupled_weight_decay", False)
        decay = times(fixed(o["weight_decay"]), self.p)
        x = fixed_array(g) if decoupled else fixed_array(g) + decay
        direction = getattr(self, "adam" if self.rule == "adamw" else self.rule)(x)
        if direction is not None:
            whole = direction + decay if decoupled else direction
            self.p = self.p - times(fixed(o["lr"]), whole)

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

    # Rules that move the parameter themselves.

    def power(self, beta: float) -> Any:
        return CONTEXT.mpf(beta) ** self.t

    def decayed(self, direction: Integers) -> None:
        """p <- p - lr (direction + weight_decay p)."""
        o = self.options
        whole = direction + times(fixed(o["weight_decay"]), self.p)
        self.p = self.p - times(fixed(o["lr"]), whole)

    def moment(self, beta: Any, before: Integers, x: Integers) -> Integers:
        return times(beta, before) + times(ONE - beta, x)

    def divisor(self, beta: float) -> Integers:
        """sqrt(v / (1 - beta^t)) + eps."""
        return root(over(self.v, real(1 - self.power(beta)))) + fixed(self.options["eps"])

    def ademamix(self, x: Integers) -> None:
        o = self.options
        beta1, beta2, beta3 = o["betas"]
        rate, alpha = CONTEXT.mpf(beta3), CONTEXT.mpf(o["alpha"])
        warm = o.get("beta3_warmup")
        if warm and self.t < warm:
            first = 1 / CONTEXT.log(beta1) if beta1 else CONTEXT.mpf(0)
            share = CONTEXT.mpf(self.t) / warm
            rate = CONTEXT.exp(1 / ((1 - share) * first + share / CONTEXT.log(beta3)))
        if o.get("alpha_warmup") and self.t < o["alpha_warmup"]:
            alpha *= CONTEXT.mpf(self.t) / o["alpha_warmup"]
        self.m = self.moment(fixed(beta1), self.m, x)
        self.v = self.moment(fixed(beta2), self.v, times(x, x))
        self.n = self.moment(real(rate), self.n, x)
        first = over(self.m, real(1 - self.power(beta1)))
        self.decayed(over(first + times(real(alpha), self.n), self.divisor(beta2)))

    def adan(self, x: Integers) -> None:
        o = self.options
        beta1, beta2, beta3 = o["betas"]
        d = x - self.before if self.t > 1 else x - x
        self.before = x
        ahead = x + times(fixed(beta2), d)
        self.m = self.moment(fixed(beta1), self.m, x)
        self.n = self.moment(fixed(beta2), self.n, d)
        self.v = self.moment(fixed(beta3), self.v, times(ahead, ahead))
        first = over(self.m, real(1 - self.power(beta1)))
        second = times(real(beta2 / (1 - self.power(beta2))), self.n)
        direction = over(first + second, self.divisor(beta3))
        if o.get("no_prox"):
            self.decayed(direction)
        else:
            whole = ONE + ((fixed(o["lr"]) * fixed(o["weight_decay"])) >> BITS)
            self.p = over(self.p - times(fixed(o["lr"]), direction), whole)

    def stableadamw(self, x: Integers) -> None:
        o = self.options
        beta1, beta2 = o["betas"]
        self.m = self.moment(fixed(beta1), self.m, x)
        self.v = self.moment(fixed(beta2), self.v, times(x, x))
        second = over(self.v, real(1 - self.power(beta2)))
        least = times(fixed(o["eps"]), fixed(o["eps"]))
        pairs = zip(map(int, times(x, x)), map(int, second), strict=True)
        shares = [over(a, max(b, least)) for a, b in pairs]
        rms = CONTEXT.sqrt(CONTEXT.mpf(sum(shares)) / len(shares) / ONE)
        self.clipped.append(rms > 1)
        rate = CONTEXT.mpf(o["lr"]) / max(1, rms)
        first = over(self.m, real(1 - self.power(beta1)))
        whole = over(first, self.divisor(beta2)) + times(fixed(o["weight_decay"]), self.p)
        self.p = self.p - times(real(rate), whole)

    def schedulefreeadamw(self, x: Integers) -> None:
        """In the paper's x, y and z; p is y."""
        o = self.options
        beta1, beta2 = o["betas"]
        warm = o.get("warmup_steps", 0)
        rate = CONTEXT.mpf(o["lr"]) * (CONTEXT.mpf(self.t) / warm if self.t < warm else 1)
        rate *= CONTEXT.sqrt(1 - self.power(beta2))
        self.largest_rate = max(self.largest_rate, rate)
        weight = CONTEXT.mpf(self.t) ** o.get("r", 0)
        weight *= self.largest_rate ** o.get("weight_lr_power", 2)
        self.weights += weight
        c = real(weight / self.weights)
        self.v = self.moment(fixed(beta2), self.v, times(x, x))
        u = over(x, root(self.v) + fixed(o["eps"])) + times(fixed(o["weight_decay"]), self.p)
        self.z = self.z - times(real(rate), u)
        self.x = times(ONE - c, self.x) + times(c, self.z)
        self.p = times(fixed(beta1), self.x) + times(ONE - fixed(beta1), self.z)
