"""The update of schedule-free AdamW (Defazio et al. 2024, arXiv:2405.15682)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT
from typing_extensions import Unpack

from mcf.kernels.algorithms.primitives import ONE, ZERO, div, neg, rn, sqrt, where
from mcf.optim import validation
from mcf.optim.moment_optimizer import MomentOptimizer
from mcf.optim.options import Options, hyperparameters
from mcf.optim.parameters import expansions
from mcf.optim.rule.rule import SECOND, SLOW, Coefficients, Rule
from mcf.optim.rules.ademamix import leading_bits
from mcf.optim.sharding.shards import like, local
from mcf.optim.storage import values
from mcf.optim.storage.slots import (
    accumulate,
    decay_and_add,
    param_value,
    scaled_gradient,
    second_moment_value,
)
from mcf.optim.storage.strategies import WITHOUT_FIRST, Arithmetic


def schedule_free(weight, grads, second, distance, decays, shares, eps, weight_decay):
    """Compute one step: the new state, the parameter's update and the increment of exp_avg_sq.

    v <- beta2 v + (1 - beta2) g^2;  u = g / (sqrt(v) + eps) + weight_decay y;
    y <- y + c (z - y) - lr_t (1 - beta1 (1 - c)) u;  z - y <- (1 - c) (z - y - beta1 lr_t u).

    The parameter is y. The second line is the authors' z <- z - lr_t u in terms of the difference:
    a momentum with a rate of 1 - c, nearly 1, which uses the second-moment storage.
    """
    beta2, beta2_lo, one_minus_beta2 = decays
    towards_z, rate, rest, rest_lo, rate_of_rest = shares
    decay = rn(weight_decay * param_value(weight[0], weight[1]))
    gradient = scaled_gradient(grads)
    increment = rn(one_minus_beta2 * rn(gradient * gradient))
    exp_avg_sq, exp_avg_sq_lo = decay_and_add(second[0], second[1], beta2, beta2_lo, increment)
    root = rn(sqrt(second_moment_value(exp_avg_sq, exp_avg_sq_lo)))
    direction = rn(rn(div(gradient, rn(root + eps))) + decay)
    towards = rn(towards_z * second_moment_value(distance[0], distance[1]))
    update = rn(towards - rn(rate * direction))
    moved = neg(rn(rate_of_rest * direction))
    z_minus_y, z_minus_y_lo = decay_and_add(distance[0], distance[1], rest, rest_lo, moved)
    param, param_lo = accumulate(weight[0], weight[1], update)
    return param, param_lo, exp_avg_sq, exp_avg_sq_lo, z_minus_y, z_minus_y_lo, update, increment


def of_shares(
    lr,
    beta1,
    whole_beta2,
    power_whole_beta2,
    step,
    warmup_steps,
    step_power,
    lr_power,
    splitter,
    lr_max,
    weight_sum,
):
    """1 - b2, c, lr_t (1 - b1 (1 - c)), 1 - c in two components, b1 (1 - c) lr_t; lr_max, the sum.

    lr_t = lr min(t / warmup_steps, 1) sqrt(1 - b2^t); c = w_t / (w_1 + ... + w_t),
    w_t = t^r max(lr_1, ..., lr_t)^weight_lr_power.
    """
    warm = rn(lr * rn(div(step, warmup_steps)))
    now = where(step < warmup_steps, warm, lr)
    now = rn(now * rn(sqrt(rn(ONE - power_whole_beta2))))
    largest = where(now > lr_max, now, lr_max)
    weight = rn(small_power(step, step_power) * small_power(largest, lr_power))
    total = rn(weight_sum + weight)
    share = where(total > ZERO, rn(div(weight, where(total > ZERO, total, ONE))), ZERO)
    rest = rn(ONE - share)
    kept = rn(beta1 * rest)
    high = leading_bits(rest, splitter)
    low = leading_bits(rn(rest - high), splitter)
    return (
        rn(ONE - whole_beta2),
        share,
        rn(now * rn(ONE - kept)),
        high,
        low,
        rn(kept * now),
        largest,
        total,
    )


def small_power(x, exponent):
    """x^0, x^1 or x^2."""
    return where(exponent > ONE, rn(x * x), where(exponent > ZERO, x, rn(x - x) + ONE))


_SHARES = ("towards_z", "rate", "rest", "rest_lo", "rate_of_rest")
_RULES = {(): Rule(
    name="schedule_free",
    function=schedule_free,
    results=(
        "param", "param_lo", "exp_avg_sq", "exp_avg_sq_lo", "z_minus_y", "z_minus_y_lo",
        "update", "increment",
    ),
    states=(("exp_avg_sq", SECOND), ("z_minus_y", SLOW)),
    numbers=(("lr_max", 0.0), ("weight_sum", 0.0)),
    decoupled=True,
    coefficients=(
        Coefficients(of_shares, ("one_minus_beta2", *_SHARES, "new_lr_max", "new_weight_sum")),
    ),
    groups=(
        ("distance", ("z_minus_y", "z_minus_y_lo")),
        ("decays", ("beta2", "beta2_lo", "one_minus_beta2")),
        ("shares", _SHARES),
    ),
)}  # fmt: skip

# States that hold y while the parameter is x; the second one for an expansion's low component.
_TRAINED = ("trained_param", "trained_param_lo")


class ScheduleFreeAdamW(MomentOptimizer):
    r"""Schedule-free AdamW (arXiv:2405.15682) with a storage precision for each tensor.

    v <- b2 v + (1 - b2) g^2; u = g / (sqrt(v) + eps) + weight_decay y; z <- z - lr_t u;
    x <- x + c (z - x); y = b1 x + (1 - b1) z, where gradients are taken; x is the average with
    which to evaluate. lr_t = lr min(t / warmup_steps, 1) sqrt(1 - b2^t),
    c = w_t / (w_1 + ... + w_t), w_t = t^r max(lr_1, ..., lr_t)^weight_lr_power.

    The parameter y is stored, and z - y: a momentum with the rate 1 - c, nearly 1, which is
    therefore stored as v is, under `"plus"` as an expansion. Names, defaults and update are those
    of the authors' implementation (facebookresearch/schedule_free). There, z and y are numbers of
    the parameter's dtype, which in bf16 lose updates below half a unit.

        optimizer.train()  # the parameters are y
        ...  # train
        optimizer.eval()   # the parameters are x, rounded to their dtype
        ...  # evaluate, save the model
        optimizer.train()  # y again, bit for bit

    A state dict of the optimizer holds what `train()` needs, in both modes.

    Args:
        betas: the share of x in y, in (0, 1), and the decay rate of v, in [0, 1).
        weight_decay: decoupled weight decay, at y.
        warmup_steps: the number of steps in which the rate rises linearly.
        r: the power of t in the weight of the average: 0, 1 or 2.
        weight_lr_power: the power of the largest rate in that weight: 0, 1 or 2.
        precision: any of `mcf.optim.AdamW` except ECO's and `"4bit"`, because there is no first
            moment. With v in 8 bits z - y, which v does not bound, is in bf16, rounded
            stochastically.

    Guarantees and errors are those of `mcf.optim.AdamW`.

    Raises:
        RuntimeError: from a step in eval mode.
    """

    precisions = WITHOUT_FIRST
    rules = _RULES

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.0025,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        warmup_steps: int = 0,
        r: int = 0,
        weight_lr_power: int = 2,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, hyperparameters(locals()) | {"train_mode": True}, **options)

    def eval(self) -> None:
        """Set the parameters to x, rounded to their dtype, and keep what `train()` needs."""
        self._turn(False)

    def train(self) -> None:
        """Set the parameters to y again, with the bits they had before `eval()`."""
        self._turn(True)

    @torch.no_grad()
    def _turn(self, train: bool) -> None:
        for group in self.param_groups:
            if group["train_mode"] == train:
                continue
            for p in group["params"]:
                state = self._made(p)
                if state and train:
                    names = [n for n in _TRAINED if n in self.state[p]]
                    expansions.write_components(p, [local(self.state[p].pop(n)) for n in names])
                elif state:
                    average = self._average(group, p, state)
                    kept = zip(_TRAINED, expansions.copied_components(p), strict=False)
                    self.state[p].update({n: like(p, t) for n, t in kept})
                    expansions.write_value(p, average)
            group["train_mode"] = train
        # A cached step would not check the mode.
        self._steps.forget()

    def _average(self, group: dict[str, Any], p: Tensor, state: dict[str, Any]) -> values.Value:
        """Return x = y - (1 - b1) / b1 (z - y) of the local part of a parameter."""
        storage, tensors = self._stored(p)
        high, low = storage.value(tensors)
        names = (n for n in ("z_minus_y", "z_minus_y_lo") if n in state)
        ahead, _ = values.exact(*(local(state[n]) for n in names))
        beta1 = float(group["betas"][0])
        back = ahead * ((1 - beta1) / beta1)
        return values.exact(high, low - back)

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        beta1 = group["betas"][0]
        if not isinstance(beta1, Tensor) and beta1 == 0:
            raise ValueError("Invalid beta parameter at index 0: 0; allowed is (0, 1)")
        count = group["warmup_steps"]
        if isinstance(count, bool) or not isinstance(count, int):
            raise TypeError(f"warmup_steps must be an int, got {type(count).__name__}")
        validation.number("warmup_steps", count)
        for name in ("r", "weight_lr_power"):
            if isinstance(group[name], bool) or group[name] not in (0, 1, 2):
                raise ValueError(f"Invalid {name}: {group[name]!r}; allowed are 0, 1 and 2")

    def _check_scheduled(self, group: dict[str, Any]) -> None:
        if not group["train_mode"]:
            raise RuntimeError("step() in eval mode, where parameters are averages; call train()")
        super()._check_scheduled(group)

    def _given(
        self, group: dict[str, Any], arith: Arithmetic, read: Callable[[Any], Any]
    ) -> dict[str, Any]:
        return {
            **super()._given(group, arith, read),
            # Steps are counted from 1, so 1 means no warm-up.
            "warmup_steps": float(group["warmup_steps"] or 1),
            "step_power": float(group["r"]),
            "lr_power": float(group["weight_lr_power"]),
        }
