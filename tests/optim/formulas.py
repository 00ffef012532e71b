"""The update rules as documented, once for both models: numbers that round are left to these.

That the formulas are the papers' is shown by `exact_rules`, which shares nothing with them.
"""

from __future__ import annotations

import math
from typing import Any

State = dict[str, Any]


class Formulas:
    """The rules for one number or an array, over what a model brings.

    `rn(point, x)` is a rounding point, `f(scalar)` a scalar as it reaches the kernel, `root` and
    `sign` are elementwise. `mean`, `divided`, `second`, `larger`, `norm`, `penalty`, `moment`,
    `accumulate` are parts of rules in which the models differ.
    """

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

    def adam(
        self, s: State, g: Any, *, lr: float, betas: tuple[float, float], eps: float,
        weight_decay: float, t: int, amsgrad: bool = False, decoupled_weight_decay: bool = False,
    ) -> State:  # fmt: skip
        """The state after step t, from 1."""
        (beta1, beta2), rn, f = betas, self.rn, self.f
        g, decay = self.coupled(s, g, weight_decay, decoupled_weight_decay)
        m = self.first(s, g, beta1)
        v, kept = self.second(s, g, beta2)
        after = {"exp_avg": self.moment(m), **kept}
        if amsgrad:
            v, kept = self.larger(s, v, kept)
            after |= kept
        root = self.root(self.divided("v / bc2", v, 1 - beta2**t))
        root = rn("root + eps", root + f(eps))
        direction = rn("ratio", self.divided("m / bc1", m, 1 - beta1**t) / root)
        after |= self.moved(s, lr, direction, decay, decoupled_weight_decay)
        factor = (1 - 1 / beta1) * (1 - beta1**t) / lr if beta1 else 0.0
        return self.fed_back(after, "exp_avg", m, f(factor) * root)

    def adamw(self, s: State, g: Any, **options: Any) -> State:
        """The state after step t, from 1."""
        return self.adam(s, g, decoupled_weight_decay=True, **options)

    def nadam(
        self, s: State, g: Any, *, lr: float, betas: tuple[float, float], eps: float,
        weight_decay: float, momentum_decay: float, t: int, decoupled_weight_decay: bool = False,
    ) -> State:  # fmt: skip
        """The state after step t, from 1."""
        (beta1, beta2), rn, f = betas, self.rn, self.f
        g, decay = self.coupled(s, g, weight_decay, decoupled_weight_decay)
        m = self.first(s, g, beta1)
        v, kept = self.second(s, g, beta2)
        root = self.root(self.divided("v / bc2", v, 1 - beta2**t))
        of_g, of_m = nadam_weights(beta1, momentum_decay, t)
        ahead = rn("ahead", rn("c_g g", f(of_g) * g) + rn("c_m m", f(of_m) * m))
        direction = rn("ratio", ahead / rn("root + eps", root + f(eps)))
        after = self.moved(s, lr, direction, decay, decoupled_weight_decay)
        return {**after, "exp_avg": self.moment(m), **kept}

    def radam(
        self, s: State, g: Any, *, lr: float, betas: tuple[float, float], eps: float,
        weight_decay: float, t: int, decoupled_weight_decay: bool = False,
    ) -> State:  # fmt: skip
        """The state after step t, from 1."""
        (beta1, beta2), rn, f = betas, self.rn, self.f
        g, decay = self.coupled(s, g, weight_decay, decoupled_weight_decay)
        m = self.first(s, g, beta1)
        v, kept = self.second(s, g, beta2)
        direction = self.divided("m / bc1", m, 1 - beta1**t)
        if rate := radam_rate(beta2, t):
            denominator = rn("root + eps", self.root(v) + f(eps))
            direction = rn("ratio", rn("r m", f(rate) * direction) / denominator)
        after = self.moved(s, lr, direction, decay, decoupled_weight_decay)
        return {**after, "exp_avg": self.moment(m), **kept}

    def adamax(
        self, s: State, g: Any, *, lr: float, betas: tuple[float, float], eps: float,
        weight_decay: float, t: int, decoupled_weight_decay: bool = False,
    ) -> State:  # fmt: skip
        """The state after step t, from 1."""
        beta1, beta2 = betas
        g, decay = self.coupled(s, g, weight_decay, decoupled_weight_decay)
        m = self.first(s, g, beta1)
        n, kept = self.norm(s, self.rn("|g| + eps", abs(g) + self.f(eps)), beta2)
        direction = self.rn("ratio", self.divided("m / bc1", m, 1 - beta1**t) / n)
        after = self.moved(s, lr, direction, decay, decoupled_weight_decay)
        return {**after, "exp_avg": self.moment(m), **kept}

    def lion(
        self, s: State, g: Any, *, lr: float, betas: tuple[float, float],
        weight_decay: float, t: int,
    ) -> State:  # fmt: skip
        """The state after step t, from 1."""
        beta1, beta2 = betas
        decay = self.penalty(s, weight_decay)
        x = self.mean(beta1, s["exp_avg"], 1 - beta1, g, ("x", "b1 x", "(1-b1) x"))
        u = -self.rn("u", self.f(lr) * self.rn("sign + wd p", self.sign(x) + decay))
        # The moment's rate is beta2, beta1 is the update's.
        return {**self.accumulate(s, u), "exp_avg": self.moment(self.first(s, g, beta2))}

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

    def sgd(
        self, s: State, g: Any, *, lr: float, momentum: float, dampening: float,
        weight_decay: float, nesterov: bool, t: int, decoupled_weight_decay: bool = False,
    ) -> State:  # fmt: skip
        """The state after step t, from 1."""
        rn, f = self.rn, self.f
        g, decay = self.coupled(s, g, weight_decay, decoupled_weight_decay)
        direction = g
        if not momentum:
            return self.moved(s, lr, direction, decay, decoupled_weight_decay)
        fresh, names = 1.0 if t == 1 else 1 - dampening, ("b", "mom b", "(1-d) g")
        b = self.mean(momentum, s["momentum_buffer"], fresh, g, names)
        direction = rn("g + mom b", g + rn("mom b'", f(momentum) * b)) if nesterov else b
        after = self.moved(s, lr, direction, decay, decoupled_weight_decay)
        after["momentum_buffer"] = self.moment(b)
        return self.fed_back(after, "momentum_buffer", b, f((1 - 1 / momentum) / lr))


def nadam_weights(beta1: float, momentum_decay: float, t: int) -> tuple[float, float]:
    """Return the shares of the gradient and of the moment in NAdam's update."""
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
