"""The rules of recent years in registers, as documented; see `register_model`."""

from __future__ import annotations

import math

import numpy as np

from tests.optim.formulas import State
from tests.optim.register_model import Array, Registers

Betas = tuple[float, float, float]


class RecentRegisters(Registers):
    """The update rules for arrays of registers."""

    # The numbers of the schedule-free one.
    largest_rate = weights = 0.0

    def rooted(self, v: Array, beta2: float, t: int, eps: float) -> Array:
        """sqrt(v^) + eps."""
        f = self.kind
        found: Array = np.sqrt(v * f(1 / (1 - beta2**t))) + f(eps)
        return found

    def squares(self, s: State, g: Array, beta2: float) -> Array:
        """v after a gradient."""
        return self.mean(beta2, self.read(s, "exp_avg_sq"), 1 - beta2, g * g)

    def ademamix(
        self, s: State, g: Array, *, lr: float, betas: Betas, alpha: float, eps: float,
        weight_decay: float, t: int, beta3_warmup: int = 1, alpha_warmup: int = 1,
    ) -> State:  # fmt: skip
        """The stored state after step t, from 1."""
        f, (beta1, beta2, beta3) = self.kind, betas
        rest = 1 - beta3
        if t < beta3_warmup:
            first = 1 / math.log(beta1) if beta1 else 0.0
            way = t / beta3_warmup * (1 / math.log(beta3) - first)
            rest = -math.expm1(1 / (first + way))
        share = alpha * min(1.0, t / alpha_warmup)
        m = self.mean(beta1, s["exp_avg"], 1 - beta1, g)
        v = self.squares(s, g, beta2)
        n = f(1 - rest) * self.read(s, "exp_avg_slow") + f(rest) * g
        total = m * f(1 / (1 - beta1**t)) + f(share) * n
        direction = total / self.rooted(v, beta2, t, eps) + self.penalty(s, weight_decay)
        return {
            **self.accumulate(s, -(f(lr) * direction)),
            "exp_avg": self.moment(m),
            **self.second_stored("exp_avg_sq", v),
            **self.second_stored("exp_avg_slow", n),
        }

    def adan(
        self, s: State, g: Array, *, lr: float, betas: Betas, eps: float, weight_decay: float,
        t: int, no_prox: bool = False,
    ) -> State:  # fmt: skip
        """The stored state after step t, from 1."""
        f, (beta1, beta2, beta3) = self.kind, betas
        d = g - s["previous_grad"] if t > 1 else g - g
        m = self.mean(beta1, s["exp_avg"], 1 - beta1, g)
        n = self.mean(beta2, s["exp_avg_diff"], 1 - beta2, d)
        v = self.squares(s, g + f(beta2) * d, beta3)
        total = m * f(1 / (1 - beta1**t)) + f(beta2 / (1 - beta2**t)) * n
        direction = total / self.rooted(v, beta3, t, eps) + self.penalty(s, weight_decay)
        shrinkage = 1.0 if no_prox else 1 / (1 + lr * weight_decay)
        return {
            **self.accumulate(s, -(f(lr) * direction * f(shrinkage))),
            "exp_avg": self.moment(m),
            "exp_avg_diff": self.moment(n),
            "previous_grad": self.moment(g),
            **self.second_stored("exp_avg_sq", v),
        }

    def stableadamw(
        self, s: State, g: Array, *, lr: float, betas: tuple[float, float], eps: float,
        weight_decay: float, t: int,
    ) -> State:  # fmt: skip
        """The stored state after step t, from 1."""
        f, beta2 = self.kind, betas[1]
        root = np.sqrt(self.squares(s, g, beta2) * f(1 / (1 - beta2**t)))
        ratio = np.abs(g) / np.maximum(root, f(eps))
        rms = math.sqrt(math.fsum(float(r) ** 2 for r in ratio) / len(ratio))
        rate = lr * (1 / rms) if rms > 1 else lr
        return self.adamw(s, g, lr=rate, betas=betas, eps=eps, weight_decay=weight_decay, t=t)

    def schedulefreeadamw(
        self, s: State, g: Array, *, lr: float, betas: tuple[float, float], eps: float,
        weight_decay: float, t: int, warmup_steps: int = 1, r: int = 0, weight_lr_power: int = 2,
    ) -> State:  # fmt: skip
        """The stored state after step t, from 1; t = 1 begins anew."""
        f, (beta1, beta2) = self.kind, betas
        rate = lr * min(1.0, t / warmup_steps) * math.sqrt(1 - beta2**t)
        largest = max(rate, self.largest_rate if t > 1 else 0.0)
        weight = t**r * largest**weight_lr_power
        total = weight + (self.weights if t > 1 else 0.0)
        vars(self).update(largest_rate=largest, weights=total)
        c = weight / total
        v = self.squares(s, g, beta2)
        z = self.read(s, "z_minus_y")
        direction = g / (np.sqrt(v) + f(eps)) + self.penalty(s, weight_decay)
        update = f(c) * z - f(rate * (1 - beta1 * (1 - c))) * direction
        z = f(1 - c) * z - f(beta1 * (1 - c) * rate) * direction
        return {
            **self.accumulate(s, update),
            **self.second_stored("exp_avg_sq", v),
            **self.second_stored("z_minus_y", z),
        }
