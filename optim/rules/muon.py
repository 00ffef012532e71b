"""The two halves of a Muon step (Jordan et al. 2024), before and after the orthogonalisation."""

from mcf.kernels.algorithms.primitives import neg, rn
from mcf.optim.rules.slots import accumulate, ahead, param_value, scaled_gradient


def muon_momentum(
    grad, grad_lo, momentum_buffer, grad_scale, grad_limit, momentum, one_minus_momentum
):
    """The new buffer and the matrix to orthogonalise.

    b <- momentum b + (1 - momentum) g;  the matrix is b, or (1 - momentum) g + momentum b
    (Nesterov), as torch has it.
    """
    gradient = scaled_gradient(grad, grad_lo, grad_scale, grad_limit)
    fresh = rn(one_minus_momentum * gradient)
    momentum_buffer = rn(rn(momentum * momentum_buffer) + fresh)
    return momentum_buffer, ahead(fresh, momentum_buffer, momentum)


def plain_ahead(fresh, buffer, momentum):
    """b."""
    return buffer


def nesterov_ahead(fresh, buffer, momentum):
    """(1 - momentum) g + momentum b, where fresh is (1 - momentum) g."""
    return rn(fresh + rn(momentum * buffer))


def muon(param, param_lo, grad, lr, adjustment, weight_decay):
    """The new parameter and its update; `grad` is the orthogonalised matrix O.

    p <- p - lr (adjustment O + weight_decay p).
    """
    decay = rn(weight_decay * param_value(param, param_lo))
    update = neg(rn(lr * rn(rn(adjustment * grad) + decay)))
    param, param_lo = accumulate(param, param_lo, update)
    return param, param_lo, update
