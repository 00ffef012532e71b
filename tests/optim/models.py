"""The update rules as documented, once for three models of their arithmetic.

`Registers` and `Strict` round where the documentation says, `Exact` nowhere. That the formulas are
the papers' is shown by the optimizers of torch, of optimi and of the authors.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import torch
from torch import Tensor

from mcf.kernels.exact import rounding, square_root
from mcf.kernels.formats import FP32, Format

State = dict[str, Any]
Array = np.ndarray[Any, np.dtype[Any]]


@dataclasses.dataclass(frozen=True)
class Options:
    """Hyperparameters of all rules, and the number of the step, from 1."""

    t: int
    lr: Any
    weight_decay: Any
    betas: Any = ()
    eps: Any = 0.0
    amsgrad: bool = False
    decoupled_weight_decay: bool = False
    momentum_decay: Any = 0.0
    momentum: Any = 0.0
    dampening: Any = 0.0
    nesterov: bool = False
    alpha: Any = 0.0
    beta3_warmup: int = 1
    alpha_warmup: int = 1
    no_prox: bool = False
    warmup_steps: int = 1
    r: int = 0
    weight_lr_power: int = 2


class Formulas:
    """The rules for one number or an array, over what a model brings.

    `rn(point, x)` is a rounding point, `f(scalar)` a scalar as it reaches the kernel, `root` and
    `sign` are elementwise. `mean`, `divided`, `second`, `larger`, `norm`, `penalty`, `moment`,
    `accumulate` are parts of rules in which the models differ; `read` and `second_stored` are the
    second moment in a register and as stored. `scalar` computes roots and logarithms of scalars.
    """

    scalar: Any = math
    # The numbers of the schedule-free rule.
    largest_rate: Any = 0.0
    weights: Any = 0.0

    def after(self, rule: str, s: State, g: Any, **options: Any) -> State:
        """The state after a step of a rule."""
        state: State = getattr(self, rule)(s, g, Options(**options))
        return state

    def first(self, s: State, g: Any, beta1: float) -> Any:
        """The first moment after the gradient g."""
        return self.mean(beta1, s["exp_avg"], 1 - beta1, g, ("m", "b1 m", "(1-b1) g"))

    def fed_back(self, after: State, name: str, m: Any, factor: Any) -> State:
        """The state as it is; a model may add what was lost to a first moment."""
        return after

    def coupled(self, s: State, g: Any, weight_decay: float, decoupled: bool) -> tuple[Any, Any]:
        """The gradient, with the penalty unless that is decoupled, and the penalty."""
        decay = self.penalty(s, weight_decay)
        return g if decoupled else self.rn("g + wd p", g + decay), decay

    def moved(self, s: State, lr: float, direction: Any, decay: Any, decoupled: bool) -> State:
        """The parameter after a step along a direction."""
        if decoupled:
            direction = self.rn("ratio + wd p", direction + decay)
        return self.accumulate(s, -self.rn("u", self.f(lr) * direction))

    def adam(self, s: State, g: Any, o: Options) -> State:
        (beta1, beta2), rn, f = o.betas, self.rn, self.f
        g, decay = self.coupled(s, g, o.weight_decay, o.decoupled_weight_decay)
        m = self.first(s, g, beta1)
        v, kept = self.second(s, g, beta2)
        after = {"exp_avg": self.moment(m), **kept}
        if o.amsgrad:
            v, kept = self.larger(s, v, kept)
            after |= kept
        root = self.root(self.divided("v / bc2", v, 1 - beta2**o.t))
        root = rn("root + eps", root + f(o.eps))
        direction = rn("ratio", self.divided("m / bc1", m, 1 - beta1**o.t) / root)
        after |= self.moved(s, o.lr, direction, decay, o.decoupled_weight_decay)
        factor = (1 - 1 / beta1) * (1 - beta1**o.t) / o.lr if beta1 else 0.0
        return self.fed_back(after, "exp_avg", m, f(factor) * root)

    def adamw(self, s: State, g: Any, o: Options) -> State:
        return self.adam(s, g, dataclasses.replace(o, decoupled_weight_decay=True))

    def nadam(self, s: State, g: Any, o: Options) -> State:
        (beta1, beta2), rn, f = o.betas, self.rn, self.f
        g, decay = self.coupled(s, g, o.weight_decay, o.decoupled_weight_decay)
        m = self.first(s, g, beta1)
        v, kept = self.second(s, g, beta2)
        root = self.root(self.divided("v / bc2", v, 1 - beta2**o.t))
        mu = [beta1 * (1 - 0.5 * 0.96 ** (k * o.momentum_decay)) for k in range(1, o.t + 2)]
        product = math.prod(mu[: o.t])
        of_g, of_m = (1 - mu[o.t - 1]) / (1 - product), mu[o.t] / (1 - product * mu[o.t])
        ahead = rn("ahead", rn("c_g g", f(of_g) * g) + rn("c_m m", f(of_m) * m))
        direction = rn("ratio", ahead / rn("root + eps", root + f(o.eps)))
        after = self.moved(s, o.lr, direction, decay, o.decoupled_weight_decay)
        return {**after, "exp_avg": self.moment(m), **kept}

    def radam(self, s: State, g: Any, o: Options) -> State:
        (beta1, beta2), rn, f = o.betas, self.rn, self.f
        g, decay = self.coupled(s, g, o.weight_decay, o.decoupled_weight_decay)
        m = self.first(s, g, beta1)
        v, kept = self.second(s, g, beta2)
        direction = self.divided("m / bc1", m, 1 - beta1**o.t)
        if rate := self.radam_rate(beta2, o.t):
            denominator = rn("root + eps", self.root(v) + f(o.eps))
            direction = rn("ratio", rn("r m", f(rate) * direction) / denominator)
        after = self.moved(s, o.lr, direction, decay, o.decoupled_weight_decay)
        return {**after, "exp_avg": self.moment(m), **kept}

    def radam_rate(self, beta2: float, t: int) -> float:
        """RAdam's rectification with the bias correction of its root; 0 where there is none."""
        rho = 2 / (1 - beta2) - 1
        rho_t = rho - 2 * t * beta2**t / (1 - beta2**t)
        if rho_t <= 5:
            return 0.0
        r = self.scalar.sqrt((rho_t - 4) * (rho_t - 2) * rho / ((rho - 4) * (rho - 2) * rho_t))
        rate: float = r * self.scalar.sqrt(1 - beta2**t)
        return rate

    def adamax(self, s: State, g: Any, o: Options) -> State:
        beta1, beta2 = o.betas
        g, decay = self.coupled(s, g, o.weight_decay, o.decoupled_weight_decay)
        m = self.first(s, g, beta1)
        n, kept = self.norm(s, self.rn("|g| + eps", abs(g) + self.f(o.eps)), beta2)
        direction = self.rn("ratio", self.divided("m / bc1", m, 1 - beta1**o.t) / n)
        after = self.moved(s, o.lr, direction, decay, o.decoupled_weight_decay)
        return {**after, "exp_avg": self.moment(m), **kept}

    def lion(self, s: State, g: Any, o: Options) -> State:
        beta1, beta2 = o.betas
        decay = self.penalty(s, o.weight_decay)
        x = self.mean(beta1, s["exp_avg"], 1 - beta1, g, ("x", "b1 x", "(1-b1) x"))
        u = -self.rn("u", self.f(o.lr) * self.rn("sign + wd p", self.sign(x) + decay))
        # The moment's rate is beta2, beta1 is the update's.
        return {**self.accumulate(s, u), "exp_avg": self.moment(self.first(s, g, beta2))}

    def rooted(self, v: Any, beta2: float, t: int, eps: float) -> Any:
        """sqrt(v^) + eps."""
        return self.root(self.divided("v / bc2", v, 1 - beta2**t)) + self.f(eps)

    def squares(self, s: State, g: Any, beta2: float) -> Any:
        """v after a gradient."""
        return self.mean(beta2, self.read(s, "exp_avg_sq"), 1 - beta2, g * g)

    def ademamix(self, s: State, g: Any, o: Options) -> State:
        f, (beta1, beta2, beta3), log = self.f, o.betas, self.scalar.log
        rest = 1 - beta3
        if o.t < o.beta3_warmup:
            first = 1 / log(beta1) if beta1 else 0.0
            way = o.t / o.beta3_warmup * (1 / log(beta3) - first)
            rest = -self.scalar.expm1(1 / (first + way))
        share = o.alpha * min(1.0, o.t / o.alpha_warmup)
        m = self.first(s, g, beta1)
        v = self.squares(s, g, beta2)
        n = f(1 - rest) * self.read(s, "exp_avg_slow") + f(rest) * g
        total = self.divided("m / bc1", m, 1 - beta1**o.t) + f(share) * n
        direction = total / self.rooted(v, beta2, o.t, o.eps) + self.penalty(s, o.weight_decay)
        return {
            **self.accumulate(s, -(f(o.lr) * direction)),
            "exp_avg": self.moment(m),
            **self.second_stored("exp_avg_sq", v),
            **self.second_stored("exp_avg_slow", n),
        }

    def adan(self, s: State, g: Any, o: Options) -> State:
        f, (beta1, beta2, beta3) = self.f, o.betas
        d = g - s["previous_grad"] if o.t > 1 else g - g
        m = self.first(s, g, beta1)
        n = self.mean(beta2, s["exp_avg_diff"], 1 - beta2, d)
        v = self.squares(s, g + f(beta2) * d, beta3)
        total = self.divided("m / bc1", m, 1 - beta1**o.t) + f(beta2 / (1 - beta2**o.t)) * n
        direction = total / self.rooted(v, beta3, o.t, o.eps) + self.penalty(s, o.weight_decay)
        shrinkage = 1.0 if o.no_prox else 1 / (1 + o.lr * o.weight_decay)
        return {
            **self.accumulate(s, -(f(o.lr) * direction * f(shrinkage))),
            "exp_avg": self.moment(m),
            "exp_avg_diff": self.moment(n),
            "previous_grad": self.moment(g),
            **self.second_stored("exp_avg_sq", v),
        }

    def stableadamw(self, s: State, g: Any, o: Options) -> State:
        beta2 = o.betas[1]
        root = self.root(self.divided("v / bc2", self.squares(s, g, beta2), 1 - beta2**o.t))
        rms = self.rms(abs(g) / self.at_least(root, o.eps))
        rate = o.lr * (1 / rms) if rms > 1 else o.lr
        return self.adamw(s, g, dataclasses.replace(o, lr=rate))

    def schedulefreeadamw(self, s: State, g: Any, o: Options) -> State:
        """The state after step t; t = 1 begins anew. The parameter is the paper's y."""
        f, (beta1, beta2) = self.f, o.betas
        rate = o.lr * min(1.0, o.t / o.warmup_steps) * self.scalar.sqrt(1 - beta2**o.t)
        largest = max(rate, self.largest_rate if o.t > 1 else 0.0)
        weight = o.t**o.r * largest**o.weight_lr_power
        total = weight + (self.weights if o.t > 1 else 0.0)
        vars(self).update(largest_rate=largest, weights=total)
        c = weight / total
        v = self.squares(s, g, beta2)
        z = self.read(s, "z_minus_y")
        direction = g / (self.root(v) + f(o.eps)) + self.penalty(s, o.weight_decay)
        update = f(c) * z - f(rate * (1 - beta1 * (1 - c))) * direction
        z = f(1 - c) * z - f(beta1 * (1 - c) * rate) * direction
        return {
            **self.accumulate(s, update),
            **self.second_stored("exp_avg_sq", v),
            **self.second_stored("z_minus_y", z),
        }

    def muon_half(self, s: State, g: Any, *, momentum: float, nesterov: bool) -> tuple[Any, Any]:
        """The buffer and what is orthogonalised."""
        rn, f = self.rn, self.f
        fresh = rn("(1-mu) g", f(1 - momentum) * g)
        b = rn("b", rn("mu b", f(momentum) * s["momentum_buffer"]) + fresh)
        ahead = rn("ahead", fresh + rn("mu b'", f(momentum) * b)) if nesterov else b
        return self.moment(b), ahead

    def muon_other_half(
        self, s: State, o: Any, *, lr: float, weight_decay: float, adjustment: float
    ) -> State:
        """The parameter after the orthogonalised matrix."""
        rn, f = self.rn, self.f
        direction = rn("a O + wd p", rn("a O", f(adjustment) * o) + self.penalty(s, weight_decay))
        return self.accumulate(s, -rn("u", f(lr) * direction))

    def sgd(self, s: State, g: Any, o: Options) -> State:
        rn, f = self.rn, self.f
        g, decay = self.coupled(s, g, o.weight_decay, o.decoupled_weight_decay)
        direction = g
        if not o.momentum:
            return self.moved(s, o.lr, direction, decay, o.decoupled_weight_decay)
        fresh, names = 1.0 if o.t == 1 else 1 - o.dampening, ("b", "mom b", "(1-d) g")
        b = self.mean(o.momentum, s["momentum_buffer"], fresh, g, names)
        direction = rn("g + mom b", g + rn("mom b'", f(o.momentum) * b)) if o.nesterov else b
        after = self.moved(s, o.lr, direction, decay, o.decoupled_weight_decay)
        after["momentum_buffer"] = self.moment(b)
        return self.fed_back(after, "momentum_buffer", b, f((1 - 1 / o.momentum) / o.lr))


@dataclasses.dataclass(frozen=True)
class Registers(Formulas):
    """The default arithmetic as documented, in NumPy: registers of one format, rounded when stored.

    NumPy rounds each operation once, to float32 or float64, and never fuses two; casts to 16 bits
    are torch's. Written from docs, not from the package's rules.

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

    def register(self, t: Tensor) -> Array:
        """A tensor in registers."""
        return t.detach().to(torch.float64).numpy().astype(self.kind)

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

    def at_least(self, x: Array, least: float) -> Array:
        found: Array = np.maximum(x, self.f(least))
        return found

    def rms(self, x: Array) -> float:
        return math.sqrt(math.fsum(float(r) ** 2 for r in x) / len(x))


class Strict(Formulas):
    """Strict arithmetic as documented, on rational numbers; shares no algorithm with the package.

    One number at a time: RN(x) rounds the exact x in the float32 register and then to the component
    format. Transforms are what their theorems say (TwoSum's error is a + b - s), not operations.

    Args:
        fmt: the component format, bf16 or fp16.
        precision: "plain", "kahan", "light" or "plus".
        skip: the name of one rounding point to leave out, for mutants.
    """

    def __init__(self, fmt: Format, precision: str, skip: str | None = None) -> None:
        self.fmt, self.precision, self.skip = fmt, precision, skip
        self._component, self._register = rounding(fmt), rounding(FP32)
        # The rounding points that were reached, for the test that leaves each out.
        self.points: set[str] = set()

    def rn(self, point: str, x: Fraction) -> Fraction:
        self.points.add(point)
        rounded = self._component(self._register(x))
        assert isinstance(rounded, Fraction), f"{point} overflows: choose smaller inputs"
        return self._register(x) if point == self.skip else rounded  # type: ignore[return-value]

    def f(self, scalar: float) -> Fraction:
        """A scalar as it reaches the kernel: the host's float64 rounded to float32."""
        return self._register(Fraction(scalar))  # type: ignore[return-value]

    def root(self, x: Fraction) -> Fraction:
        return self.rn("sqrt", square_root(x, FP32))  # type: ignore[arg-type]

    # -- expansions --------------------------------------------------------------------------

    def grow(self, hi: Fraction, lo: Fraction, a: Fraction, what: str) -> tuple[Fraction, Fraction]:
        s = self.rn(f"{what} + a", hi + a)
        # TwoSum's theorem: the error is exact for any order of magnitude.
        e = hi + a - s
        return self.fast_two_sum(s, self.rn(f"d{what} + e", lo + e), what)

    def fast_two_sum(self, a: Fraction, b: Fraction, what: str) -> tuple[Fraction, Fraction]:
        # By its operations: Kahan's update calls it outside of its theorem.
        s = self.rn(f"Fast2Sum {what}", a + b)
        return s, self.rn(f"d{what}", b - self.rn(f"{what} s - a", s - a))

    def product(
        self, b: Fraction, db: Fraction, hi: Fraction, lo: Fraction
    ) -> tuple[Fraction, Fraction]:
        p = self.rn("b2 v", b * hi)
        # TwoProd's theorem: the rounded error, exact where it is a number of the format.
        e = self._component(b * hi - p)
        cross = self.rn("cross", self.rn("b2 dv", b * lo) + self.rn("db2 v", db * hi))
        return self.fast_two_sum(p, self.rn("e + cross", e + cross), "v")  # type: ignore[operator]

    # -- rules -------------------------------------------------------------------------------

    def accumulate(self, s: State, u: Fraction) -> State:
        """The parameter after the update u."""
        if self.precision == "plain":
            return {"param": self.rn("p + u", s["param"] + u)}
        if self.precision == "kahan":
            y = self.rn("dp + u", s["param_lo"] + u)
            p, dp = self.fast_two_sum(s["param"], y, "p")
        else:
            p, dp = self.grow(s["param"], s["param_lo"], u, "p")
        return {"param": p, "param_lo": dp}

    def mean(
        self, a: float, x: Fraction, b: float, y: Fraction, names: tuple[str, str, str]
    ) -> Fraction:
        """Both products rounded, then their sum."""
        one, other = (
            self.rn(n, self.f(c) * z) for n, c, z in zip(names[1:], (a, b), (x, y), strict=True)
        )
        return self.rn(names[0], one + other)

    def divided(self, point: str, x: Fraction, correction: float) -> Fraction:
        """Divide by a bias correction."""
        return self.rn(point, x / self.f(correction))

    def moment(self, m: Fraction) -> Fraction:
        """A first moment as stored."""
        return m

    def sign(self, x: Fraction) -> int:
        """The sign, 0 of 0."""
        return (x > 0) - (x < 0)

    def decayed(self, hi: Fraction, lo: Fraction, beta2: float) -> tuple[Fraction, Fraction]:
        """A pair times beta2, which is a pair too."""
        b = self._component(Fraction(beta2))
        db = self._component(Fraction(beta2) - b)  # type: ignore[operator]
        return self.product(b, db, hi, lo)  # type: ignore[arg-type]

    def second(self, s: State, g: Fraction, beta2: float) -> tuple[Fraction, State]:
        """The second moment after the gradient g, and what is stored."""
        rn, f = self.rn, self.f
        increment = rn("(1-b2) gg", f(1 - beta2) * rn("g g", g * g))
        if self.precision == "plus":
            v, dv = self.decayed(s["exp_avg_sq"], s["exp_avg_sq_lo"], beta2)
            v, dv = self.grow(v, dv, increment, "v")
        else:
            v, dv = rn("v", rn("b2 v", f(beta2) * s["exp_avg_sq"]) + increment), Fraction(0)
        return v, self.pair("exp_avg_sq", v, dv)

    def larger(self, s: State, v: Fraction, kept: State) -> tuple[Fraction, State]:
        """AMSGrad's maximum, and what is stored of it."""
        before = s["max_exp_avg_sq"], s["max_exp_avg_sq_lo"]
        v, dv = max((v, kept.get("exp_avg_sq_lo", Fraction(0))), before, key=sum)
        return v, self.pair("max_exp_avg_sq", v, dv)

    def norm(self, s: State, g: Fraction, beta2: float) -> tuple[Fraction, State]:
        """Adamax's norm of a gradient's magnitude and what was, and what is stored."""
        if self.precision == "plus":
            before = self.decayed(s["exp_inf"], s["exp_inf_lo"], beta2)
        else:
            before = self.rn("b2 n", self.f(beta2) * s["exp_inf"]), Fraction(0)
        n, dn = max((g, Fraction(0)), before, key=sum)
        return n, self.pair("exp_inf", n, dn)

    def pair(self, name: str, hi: Fraction, lo: Fraction) -> State:
        """A second moment as stored."""
        return {name: hi, f"{name}_lo": lo} if self.precision == "plus" else {name: hi}

    def penalty(self, s: State, weight_decay: float) -> Fraction:
        return self.rn("wd p", self.f(weight_decay) * s["param"])


def history(
    model: Formulas, rule: str, start: State, gradients: list[Fraction], **options: object
) -> list[State]:
    """The states of one number after each step; what `start` does not name starts as 0."""
    states: list[State] = []
    now = defaultdict(Fraction, start)
    for t, g in enumerate(gradients, 1):
        states.append(model.after(rule, now, g, t=t, **options))
        now = defaultdict(Fraction, states[-1])
    return states


BITS = 200
ONE = 1 << BITS
CONTEXT = mpmath.mp.clone()
CONTEXT.prec = BITS + 60


class Fixed:
    """Numbers in fixed point: integers in units of 2**-BITS, beside scalars of any kind.

    Fractions would grow by 53 bits in each step. In fixed point each operation is off by less than
    one unit, 2**-200, and contracting recursions keep it there.
    """

    def __init__(self, units: Any) -> None:
        self.units = units

    @classmethod
    def of(cls, t: Tensor) -> Fixed:
        """The numbers of a tensor; exact above 2**-200."""
        return cls(np.array([cls.scalar(x) for x in t.double().flatten().tolist()], dtype=object))

    @staticmethod
    def scalar(x: Any) -> Any:
        """A number of Python or mpmath in units."""
        if isinstance(x, int | float):
            n, d = x.as_integer_ratio()
            return (n << BITS) // d
        return x.units if isinstance(x, Fixed) else int(CONTEXT.floor(x * ONE))

    def floats(self) -> Tensor:
        return torch.tensor([int(k) / ONE for k in self.units], dtype=torch.float64)

    def __add__(self, other: Any) -> Fixed:
        return Fixed(self.units + self.scalar(other))

    def __sub__(self, other: Any) -> Fixed:
        return Fixed(self.units - self.scalar(other))

    def __mul__(self, other: Any) -> Fixed:
        return Fixed((self.units * self.scalar(other)) >> BITS)

    def __truediv__(self, other: Any) -> Fixed:
        return Fixed((self.units << BITS) // self.scalar(other))

    def __neg__(self) -> Fixed:
        return Fixed(-self.units)

    def __abs__(self) -> Fixed:
        return Fixed(abs(self.units))

    __radd__, __rmul__ = __add__, __mul__


class Exact(Formulas):
    """A rule on one tensor without rounding, each hyperparameter the exact value of the float64.

    Powers, roots and logarithms among the scalars are mpmath's to 260 bits.
    """

    scalar = CONTEXT

    def __init__(self, rule: str, p: Tensor, options: dict[str, Any]) -> None:
        self.rule, self.options, self.t = rule, options, 0
        zero = Fixed.of(torch.zeros(p.numel()))
        self.state: State = defaultdict(lambda: zero, param=Fixed.of(p))
        # The root mean squares by which StableAdamW divides its rates where they are above 1.
        self.means: list[Any] = []

    def step(self, g: Tensor) -> None:
        self.t += 1
        options = {name: self.exactly(value) for name, value in self.options.items()}
        self.state.update(self.after(self.rule, self.state, Fixed.of(g), t=self.t, **options))

    def exactly(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(self.exactly, value))
        return CONTEXT.mpf(value) if isinstance(value, float) else value

    def rn(self, point: str, x: Fixed) -> Fixed:
        return x

    def f(self, scalar: Any) -> Any:
        return scalar

    def root(self, x: Fixed) -> Fixed:
        return Fixed(np.array([math.isqrt(int(k) << BITS) for k in x.units], dtype=object))

    def sign(self, x: Fixed) -> Fixed:
        return Fixed(np.sign(x.units) * ONE)

    def at_least(self, x: Fixed, least: Any) -> Fixed:
        return Fixed(np.maximum(x.units, x.scalar(least)))

    def rms(self, x: Fixed) -> Any:
        squares = sum(CONTEXT.mpf(int(k)) ** 2 for k in x.units)
        self.means.append(CONTEXT.sqrt(squares / len(x.units)) / ONE)
        return self.means[-1]

    def mean(self, a: Any, x: Fixed, b: Any, y: Fixed, names: object = None) -> Fixed:
        return a * x + b * y

    def divided(self, point: str, x: Fixed, correction: Any) -> Fixed:
        return x / correction

    def read(self, s: State, name: str) -> Fixed:
        found: Fixed = s[name]
        return found

    def second_stored(self, name: str, x: Fixed) -> State:
        return {name: x}

    def second(self, s: State, g: Fixed, beta2: Any) -> tuple[Fixed, State]:
        v = self.squares(s, g, beta2)
        return v, {"exp_avg_sq": v}

    def larger(self, s: State, v: Fixed, kept: State) -> tuple[Fixed, State]:
        v = self.at_least(v, s["max_exp_avg_sq"])
        return v, {**kept, "max_exp_avg_sq": v}

    def norm(self, s: State, g: Fixed, beta2: Any) -> tuple[Fixed, State]:
        n = self.at_least(g, beta2 * s["exp_inf"])
        return n, {"exp_inf": n}

    def moment(self, m: Fixed) -> Fixed:
        return m

    def penalty(self, s: State, weight_decay: Any) -> Any:
        return weight_decay * s["param"]

    def accumulate(self, s: State, u: Fixed) -> State:
        return {"param": s["param"] + u}
