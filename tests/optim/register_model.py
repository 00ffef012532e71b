"""The default arithmetic as documented, in NumPy: registers of one format, rounded when stored.

NumPy rounds each operation once, to float32 or float64, and never fuses two; casts to 16 bits are
torch's. Written from docs, not from the package's rules.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import torch

from tests.optim.formulas import Formulas, State

Array = np.ndarray[Any, np.dtype[Any]]
Betas = tuple[float, float, float]


@dataclasses.dataclass(frozen=True)
class Registers(Formulas):
    """The update rules for arrays of registers.

    Args:
        precision: the strategy; "plain" for float32 and float64 parameters.
        dtype: the parameter's.
    """

    precision: str
    dtype: torch.dtype

    @property
    def kind(self) -> Any:
        """The registers' NumPy type."""
        return np.float64 if self.dtype == torch.float64 else np.float32

    def stored(self, x: Array, dtype: torch.dtype | None = None) -> Array:
        """x rounded to what stores it, as a register again."""
        rounded = torch.from_numpy(np.ascontiguousarray(x)).to(dtype or self.dtype)
        return rounded.to(torch.float64).numpy().astype(self.kind)

    @property
    def f(self) -> Any:
        """A scalar in a register."""
        return self.kind

    def rn(self, point: str, x: Array) -> Array:
        """Return the rounded result of NumPy's operation."""
        return x

    root, sign = staticmethod(np.sqrt), staticmethod(np.sign)

    def mean(self, a: float, x: Array, b: float, y: Array, names: object = None) -> Array:
        """Both products rounded, then their sum."""
        f = self.kind
        return f(a) * x + f(b) * y

    def value(self, s: State) -> Array:
        """The parameter in a register."""
        if "param_bits" in s:
            unit = np.int32(2**8 if self.precision.endswith("split8") else 1)
            pattern = s["param"].view(np.int32) + s["param_bits"].astype(np.int32) * unit
            return pattern.view(np.float32)
        return s["param"] + s["param_lo"] if "param_lo" in s else s["param"]

    def split(self, x: Array) -> State:
        """A float32 as the nearest bf16, ties away from zero, and the difference of the bits."""
        pattern = x.view(np.uint32).astype(np.int64)
        unit = 2**8 if self.precision.endswith("split8") else 1
        # Python's rounding of patterns in units: to nearest, ties to even.
        pattern = np.rint(pattern / unit).astype(np.int64) * unit
        hi = (pattern + 2**15) // 2**16 * 2**16
        return {
            "param": hi.astype(np.uint32).view(np.float32),
            "param_bits": ((pattern - hi) // unit).astype(np.float32),
        }

    def accumulate(self, s: State, u: Array) -> State:
        """The stored parameter after the update u."""
        if self.precision == "master":
            master = s["master_param"] + u
            return {"param": self.stored(master), "master_param": master}
        if self.precision.endswith(("split16", "split8")):
            return self.split(self.value(s) + u)
        if self.precision == "eco":
            return {"param": self.stored(s["param"] + u), "exact": s["param"] + u}
        if self.precision not in ("kahan", "light", "plus"):
            return {"param": self.stored(s["param"] + u)}
        y = s["param_lo"] + u
        p = self.stored(s["param"] + y)
        return {"param": p, "param_lo": self.stored(y - (p - s["param"]))}

    def moment(self, x: Array) -> Array:
        """A first moment as stored."""
        return x if self.wide else self.stored(x)

    @property
    def second_dtype(self) -> torch.dtype:
        """Squares of gradients leave the range of fp16, so bf16 stores them."""
        return torch.bfloat16 if self.dtype == torch.float16 else self.dtype

    @property
    def wide(self) -> bool:
        """Whether moments are stored in float32."""
        return self.precision in ("fp32_states", "master")

    def read(self, s: State, name: str) -> Array:
        """A second moment in a register."""
        return s[name] + s[f"{name}_lo"] if self.precision == "plus" else s[name]

    def divided(self, point: str, x: Array, correction: float) -> Array:
        """Multiply by the inverse of a bias correction."""
        return x * self.f(1 / correction)

    def second(self, s: State, g: Array, beta2: float) -> tuple[Array, State]:
        """The second moment after the gradient g, and what is stored."""
        v = self.f(beta2) * self.read(s, "exp_avg_sq") + self.f(1 - beta2) * (g * g)
        return v, self.second_stored("exp_avg_sq", v)

    def larger(self, s: State, v: Array, kept: State) -> tuple[Array, State]:
        """AMSGrad's maximum, and what is stored of it, which is not split again."""
        before = self.exactly(s, "max_exp_avg_sq") > v.astype(np.float64)
        stored = {f"max_{n}": np.where(before, s[f"max_{n}"], x) for n, x in kept.items()}
        return np.where(before, self.read(s, "max_exp_avg_sq"), v), stored

    def norm(self, s: State, g: Array, beta2: float) -> tuple[Array, State]:
        """Adamax's norm of a gradient's magnitude and what was, and what is stored."""
        n = np.maximum(self.f(beta2) * self.read(s, "exp_inf"), g)
        return n, self.second_stored("exp_inf", n)

    def fed_back(self, after: State, name: str, m: Array, factor: Array) -> State:
        """The state with what the parameter's rounding lost in a first moment."""
        if "exact" in after:
            after[name] = self.moment(m + factor * (after.pop("exact") - after["param"]))
        return after

    def exactly(self, s: State, name: str) -> Array:
        """A second moment in float64, which holds the sum of two 16-bit components."""
        low = s[f"{name}_lo"].astype(np.float64) if self.precision == "plus" else 0.0
        total: Array = s[name].astype(np.float64) + low
        return total

    def second_stored(self, name: str, v: Array) -> State:
        """A second moment as stored."""
        if self.precision == "plus":
            hi = self.stored(v, self.second_dtype)
            return {name: hi, f"{name}_lo": self.stored(v - hi, self.second_dtype)}
        return {name: v if self.wide else self.stored(v, self.second_dtype)}

    def penalty(self, s: State, weight_decay: float) -> Array:
        p = s["master_param"] if self.precision == "master" else self.value(s)
        return self.kind(weight_decay) * p

    # Rules that the strict model does not have.

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
