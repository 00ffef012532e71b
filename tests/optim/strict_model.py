"""Strict arithmetic as documented, on rational numbers, independent of the package's algorithms.

One number at a time: RN(x) rounds the exact x in the float32 register and then to the component
format. Transforms are what their theorems say (TwoSum's error is a + b - s), not operations.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from mcf.kernels.exact import rounding, square_root
from mcf.kernels.formats import FP32, Format

State = dict[str, Fraction]


class Strict:
    """The update rules with the rounding points of strict arithmetic, for one number.

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

    def register(self, scalar: float) -> Fraction:
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

    def first(self, s: State, g: Fraction, beta1: float) -> Fraction:
        """The first moment after the gradient g."""
        rn, f = self.rn, self.register
        return rn("m", rn("b1 m", f(beta1) * s["exp_avg"]) + rn("(1-b1) g", f(1 - beta1) * g))

    def decayed(self, hi: Fraction, lo: Fraction, beta2: float) -> tuple[Fraction, Fraction]:
        """A pair times beta2, which is a pair too."""
        b = self._component(Fraction(beta2))
        db = self._component(Fraction(beta2) - b)  # type: ignore[operator]
        return self.product(b, db, hi, lo)  # type: ignore[arg-type]

    def second(self, s: State, g: Fraction, beta2: float) -> tuple[Fraction, Fraction]:
        """The second moment after the gradient g; the low word is 0 where it is not stored."""
        rn, f = self.rn, self.register
        increment = rn("(1-b2) gg", f(1 - beta2) * rn("g g", g * g))
        if self.precision == "plus":
            v, dv = self.decayed(s["exp_avg_sq"], s["exp_avg_sq_lo"], beta2)
            return self.grow(v, dv, increment, "v")
        return rn("v", rn("b2 v", f(beta2) * s["exp_avg_sq"]) + increment), Fraction(0)

    def pair(self, name: str, hi: Fraction, lo: Fraction) -> State:
        """A second moment as stored."""
        return {name: hi, f"{name}_lo": lo} if self.precision == "plus" else {name: hi}

    def penalty(self, s: State, weight_decay: float) -> Fraction:
        return self.rn("wd p", self.register(weight_decay) * s["param"])

    def adam(
        self, s: State, g: Fraction, *, lr: float, betas: tuple[float, float], eps: float,
        weight_decay: float, t: int, amsgrad: bool = False, decoupled_weight_decay: bool = False,
    ) -> State:  # fmt: skip
        """The state after step t, from 1."""
        (beta1, beta2), rn, f = betas, self.rn, self.register
        decay = self.penalty(s, weight_decay)
        if not decoupled_weight_decay:
            g = rn("g + wd p", g + decay)
        m = self.first(s, g, beta1)
        v, dv = self.second(s, g, beta2)
        after = {"exp_avg": m, **self.pair("exp_avg_sq", v, dv)}
        if amsgrad:
            before = s["max_exp_avg_sq"], s["max_exp_avg_sq_lo"]
            v, dv = max((v, dv), before, key=sum)
            after |= self.pair("max_exp_avg_sq", v, dv)
        root = self.root(rn("v / bc2", v / f(1 - beta2**t)))
        first = rn("m / bc1", m / f(1 - beta1**t))
        # Division rounds in the register, then to the component as every operation.
        direction = rn("ratio", first / rn("root + eps", root + f(eps)))
        if decoupled_weight_decay:
            direction = rn("ratio + wd p", direction + decay)
        return {**self.accumulate(s, -rn("u", f(lr) * direction)), **after}

    def adamw(self, s: State, g: Fraction, **options: Any) -> State:
        """The state after step t, from 1."""
        return self.adam(s, g, decoupled_weight_decay=True, **options)

    def nadam(
        self, s: State, g: Fraction, *, lr: float, betas: tuple[float, float], eps: float,
        weight_decay: float, momentum_decay: float, t: int, decoupled_weight_decay: bool = False,
    ) -> State:  # fmt: skip
        """The state after step t, from 1."""
        (beta1, beta2), rn, f = betas, self.rn, self.register
        decay = self.penalty(s, weight_decay)
        if not decoupled_weight_decay:
            g = rn("g + wd p", g + decay)
        m = self.first(s, g, beta1)
        v, dv = self.second(s, g, beta2)
        root = self.root(rn("v / bc2", v / f(1 - beta2**t)))
        of_g, of_m = nadam_weights(beta1, momentum_decay, t)
        ahead = rn("ahead", rn("c_g g", f(of_g) * g) + rn("c_m m", f(of_m) * m))
        direction = rn("ratio", ahead / rn("root + eps", root + f(eps)))
        if decoupled_weight_decay:
            direction = rn("ratio + wd p", direction + decay)
        after = self.accumulate(s, -rn("u", f(lr) * direction))
        return {**after, "exp_avg": m, **self.pair("exp_avg_sq", v, dv)}

    def radam(
        self, s: State, g: Fraction, *, lr: float, betas: tuple[float, float], eps: float,
        weight_decay: float, t: int, decoupled_weight_decay: bool = False,
    ) -> State:  # fmt: skip
        """The state after step t, from 1."""
        (beta1, beta2), rn, f = betas, self.rn, self.register
        decay = self.penalty(s, weight_decay)
        if not decoupled_weight_decay:
            g = rn("g + wd p", g + decay)
        m = self.first(s, g, beta1)
        v, dv = self.second(s, g, beta2)
        direction = rn("m / bc1", m / f(1 - beta1**t))
        if rate := radam_rate(beta2, t):
            denominator = rn("root + eps", self.root(v) + f(eps))
            direction = rn("ratio", rn("r m", f(rate) * direction) / denominator)
        if decoupled_weight_decay:
            direction = rn("ratio + wd p", direction + decay)
        after = self.accumulate(s, -rn("u", f(lr) * direction))
        return {**after, "exp_avg": m, **self.pair("exp_avg_sq", v, dv)}

    def adamax(
        self, s: State, g: Fraction, *, lr: float, betas: tuple[float, float], eps: float,
        weight_decay: float, t: int, decoupled_weight_decay: bool = False,
    ) -> State:  # fmt: skip
        """The state after step t, from 1."""
        (beta1, beta2), rn, f = betas, self.rn, self.register
        decay = self.penalty(s, weight_decay)
        g = g if decoupled_weight_decay else rn("g + wd p", g + decay)
        m = self.first(s, g, beta1)
        if self.precision == "plus":
            before = self.decayed(s["exp_inf"], s["exp_inf_lo"], beta2)
        else:
            before = rn("b2 n", f(beta2) * s["exp_inf"]), Fraction(0)
        n, dn = max((rn("|g| + eps", abs(g) + f(eps)), Fraction(0)), before, key=sum)
        direction = rn("ratio", rn("m / bc1", m / f(1 - beta1**t)) / n)
        if decoupled_weight_decay:
            direction = rn("ratio + wd p", direction + decay)
        after = self.accumulate(s, -rn("u", f(lr) * direction))
        return {**after, "exp_avg": m, **self.pair("exp_inf", n, dn)}

    def lion(
        self, s: State, g: Fraction, *, lr: float, betas: tuple[float, float],
        weight_decay: float, t: int,
    ) -> State:  # fmt: skip
        """The state after step t, from 1."""
        (beta1, beta2), rn, f = betas, self.rn, self.register
        decay = self.penalty(s, weight_decay)
        x = rn("x", rn("b1 x", f(beta1) * s["exp_avg"]) + rn("(1-b1) x", f(1 - beta1) * g))
        sign = (x > 0) - (x < 0)
        u = -rn("u", f(lr) * rn("sign + wd p", sign + decay))
        # The moment's rate is beta2, beta1 is the update's.
        return {**self.accumulate(s, u), "exp_avg": self.first(s, g, beta2)}

    def muon_half(
        self, s: State, g: Fraction, *, momentum: float, nesterov: bool
    ) -> tuple[Fraction, Fraction]:
        """The buffer and what is orthogonalised."""
        rn, f = self.rn, self.register
        fresh = rn("(1-mu) g", f(1 - momentum) * g)
        b = rn("b", rn("mu b", f(momentum) * s["momentum_buffer"]) + fresh)
        return b, rn("ahead", fresh + rn("mu b'", f(momentum) * b)) if nesterov else b

    def muon_other_half(
        self, s: State, o: Fraction, *, lr: float, weight_decay: float, adjustment: float
    ) -> State:
        """The parameter after the orthogonalised matrix."""
        rn, f = self.rn, self.register
        direction = rn("a O + wd p", rn("a O", f(adjustment) * o) + self.penalty(s, weight_decay))
        return self.accumulate(s, -rn("u", f(lr) * direction))

    def sgd(
        self, s: State, g: Fraction, *, lr: float, momentum: float, dampening: float,
        weight_decay: float, nesterov: bool, t: int, decoupled_weight_decay: bool = False,
    ) -> State:  # fmt: skip
        """The state after step t, from 1."""
        rn, f = self.rn, self.register
        decay = self.penalty(s, weight_decay)
        g = g if decoupled_weight_decay else rn("g + wd p", g + decay)
        moments: State = {}
        direction = g
        if momentum:
            fresh = rn("(1-d) g", f(1.0 if t == 1 else 1 - dampening) * g)
            b = rn("b", rn("mom b", f(momentum) * s["momentum_buffer"]) + fresh)
            moments = {"momentum_buffer": b}
            direction = rn("g + mom b", g + rn("mom b'", f(momentum) * b)) if nesterov else b
        if decoupled_weight_decay:
            direction = rn("d + wd p", direction + decay)
        u = -rn("u", f(lr) * direction)
        return {**self.accumulate(s, u), **moments}


def nadam_weights(beta1: float, momentum_decay: float, t: int) -> tuple[float, float]:
    """What NAdam's update takes of the gradient and of the moment."""
    mu = [beta1 * (1 - 0.5 * 0.96 ** (k * momentum_decay)) for k in range(1, t + 2)]
    product = math.prod(mu[:t])
    return (1 - mu[t - 1]) / (1 - product), mu[t] / (1 - product * mu[t])


def radam_rate(beta2: float, t: int) -> float:
    """RAdam's rectification with the bias correction of its root; 0 where there is none."""
    rho = 2 / (1 - beta2) - 1
    rho_t = rho - 2 * t * beta2**t / (1 - beta2**t)
    if rho_t <= 5:
        return 0.0
    r = math.sqrt((rho_t - 4) * (rho_t - 2) * rho / ((rho - 4) * (rho - 2) * rho_t))
    return r * math.sqrt(1 - beta2**t)


def history(
    step: Callable[..., State], start: State, gradients: list[Fraction], **options: object
) -> list[State]:
    """The states of one number after each step; what `start` does not name starts as 0."""
    states: list[State] = []
    now = defaultdict(Fraction, start)
    for t, g in enumerate(gradients, 1):
        states.append(step(now, g, t=t, **options))
        now = defaultdict(Fraction, states[-1])
    return states
