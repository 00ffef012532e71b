"""The AdamW update (Loshchilov and Hutter 2019, arXiv:1711.05101)."""

from mcf.kernels.algorithms.primitives import div, neg, rn, sqrt
from mcf.optim.rules.slots import (
    accumulate,
    decay_and_add,
    param_value,
    second_moment_value,
    unbias,
)


def adamw(
    param,
    param_lo,
    grad,
    exp_avg,
    exp_avg_sq,
    exp_avg_sq_lo,
    grad_scale,
    lr,
    beta1,
    one_minus_beta1,
    beta2,
    beta2_lo,
    one_minus_beta2,
    bias_correction1,
    inverse_bias_correction1,
    bias_correction2,
    inverse_bias_correction2,
    eps,
    weight_decay,
):
    """One step: the new state, the update of the parameter and the increment of exp_avg_sq.

    m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) g^2;
    p <- p - lr (m^ / (sqrt(v^) + eps) + weight_decay p), with m^, v^ bias-corrected.

    Weight decay is inside the update, so that a compensated parameter does not lose it.
    """
    gradient = rn(grad * grad_scale)
    exp_avg = rn(rn(beta1 * exp_avg) + rn(one_minus_beta1 * gradient))
    increment = rn(one_minus_beta2 * rn(gradient * gradient))
    exp_avg_sq, exp_avg_sq_lo = decay_and_add(exp_avg_sq, exp_avg_sq_lo, beta2, beta2_lo, increment)
    second = second_moment_value(exp_avg_sq, exp_avg_sq_lo)
    root = rn(sqrt(unbias(second, bias_correction2, inverse_bias_correction2)))
    first = unbias(exp_avg, bias_correction1, inverse_bias_correction1)
    decay = rn(weight_decay * param_value(param, param_lo))
    update = neg(rn(lr * rn(rn(div(first, rn(root + eps))) + decay)))
    param, param_lo = accumulate(param, param_lo, update)
    return param, param_lo, exp_avg, exp_avg_sq, exp_avg_sq_lo, update, increment
