"""The update of NAdam, Adam with Nesterov momentum (Dozat 2016, ICLR workshop)."""

from mcf.kernels.algorithms.primitives import div, neg, rn, sqrt
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


def nadam(
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
    gradient_weight,
    moment_weight,
    bias_correction2,
    inverse_bias_correction2,
    eps,
    weight_decay,
):
    """One step: the new state, the update of the parameter and the increment of exp_avg_sq.

    m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) g^2;
    p <- p - lr ((c_g g + c_m m) / (sqrt(v^) + eps) + weight_decay p (decoupled)), with
    c_g = (1 - mu_t) / (1 - mu_1 ... mu_t), c_m = mu_{t+1} / (1 - mu_1 ... mu_{t+1}).

    torch adds the gradient's and the moment's share to the parameter one after the other; here
    they are one update, so that a parameter is rounded once.
    """
    decay = rn(weight_decay * param_value(param, param_lo))
    gradient = regularized(scaled_gradient(grad, grad_lo, grad_scale, grad_limit), decay)
    exp_avg = rn(rn(beta1 * exp_avg) + rn(one_minus_beta1 * gradient))
    increment = rn(one_minus_beta2 * rn(gradient * gradient))
    exp_avg_sq, exp_avg_sq_lo = decay_and_add(exp_avg_sq, exp_avg_sq_lo, beta2, beta2_lo, increment)
    second = second_moment_value(exp_avg_sq, exp_avg_sq_lo)
    root = rn(sqrt(unbias(second, bias_correction2, inverse_bias_correction2)))
    ahead = rn(rn(gradient_weight * gradient) + rn(moment_weight * exp_avg))
    update = neg(rn(lr * decayed(rn(div(ahead, rn(root + eps))), decay)))
    param, param_lo = accumulate(param, param_lo, update)
    return param, param_lo, exp_avg, exp_avg_sq, exp_avg_sq_lo, update, increment
