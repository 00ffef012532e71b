"""The update of Adamax, Adam in the infinity norm (Kingma and Ba 2015, arXiv:1412.6980)."""

from __future__ import annotations

from torch import Tensor
from torch.optim.optimizer import ParamsT
from typing_extensions import Unpack

from mcf.kernels.algorithms.primitives import ZERO, div, neg, rn, where
from mcf.optim.moment_optimizer import CORRECTIONS, MomentOptimizer
from mcf.optim.options import Options, hyperparameters
from mcf.optim.rule.formulas import decay_and_gradient, largest
from mcf.optim.rule.rule import FIRST, SECOND, Rule, by_flags
from mcf.optim.storage.codes import norm as exponent
from mcf.optim.storage.slots import (
    accumulate,
    decayed,
    second_moment_components,
    second_moment_value,
    shrink,
    unbias,
)


def adamax(weight, grads, exp_avg, norm, lr, rates, bias_correction1, eps, weight_decay):
    """Compute one step: the new state and the update of the parameter.

    g <- g + weight_decay p;  m <- beta1 m + (1 - beta1) g;
    n <- max(beta2 n, |g| + eps);  p <- p - lr m^ / n, or, with decoupled weight decay,
    p - lr (m^ / n + weight_decay p).

    The norm n uses the second-moment storage: in one bf16 number it would not decay at all, because
    RN(0.999 n) = n.
    """
    decay, gradient = decay_and_gradient(weight, grads, weight_decay)
    beta1, one_minus_beta1, beta2, beta2_lo, _ = rates
    exp_avg = rn(rn(beta1 * exp_avg) + rn(one_minus_beta1 * gradient))
    size = rn(where(gradient < ZERO, neg(gradient), gradient) + eps)
    size, size_lo = second_moment_components(size)
    exp_inf, exp_inf_lo = shrink(norm[0], norm[1], beta2, beta2_lo)
    exp_inf, exp_inf_lo = largest(size, size_lo, exp_inf, exp_inf_lo)
    first = unbias(exp_avg, bias_correction1)
    quotient = rn(div(first, second_moment_value(exp_inf, exp_inf_lo)))
    update = neg(rn(lr * decayed(quotient, decay)))
    param, param_lo = accumulate(weight[0], weight[1], update)
    return param, param_lo, exp_avg, exp_inf, exp_inf_lo, update


def _rule(decoupled: bool) -> Rule:
    return Rule(
        name="adamax_decoupled" if decoupled else "adamax",
        function=adamax,
        results=("param", "param_lo", "exp_avg", "exp_inf", "exp_inf_lo", "update"),
        states=(("exp_avg", FIRST), ("exp_inf", SECOND)),
        decoupled=decoupled,
        slots=(("unit", exponent),),
        groups=(("norm", ("exp_inf", "exp_inf_lo")),),
        coefficients=(CORRECTIONS,),
    )


class Adamax(MomentOptimizer):
    r"""Adamax (arXiv:1412.6980) with a storage precision for each tensor.

    g <- g + weight_decay p; m <- b1 m + (1 - b1) g; n <- max(b2 n, |g| + eps);
    p <- p - lr m / ((1 - b1^t) n).

    The norm n, `exp_inf`, uses the second-moment storage: under `"plus"` an expansion. One bf16
    number would keep its largest value forever, because 0.999 n rounds to n.

    Args:
        betas: decay rates of the moment and of the norm, in [0, 1).
        eps: added to |g|.
        weight_decay: L2 penalty, or the rate of decay if decoupled.

    Guarantees and errors are those of `mcf.optim.AdamW`.
    """

    variants = ("decoupled_weight_decay",)
    later = ("decoupled_weight_decay",)
    rules = by_flags(_rule)

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 2e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        decoupled_weight_decay: bool = False,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, hyperparameters(locals()), **options)
