"""The update of Adan, Adam with Nesterov momentum (Xie et al. 2022, arXiv:2208.06677)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.optim.optimizer import ParamsT
from typing_extensions import Unpack

from mcf.kernels.algorithms.primitives import ONE, ZERO, div, neg, rn, sqrt, where
from mcf.optim.moment_optimizer import MomentOptimizer, two_moments
from mcf.optim.options import Options, hyperparameters
from mcf.optim.rule.formulas import decay_and_gradient
from mcf.optim.rule.rule import FIRST, PREVIOUS, Coefficients
from mcf.optim.storage.slots import accumulate, decay_and_add, decayed, second_moment_value, unbias
from mcf.optim.storage.strategies import WITHOUT_FEEDBACK, Arithmetic


def adan(
    weight,
    grads,
    exp_avg,
    second,
    exp_avg_diff,
    previous_grad,
    lr,
    rates,
    differences,
    corrections,
    eps,
    weight_decay,
):
    """Compute one step: the new state, the parameter's update and the increment of exp_avg_sq.

    d = g - g_before (0 in the first step);  m <- beta1 m + (1 - beta1) g;
    n <- beta_diff n + (1 - beta_diff) d;  v <- beta2 v + (1 - beta2) (g + beta_diff d)^2;
    p <- (p - lr (m^ + beta_diff n^) / (sqrt(v^) + eps)) / (1 + lr weight_decay),
    with m^, n^, v^ bias-corrected. That is p plus an update of
    -lr ((m^ + beta_diff n^) / (sqrt(v^) + eps) + weight_decay p) / (1 + lr weight_decay).
    """
    decay, gradient = decay_and_gradient(weight, grads, weight_decay)
    beta1, one_minus_beta1, beta2, beta2_lo, one_minus_beta2 = rates
    beta_diff, one_minus_beta_diff, diff_weight, later, shrinkage = differences
    difference = where(later > ZERO, rn(gradient - previous_grad), ZERO)
    exp_avg = rn(rn(beta1 * exp_avg) + rn(one_minus_beta1 * gradient))
    exp_avg_diff = rn(rn(beta_diff * exp_avg_diff) + rn(one_minus_beta_diff * difference))
    ahead = rn(gradient + rn(beta_diff * difference))
    increment = rn(one_minus_beta2 * rn(ahead * ahead))
    exp_avg_sq, exp_avg_sq_lo = decay_and_add(second[0], second[1], beta2, beta2_lo, increment)
    root = rn(sqrt(unbias(second_moment_value(exp_avg_sq, exp_avg_sq_lo), corrections[1])))
    total = rn(unbias(exp_avg, corrections[0]) + rn(diff_weight * exp_avg_diff))
    direction = decayed(rn(div(total, rn(root + eps))), decay)
    update = neg(rn(rn(lr * direction) * shrinkage))
    param, param_lo = accumulate(weight[0], weight[1], update)
    return (
        param,
        param_lo,
        exp_avg,
        exp_avg_sq,
        exp_avg_sq_lo,
        exp_avg_diff,
        gradient,
        update,
        increment,
    )


def of_differences(beta_diff, power_beta_diff, step, lr, weight_decay, proximal):
    """1 - b2, b2 / (1 - b2^t), whether a gradient came before, 1 / (1 + lr weight_decay) or 1."""
    whole = rn(ONE + rn(lr * weight_decay))
    return (
        rn(ONE - beta_diff),
        rn(div(beta_diff, rn(ONE - power_beta_diff))),
        where(step > ONE, ONE, ZERO),
        where(proximal > ZERO, rn(div(ONE, whole)), ONE),
    )


_DIFFERENCES = ("one_minus_beta_diff", "diff_weight", "later", "shrinkage")
_RULES = {(): two_moments(
    "adan",
    adan,
    decoupled=True,
    results=("exp_avg_diff", "previous_grad"),
    states=(("exp_avg_diff", FIRST), ("previous_grad", PREVIOUS)),
    coefficients=(Coefficients(of_differences, _DIFFERENCES),),
    groups=(("differences", ("beta_diff", *_DIFFERENCES)),),
)}  # fmt: skip


class Adan(MomentOptimizer):
    r"""Adan (arXiv:2208.06677) with a storage precision for each tensor.

    d = g - g_before; m <- b1 m + (1 - b1) g; n <- b2 n + (1 - b2) d;
    v <- b3 v + (1 - b3) (g + b2 d)^2;
    p <- (p - lr (m^ + b2 n^) / (sqrt(v^) + eps)) / (1 + lr weight_decay),
    m^ = m / (1 - b1^t), n^ = n / (1 - b2^t), v^ = v / (1 - b3^t); d is 0 in the first step.

    Names, defaults and the sense of betas are those of the authors' implementation (sail-sg/Adan);
    the paper writes 1 - b for b. States are `exp_avg`, `exp_avg_diff`, `exp_avg_sq` and
    `previous_grad`, the gradient of the previous step, scaled and clipped. It uses the first-moment
    storage, which is exact for a bf16 gradient that was neither scaled nor clipped.

    Args:
        betas: decay rates of m, n and v, floats in [0, 1).
        weight_decay: proximal weight decay, p / (1 + lr weight_decay).
        no_prox: decay p by lr weight_decay p instead, as AdamW does.
        precision: any of `mcf.optim.AdamW` except ECO's. With moments of 4 bits the previous
            gradient has 8.

    Guarantees and errors are those of `mcf.optim.AdamW`.
    """

    precisions = WITHOUT_FEEDBACK
    beta_count, moments = 3, (0, 2)
    rules = _RULES

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float, float] = (0.98, 0.92, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        no_prox: bool = False,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, hyperparameters(locals()), **options)

    def _given(
        self, group: dict[str, Any], arith: Arithmetic, read: Callable[[Any], Any]
    ) -> dict[str, Any]:
        return {
            **super()._given(group, arith, read),
            "beta_diff": float(group["betas"][1]),
            "proximal": 0.0 if group["no_prox"] else 1.0,
        }
