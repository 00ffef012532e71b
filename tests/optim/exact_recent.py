"""The rules of recent years without rounding, as their papers write them; see `exact_rules`."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from tests.optim.exact_adamw import BITS, ONE, Integers, fixed, fixed_array
from tests.optim.exact_rules import CONTEXT, Exact, over, real, root, times


class Recent(Exact):
    """A rule on one tensor, each hyperparameter the exact value of the float64 given."""

    def __init__(self, rule: str, p: Tensor, options: dict[str, Any]) -> None:
        super().__init__(rule, p, options)
        # Further averages and the gradient of before; x and z of schedule-free AdamW.
        self.n, self.before = np.zeros_like(self.p), np.zeros_like(self.p)
        self.x, self.z = self.p.copy(), self.p.copy()
        # Of each step of StableAdamW, whether its rate was divided.
        self.clipped: list[bool] = []
        self.weights, self.largest_rate = CONTEXT.mpf(0), CONTEXT.mpf(0)

    def step(self, g: Tensor) -> None:
        """One step."""
        self.t += 1
        getattr(self, self.rule)(fixed_array(g))

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
