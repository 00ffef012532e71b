"""The update of AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101), and of what it came from.

Adam (Kingma and Ba 2015, arXiv:1412.6980) has its weight decay in the gradient; AMSGrad (Reddi,
Kale and Kumar 2018, arXiv:1904.09237) divides by the largest second moment so far.
"""

from mcf.kernels.algorithms.primitives import div, neg, rn, sqrt
from mcf.optim.rules.slots import (
    accumulate,
    decay_and_add,
    decayed,
    denominator,
    param_value,
    regularized,
    scaled_gradient,
    second_moment_value,
    unbias,
)


def adamw(
    param,
    param_lo,
    grad,
    grad_lo,
    exp_avg,
    exp_avg_sq,
    exp_avg_sq_lo,
    max_exp_avg_sq,
    max_exp_avg_sq_lo,
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
    bias_correction2,
    inverse_bias_correction2,
    eps,
    weight_decay,
):
    """One step: the new state, the update of the parameter and the increment of exp_avg_sq.

    g <- g + weight_decay p (Adam);  m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) g^2;
    w <- max(w, v) (AMSGrad), or v;  p <- p - lr (m^ / (sqrt(w^) + eps) + weight_decay p (AdamW)),
    with m^, w^ bias-corrected.

    Weight decay is inside the update, so that a compensated parameter does not lose it.
    """
    decay = rn(weight_decay * param_value(param, param_lo))
    gradient = regularized(scaled_gradient(grad, grad_lo, grad_scale, grad_limit), decay)
    exp_avg = rn(rn(beta1 * exp_avg) + rn(one_minus_beta1 * gradient))
    increment = rn(one_minus_beta2 * rn(gradient * gradient))
    exp_avg_sq, exp_avg_sq_lo = decay_and_add(exp_avg_sq, exp_avg_sq_lo, beta2, beta2_lo, increment)
    max_exp_avg_sq, max_exp_avg_sq_lo = denominator(
        exp_avg_sq, exp_avg_sq_lo, max_exp_avg_sq, max_exp_avg_sq_lo
    )
    second = second_moment_value(max_exp_avg_sq, max_exp_avg_sq_lo)
    root = rn(sqrt(unbias(second, bias_correction2, inverse_bias_correction2)))
    first = unbias(exp_avg, bias_correction1, inverse_bias_correction1)
    divisor = rn(root + eps)
    update = neg(rn(lr * decayed(rn(div(first, divisor)), decay)))
    param, param_lo = accumulate(param, param_lo, update)
    return (
        param,
        param_lo,
        exp_avg,
        exp_avg_sq,
        exp_avg_sq_lo,
        max_exp_avg_sq,
        max_exp_avg_sq_lo,
        divisor,
        update,
        increment,
    )
