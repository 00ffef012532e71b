"""Stochastic gradient descent with momentum, Nesterov momentum and weight decay, as in torch."""

from mcf.kernels.algorithms.primitives import neg, rn
from mcf.optim.rules.slots import accumulate, direction, param_value, scaled_gradient


def sgd(
    param,
    param_lo,
    grad,
    grad_lo,
    momentum_buffer,
    grad_scale,
    grad_limit,
    lr,
    momentum,
    one_minus_dampening,
    weight_decay,
):
    """One step: the new state and the update of the parameter.

    g <- g + weight_decay p;  b <- momentum b + (1 - dampening) g;  p <- p - lr d,
    with d = b, or g + momentum b (Nesterov), or g (no momentum).
    """
    decay = rn(weight_decay * param_value(param, param_lo))
    gradient = rn(scaled_gradient(grad, grad_lo, grad_scale, grad_limit) + decay)
    momentum_buffer = rn(rn(momentum * momentum_buffer) + rn(one_minus_dampening * gradient))
    update = neg(rn(lr * direction(gradient, momentum_buffer, momentum)))
    param, param_lo = accumulate(param, param_lo, update)
    return param, param_lo, momentum_buffer, update


def plain_direction(gradient, buffer, momentum):
    """d = g."""
    return gradient


def momentum_direction(gradient, buffer, momentum):
    """d = b."""
    return buffer


def nesterov_direction(gradient, buffer, momentum):
    """d = g + momentum b (Nesterov 1983, as in Sutskever et al. 2013)."""
    return rn(gradient + rn(momentum * buffer))
