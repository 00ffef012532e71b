"""The default arithmetic as documented, in NumPy: registers of one format, rounded when stored.

NumPy rounds each operation once, to float32 or float64, and never fuses two; casts to 16 bits are
torch's. Written from docs, not from the package's rules.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from tests.optim.strict_model import nadam_weights, radam_rate

Array = np.ndarray[Any, np.dtype[Any]]
State = dict[str, Array]


@dataclasses.dataclass(frozen=True)
class Registers:
    """The update rules for arrays of registers.

    Args:
        precision: the strategy; "plain" for float32 and float64 parameters.
        dtype: the parameter's.
        fused: compute moments with one rounding where there should be two: a mutant, what an FMA
            does.
    """

    precision: str
    dtype: torch.dtype
    fused: bool = False

    @property
    def kind(self) -> Any:
        """The registers' NumPy type."""
        return np.float64 if self.dtype == torch.float64 else np.float32

    def stored(self, x: Array, dtype: torch.dtype | None = None) -> Array:
        """x rounded to what stores it, as a register again."""
        rounded = torch.from_numpy(np.ascontiguousarray(x)).to(dtype or self.dtype)
        return rounded.to(torch.float64).numpy().astype(self.kind)

    def mean(self, a: float, x: Array, b: float, y: Array) -> Array:
        """Both products rounded, then their sum."""
        f = self.kind
        if self.fused:
            exact = np.longdouble(f(a)) * x.astype(np.longdouble)
            return (exact + (f(b) * y).astype(np.longdouble)).astype(f)
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

    def second(self, s: State, name: str) -> Array:
        """A second moment in a register."""
        return s[name] + s[f"{name}_lo"] if self.precision == "plus" else s[name]

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

    def adam(
        self, s: State, g: Array, *, lr: float, betas: tuple[float, float], eps: float,
        weight_decay: float, t: int, amsgrad: bool = False, decoupled_weight_decay: bool = False,
    ) -> State:  # fmt: skip
        """The stored state after step t, from 1."""
        f, (beta1, beta2) = self.kind, betas
        decay = self.penalty(s, weight_decay)
        if not decoupled_weight_decay:
            g = g + decay
        m = self.mean(beta1, s["exp_avg"], 1 - beta1, g)
        v = f(beta2) * self.second(s, "exp_avg_sq") + f(1 - beta2) * (g * g)
        after = {"exp_avg": self.moment(m), **self.second_stored("exp_avg_sq", v)}
        if amsgrad:
            # What is kept is not split again.
            kept = self.exactly(s, "max_exp_avg_sq") > v.astype(np.float64)
            after |= {
                name.replace("exp", "max_exp", 1): np.where(kept, s[f"max_{name}"], x)
                for name, x in self.second_stored("exp_avg_sq", v).items()
            }
            v = np.where(kept, self.second(s, "max_exp_avg_sq"), v)
        root = np.sqrt(v * f(1 / (1 - beta2**t)))
        direction = (m * f(1 / (1 - beta1**t))) / (root + f(eps))
        if decoupled_weight_decay:
            direction = direction + decay
        after |= self.accumulate(s, -(f(lr) * direction))
        if "exact" in after:
            factor = f((1 - 1 / beta1) * (1 - beta1**t) / lr) * (root + f(eps))
            after["exp_avg"] = self.moment(m + factor * (after.pop("exact") - after["param"]))
        return after

    def adamw(self, s: State, g: Array, **options: Any) -> State:
        """The stored state after step t, from 1."""
        return self.adam(s, g, decoupled_weight_decay=True, **options)

    def nadam(
        self, s: State, g: Array, *, lr: float, betas: tuple[float, float], eps: float,
        weight_decay: float, momentum_decay: float, t: int, decoupled_weight_decay: bool = False,
    ) -> State:  # fmt: skip
        """The stored state after step t, from 1."""
        f, (beta1, beta2) = self.kind, betas
        decay = self.penalty(s, weight_decay)
        if not decoupled_weight_decay:
            g = g + decay
        m = self.mean(beta1, s["exp_avg"], 1 - beta1, g)
        v = f(beta2) * self.second(s, "exp_avg_sq") + f(1 - beta2) * (g * g)
        of_g, of_m = nadam_weights(beta1, momentum_decay, t)
        root = np.sqrt(v * f(1 / (1 - beta2**t)))
        direction = (f(of_g) * g + f(of_m) * m) / (root + f(eps))
        if decoupled_weight_decay:
            direction = direction + decay
        after = {"exp_avg": self.moment(m), **self.second_stored("exp_avg_sq", v)}
        return {**self.accumulate(s, -(f(lr) * direction)), **after}

    def radam(
        self, s: State, g: Array, *, lr: float, betas: tuple[float, float], eps: float,
        weight_decay: float, t: int, decoupled_weight_decay: bool = False,
    ) -> State:  # fmt: skip
        """The stored state after step t, from 1."""
        f, (beta1, beta2) = self.kind, betas
        decay = self.penalty(s, weight_decay)
        if not decoupled_weight_decay:
            g = g + decay
        m = self.mean(beta1, s["exp_avg"], 1 - beta1, g)
        v = f(beta2) * self.second(s, "exp_avg_sq") + f(1 - beta2) * (g * g)
        direction = m * f(1 / (1 - beta1**t))
        if rate := radam_rate(beta2, t):
            direction = (f(rate) * direction) / (np.sqrt(v) + f(eps))
        if decoupled_weight_decay:
            direction = direction + decay
        after = {"exp_avg": self.moment(m), **self.second_stored("exp_avg_sq", v)}
        return {**self.accumulate(s, -(f(lr) * direction)), **after}

    def adamax(
        self, s: State, g: Array, *, lr: float, betas: tuple[float, float], eps: float,
        weight_decay: float, t: int, decoupled_weight_decay: bool = False,
    ) -> State:  # fmt: skip
        """The stored state after step t, from 1."""
        f, (beta1, beta2) = self.kind, betas
        decay = self.penalty(s, weight_decay)
        g = g if decoupled_weight_decay else g + decay
        m = self.mean(beta1, s["exp_avg"], 1 - beta1, g)
        n = np.maximum(f(beta2) * self.second(s, "exp_inf"), np.abs(g) + f(eps))
        direction = (m * f(1 / (1 - beta1**t))) / n
        direction = direction + decay if decoupled_weight_decay else direction
        after = {"exp_avg": self.moment(m), **self.second_stored("exp_inf", n)}
        return {**self.accumulate(s, -(f(lr) * direction)), **after}

    def lion(
        self, s: State, g: Array, *, lr: float, betas: tuple[float, float],
        weight_decay: float, t: int,
    ) -> State:  # fmt: skip
        """The stored state after step t, from 1."""
        f, (beta1, beta2) = self.kind, betas
        sign = np.sign(self.mean(beta1, s["exp_avg"], 1 - beta1, g))
        u = -(f(lr) * (sign + self.penalty(s, weight_decay)))
        after = self.moment(self.mean(beta2, s["exp_avg"], 1 - beta2, g))
        return {**self.accumulate(s, u), "exp_avg": after}

    def muon_half(
        self, s: State, g: Array, *, momentum: float, nesterov: bool
    ) -> tuple[Array, Array]:
        """The stored buffer and what is orthogonalised, which is not rounded."""
        f = self.kind
        fresh = f(1 - momentum) * g
        b = f(momentum) * s["momentum_buffer"] + fresh
        return self.moment(b), fresh + f(momentum) * b if nesterov else b

    def muon_other_half(
        self, s: State, o: Array, *, lr: float, weight_decay: float, adjustment: float
    ) -> State:
        """The stored parameter after the orthogonalised matrix."""
        f = self.kind
        u = -(f(lr) * (f(adjustment) * o + self.penalty(s, weight_decay)))
        return self.accumulate(s, u)

    def sgd(
        self, s: State, g: Array, *, lr: float, momentum: float, dampening: float,
        weight_decay: float, nesterov: bool, t: int, decoupled_weight_decay: bool = False,
    ) -> State:  # fmt: skip
        """The stored state after step t, from 1."""
        f = self.kind
        decay = self.penalty(s, weight_decay)
        g = g if decoupled_weight_decay else g + decay
        direction = g
        if momentum:
            fresh = 1.0 if t == 1 else 1 - dampening
            b = self.mean(momentum, s["momentum_buffer"], fresh, g)
            direction = g + f(momentum) * b if nesterov else b
        direction = direction + decay if decoupled_weight_decay else direction
        after = self.accumulate(s, -(f(lr) * direction))
        if "exact" in after:
            b = b + f((1 - 1 / momentum) / lr) * (after.pop("exact") - after["param"])
        return {**after, "momentum_buffer": self.moment(b)} if momentum else after
