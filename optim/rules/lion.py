"""The update of Lion, evolved sign momentum (Chen et al. 2023, arXiv:2302.06675)."""

from mcf.kernels.algorithms.primitives import ONE, ZERO, neg, rn, where
from mcf.optim.rules.slots import accumulate, param_value, scaled_gradient


def lion(
    param,
    param_lo,
    grad,
    grad_lo,
    exp_avg,
    grad_scale,
    grad_limit,
    lr,
    beta1,
    one_minus_beta1,
    beta2,
    one_minus_beta2,
    weight_decay,
):
    """One step: the new state and the update of the parameter.

    p <- p - lr (sign(beta1 m + (1 - beta1) g) + weight_decay p);  m <- beta2 m + (1 - beta2) g.
    """
    decay = rn(weight_decay * param_value(param, param_lo))
    gradient = scaled_gradient(grad, grad_lo, grad_scale, grad_limit)
    ahead = rn(rn(beta1 * exp_avg) + rn(one_minus_beta1 * gradient))
    update = neg(rn(lr * rn(sign(ahead) + decay)))
    exp_avg = rn(rn(beta2 * exp_avg) + rn(one_minus_beta2 * gradient))
    param, param_lo = accumulate(param, param_lo, update)
    return param, param_lo, exp_avg, update


def sign(x):
    """-1, x or 1 for x < 0, x a zero or NaN, x > 0."""
    return where(x > ZERO, ONE, where(x < ZERO, ZERO - ONE, x))
