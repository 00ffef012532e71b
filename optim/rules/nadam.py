"""The update of NAdam, Adam with Nesterov momentum (Dozat 2016, ICLR workshop)."""

from __future__ import annotations

import decimal
import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.optim.optimizer import ParamsT
from typing_extensions import Unpack

from mcf.kernels.algorithms.pairs import mul
from mcf.kernels.algorithms.primitives import ONE, div, neg, rn, sqrt
from mcf.optim.moment_optimizer import MomentOptimizer, two_moments
from mcf.optim.options import Options, hyperparameters
from mcf.optim.rule.formulas import averaged, decay_and_gradient
from mcf.optim.rule.rule import Coefficients, Rule, by_flags
from mcf.optim.storage.slots import accumulate, decayed, second_moment_value, unbias
from mcf.optim.storage.strategies import Arithmetic


def nadam(
    weight,
    grads,
    exp_avg,
    second,
    lr,
    rates,
    gradient_weight,
    moment_weight,
    bias_correction2,
    eps,
    weight_decay,
):
    """Compute one step: the new state, the parameter's update and the increment of exp_avg_sq.

    m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) g^2;
    p <- p - lr ((c_g g + c_m m) / (sqrt(v^) + eps) + weight_decay p (decoupled)), with
    c_g = (1 - mu_t) / (1 - mu_1 ... mu_t), c_m = mu_{t+1} / (1 - mu_1 ... mu_{t+1}).

    torch adds the gradient's and the moment's share to the parameter separately; here they are one
    update, so that a parameter is rounded once.
    """
    decay, gradient = decay_and_gradient(weight, grads, weight_decay)
    exp_avg, exp_avg_sq, exp_avg_sq_lo, increment = averaged(gradient, exp_avg, second, rates)
    root = rn(sqrt(unbias(second_moment_value(exp_avg_sq, exp_avg_sq_lo), bias_correction2)))
    ahead = rn(rn(gradient_weight * gradient) + rn(moment_weight * exp_avg))
    update = neg(rn(lr * decayed(rn(div(ahead, rn(root + eps))), decay)))
    param, param_lo = accumulate(weight[0], weight[1], update)
    return param, param_lo, exp_avg, exp_avg_sq, exp_avg_sq_lo, update, increment


def momenta(
    beta1,
    momentum_base,
    momentum_base_lo,
    power_momentum_base,
    power_momentum_base_lo,
    mu_product,
):
    """c_g and c_m of `nadam.nadam`, and the product of the momenta with this step's.

    mu_t = b1 (1 - c^t / 2), where the pair c is 0.96^momentum_decay.
    """
    momentum = rn(beta1 * rn(ONE - rn(0.5 * power_momentum_base)))
    next_power, _ = mul(
        power_momentum_base, power_momentum_base_lo, momentum_base, momentum_base_lo
    )
    ahead = rn(beta1 * rn(ONE - rn(0.5 * next_power)))
    product = rn(mu_product * momentum)
    return (
        rn(div(rn(ONE - momentum), rn(ONE - product))),
        rn(div(ahead, rn(ONE - rn(product * ahead)))),
        product,
    )


def _rule(decoupled: bool) -> Rule:
    return two_moments(
        "nadam_decoupled" if decoupled else "nadam",
        nadam,
        decoupled=decoupled,
        numbers=(("mu_product", 1.0),),
        coefficients=(
            Coefficients(momenta, ("gradient_weight", "moment_weight", "new_mu_product")),
        ),
    )


@functools.cache
def _momentum_base(decay: float) -> tuple[float, float]:
    """Return 0.96^momentum_decay as a pair."""
    with decimal.localcontext() as context:
        context.prec = 60
        exact = decimal.Decimal.from_float(0.96) ** decimal.Decimal(decay)
        high = float(exact)
        return high, float(exact - decimal.Decimal(high))


class NAdam(MomentOptimizer):
    r"""NAdam (Dozat 2016), Adam with Nesterov momentum, with a storage precision for each tensor.

    m <- b1 m + (1 - b1) g; v <- b2 v + (1 - b2) g^2; mu_t = b1 (1 - 0.96^(t momentum_decay) / 2); p
    <- p - lr ((1 - mu_t) g / (1 - mu_1 ... mu_t) + mu_{t+1} m / (1 - mu_1 ... mu_{t+1})) /
    (sqrt(v^) + eps), v^ = v / (1 - b2^t).

    The product of the momenta is the state `mu_product`, as in torch, but in float64.

    Args:
        weight_decay: L2 penalty, or the rate of decay if decoupled.
        momentum_decay: how fast the momentum grows to b1.

    Guarantees and errors are those of `mcf.optim.AdamW`.
    """

    variants = ("decoupled_weight_decay",)
    rules = by_flags(_rule)

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 2e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, hyperparameters(locals()), **options)

    def _given(
        self, group: dict[str, Any], arith: Arithmetic, read: Callable[[Any], Any]
    ) -> dict[str, Any]:
        # A power with a fractional exponent is computed on the CPU.
        base, base_lo = _momentum_base(float(group["momentum_decay"]))
        given = super()._given(group, arith, read)
        return {**given, "momentum_base": base, "momentum_base_lo": base_lo}
