"""Scalars that follow from hyperparameters and the number of the step, in float64.

Formulas like those of the rules, so that a GPU computes them with the bits of the host. Their
parameters are hyperparameters by name; `step`, the number of the step from 1; `power_x` and
`power_x_lo`, the pair x**step; and the rule's numbers as they were before the step.
"""

from mcf.kernels.algorithms.pairs import mul
from mcf.kernels.algorithms.primitives import ONE, ZERO, div, rn, sqrt, where


def adam(beta1, whole_beta2, power_beta1, power_whole_beta2):
    """1 - b1, 1 - b2, 1 - b1^t and its inverse, 1 - b2^t and its inverse."""
    correction1 = rn(ONE - power_beta1)
    correction2 = rn(ONE - power_whole_beta2)
    return (
        rn(ONE - beta1),
        rn(ONE - whole_beta2),
        correction1,
        rn(div(ONE, correction1)),
        correction2,
        rn(div(ONE, correction2)),
    )


def adam_feedback(beta1, power_beta1, lr):
    """(1 - 1/b1) (1 - b1^t) / lr; see `feedback.adam_feed_back`."""
    return (rn(rn(ONE - power_beta1) * feedback_factor(beta1, lr)),)


def radam(whole_beta2, power_whole_beta2, step):
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


def nadam(
    beta1,
    momentum_base,
    momentum_base_lo,
    power_momentum_base,
    power_momentum_base_lo,
    mu_product,
):
    """c_g and c_m of `nadam.nadam`, and the product of the momenta with this step's.

    mu_t = b1 (1 - c^t / 2), where the pair c is .96^momentum_decay.
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


def lion(beta1, beta2):
    """1 - b1, 1 - b2."""
    return rn(ONE - beta1), rn(ONE - beta2)


def sgd(dampening, step):
    """1 - dampening; 1 in the first step, whose whole gradient the buffer takes, as in torch."""
    return (where(step == ONE, ONE, rn(ONE - dampening)),)


def momentum_feedback(momentum, lr):
    """(1 - 1/momentum) / lr; see `feedback.momentum_feed_back`."""
    return (feedback_factor(momentum, lr),)


def muon(momentum):
    """1 - mu."""
    return (rn(ONE - momentum),)


def feedback_factor(beta, lr):
    """(1 - 1/beta) / lr; 0 for a rate of 0, where the parameter does not move."""
    return where(lr == ZERO, ZERO, rn(div(rn(ONE - rn(div(ONE, beta))), lr)))
