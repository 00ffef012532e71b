"""The update of RAdam, Adam with a rectified rate (Liu et al. 2020, arXiv:1908.03265)."""

from mcf.kernels.algorithms.primitives import ZERO, div, neg, rn, sqrt, where
from mcf.optim.rules.slots import (
    accumulate,
    decay_and_add,
    decayed,
    param_value,
    regularized,
    scaled_gradient,
    second_moment_value,
    unbias,
)


def radam(
    param,
    param_lo,
    grad,
    grad_lo,
    exp_avg,
    exp_avg_sq,
    exp_avg_sq_lo,
    grad_scale,
    grad_limit,
    lr,
    beta1,
    one_minus_beta1,
    beta2,
    beta2_lo,
    one_minus_beta2,
    bias_correction1,
    inverse_bias_correction1,
    rectification,
    eps,
    weight_decay,
):
    """One step: the new state, the update of the parameter and the increment of exp_avg_sq.

    m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) g^2;
    p <- p - lr (r m^ / (sqrt(v) + eps) + weight_decay p (decoupled)), with r the rectification
    times sqrt(1 - beta2^t); in the first steps, where the variance of v is not tractable and
    r = 0, p <- p - lr (m^ + weight_decay p).
    """
    decay = rn(weight_decay * param_value(param, param_lo))
    gradient = regularized(scaled_gradient(grad, grad_lo, grad_scale, grad_limit), decay)
    exp_avg = rn(rn(beta1 * exp_avg) + rn(one_minus_beta1 * gradient))
    increment = rn(one_minus_beta2 * rn(gradient * gradient))
    exp_avg_sq, exp_avg_sq_lo = decay_and_add(exp_avg_sq, exp_avg_sq_lo, beta2, beta2_lo, increment)
    root = rn(sqrt(second_moment_value(exp_avg_sq, exp_avg_sq_lo)))
    first = unbias(exp_avg, bias_correction1, inverse_bias_correction1)
    adaptive = rn(div(rn(rectification * first), rn(root + eps)))
    direction = where(rectification > ZERO, adaptive, first)
    update = neg(rn(lr * decayed(direction, decay)))
    param, param_lo = accumulate(param, param_lo, update)
    return param, param_lo, exp_avg, exp_avg_sq, exp_avg_sq_lo, update, increment
