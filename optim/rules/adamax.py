"""The update of Adamax, Adam in the infinity norm (Kingma and Ba 2015, arXiv:1412.6980)."""

from mcf.kernels.algorithms.primitives import ZERO, div, neg, rn, where
from mcf.optim.rules.maximum import largest
from mcf.optim.rules.slots import (
    accumulate,
    param_value,
    scaled_gradient,
    second_moment_components,
    second_moment_value,
    shrink,
    unbias,
)


def adamax(
    param,
    param_lo,
    grad,
    grad_lo,
    exp_avg,
    exp_inf,
    exp_inf_lo,
    grad_scale,
    grad_limit,
    lr,
    beta1,
    one_minus_beta1,
    beta2,
    beta2_lo,
    bias_correction1,
    inverse_bias_correction1,
    eps,
    weight_decay,
):
    """One step: the new state and the update of the parameter.

    g <- g + weight_decay p;  m <- beta1 m + (1 - beta1) g;
    n <- max(beta2 n, |g| + eps);  p <- p - lr m^ / n.

    The norm n is stored as second moments are: in one bf16 number it would not decay at all,
    because RN(.999 n) = n.
    """
    decay = rn(weight_decay * param_value(param, param_lo))
    gradient = rn(scaled_gradient(grad, grad_lo, grad_scale, grad_limit) + decay)
    exp_avg = rn(rn(beta1 * exp_avg) + rn(one_minus_beta1 * gradient))
    size = rn(where(gradient < ZERO, neg(gradient), gradient) + eps)
    size, size_lo = second_moment_components(size)
    exp_inf, exp_inf_lo = shrink(exp_inf, exp_inf_lo, beta2, beta2_lo)
    exp_inf, exp_inf_lo = largest(size, size_lo, exp_inf, exp_inf_lo)
    norm = second_moment_value(exp_inf, exp_inf_lo)
    first = unbias(exp_avg, bias_correction1, inverse_bias_correction1)
    update = neg(rn(lr * rn(div(first, norm))))
    param, param_lo = accumulate(param, param_lo, update)
    return param, param_lo, exp_avg, exp_inf, exp_inf_lo, update
