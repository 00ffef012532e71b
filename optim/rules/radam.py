"""The update of RAdam, Adam with a rectified rate (Liu et al. 2020, arXiv:1908.03265)."""

from __future__ import annotations

from torch import Tensor
from torch.optim.optimizer import ParamsT
from typing_extensions import Unpack

from mcf.kernels.algorithms.primitives import ONE, ZERO, div, neg, rn, sqrt, where
from mcf.optim.moment_optimizer import MomentOptimizer, two_moments
from mcf.optim.options import Options, hyperparameters
from mcf.optim.rule.formulas import averaged, decay_and_gradient
from mcf.optim.rule.rule import Coefficients, Rule, by_flags
from mcf.optim.storage.slots import accumulate, decayed, second_moment_value, unbias


def radam(
    weight, grads, exp_avg, second, lr, rates, bias_correction1, rectification, eps, weight_decay
):
    """Compute one step: the new state, the parameter's update and the increment of exp_avg_sq.

    m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) g^2;
    p <- p - lr (r m^ / (sqrt(v) + eps) + weight_decay p (decoupled)), with r the rectification
    times sqrt(1 - beta2^t); in the first steps, where the variance of v is not tractable and
    r = 0, p <- p - lr (m^ + weight_decay p).
    """
    decay, gradient = decay_and_gradient(weight, grads, weight_decay)
    exp_avg, exp_avg_sq, exp_avg_sq_lo, increment = averaged(gradient, exp_avg, second, rates)
    root = rn(sqrt(second_moment_value(exp_avg_sq, exp_avg_sq_lo)))
    first = unbias(exp_avg, bias_correction1)
    adaptive = rn(div(rn(rectification * first), rn(root + eps)))
    direction = where(rectification > ZERO, adaptive, first)
    update = neg(rn(lr * decayed(direction, decay)))
    param, param_lo = accumulate(weight[0], weight[1], update)
    return param, param_lo, exp_avg, exp_avg_sq, exp_avg_sq_lo, update, increment


def rectification(whole_beta2, power_whole_beta2, step):
    """r_t sqrt(1 - b2^t), or 0 in the first steps, where rho_t <= 5.

    rho = 2 / (1 - b2) - 1; rho_t = rho - 2 t b2^t / (1 - b2^t);
    r_t = sqrt((rho_t - 4) (rho_t - 2) rho / ((rho - 4) (rho - 2) rho_t)).
    """
    correction = rn(ONE - power_whole_beta2)
    limit = rn(rn(div(ONE + ONE, rn(ONE - whole_beta2))) - ONE)
    length = rn(limit - rn(div(rn(rn(2.0 * step) * power_whole_beta2), correction)))
    above = rn(rn(rn(length - 4.0) * rn(length - 2.0)) * limit)
    below = rn(rn(rn(limit - 4.0) * rn(limit - 2.0)) * length)
    rectified = rn(rn(sqrt(rn(div(above, below)))) * rn(sqrt(correction)))
    return (where(length > 5.0, rectified, ZERO),)


def _rule(decoupled: bool) -> Rule:
    rectified = Coefficients(rectification, ("rectification",))
    name = "radam_decoupled" if decoupled else "radam"
    return two_moments(name, radam, decoupled=decoupled, coefficients=(rectified,))


class RAdam(MomentOptimizer):
    r"""RAdam (arXiv:1908.03265) with a storage precision for each tensor.

    m <- b1 m + (1 - b1) g; v <- b2 v + (1 - b2) g^2; m^ = m / (1 - b1^t); p <- p - lr m^ r_t sqrt(1
    - b2^t) / (sqrt(v) + eps), or p - lr m^ while the variance of v is not tractable;
    `mcf.optim.rules.radam.rectification` defines r_t and that condition.

    Args:
        weight_decay: L2 penalty, or the rate of decay if decoupled.

    Guarantees and errors are those of `mcf.optim.AdamW`.
    """

    variants = ("decoupled_weight_decay",)
    rules = by_flags(_rule)

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, hyperparameters(locals()), **options)
