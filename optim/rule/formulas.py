"""Formulas that rules share and that fill their slots.

A rule begins with a gradient that is one stored number or the sum of two, scaled and clipped.
Weight decay enters in the gradient (an L2 penalty) or in the update (decoupled).

ECO (arXiv:2601.22101) feeds rounding errors of the parameter into the first moment. With w = p + u
the parameter before rounding, p' the stored one and e = w - p', the stored first moment is m + s e,
where s is the factor of ECO's algorithms. A master weight would keep e; here the next update
compensates for it, because a part 1 - beta of what was added to m is then missing.
"""

from mcf.kernels.algorithms import grow
from mcf.kernels.algorithms.primitives import ONE, ZERO, div, neg, rn, where
from mcf.optim.storage.pair import finite, kahan
from mcf.optim.storage.slots import decay_and_add, param_value, regularized, scaled_gradient


def single_gradient(grads):
    """RN(s g)."""
    return rn(grads[0] * grads[2])


def paired_gradient(grads):
    """RN(s RN(g + dg)), of a gradient accumulated in two components."""
    return rn(rn(grads[0] + grads[1]) * grads[2])


def single_clipped_gradient(grads):
    """RN(s g), no further from 0 than the limit."""
    return clipped(single_gradient(grads), grads[3])


def paired_clipped_gradient(grads):
    """RN(s RN(g + dg)), no further from 0 than the limit."""
    return clipped(paired_gradient(grads), grads[3])


def decay_and_gradient(weight, grads, weight_decay):
    """weight_decay p; the gradient, to which an L2 penalty adds it."""
    decay = rn(weight_decay * param_value(weight[0], weight[1]))
    return decay, regularized(scaled_gradient(grads), decay)


def averaged(gradient, exp_avg, second, rates):
    """beta1 m + (1 - beta1) g;  beta2 v + (1 - beta2) g^2;  the increment of the second."""
    beta1, one_minus_beta1, beta2, beta2_lo, one_minus_beta2 = rates
    exp_avg = rn(rn(beta1 * exp_avg) + rn(one_minus_beta1 * gradient))
    increment = rn(one_minus_beta2 * rn(gradient * gradient))
    high, low = decay_and_add(second[0], second[1], beta2, beta2_lo, increment)
    return exp_avg, high, low, increment


def clipped(x, limit):
    """min(max(x, -limit), limit), rounded; NaN stays NaN."""
    return rn(where(x > limit, limit, where(x < neg(limit), neg(limit), x)))


def fold_wide(hi, lo, grad):
    """(hi, lo) + g with float32 registers around 16-bit components: only lo is rounded."""
    # Once other code has set the leading component to 0, no low component may remain.
    hi, lo = kahan(hi, where(hi == ZERO, ZERO, lo), grad)
    return hi, finite(hi, lo)


def fold(hi, lo, grad):
    """Grow((hi, lo), g), for float32 and float64."""
    hi, lo = grow(hi, where(hi == ZERO, ZERO, lo), grad)
    return hi, finite(hi, lo)


def no_decay(x, decay):
    """x."""
    return x


def added_decay(x, decay):
    """RN(x + decay)."""
    return rn(x + decay)


# The functions for the slots `regularized` and `decayed`.
DECOUPLED = (("regularized", no_decay), ("decayed", added_decay))
L2 = (("regularized", added_decay), ("decayed", no_decay))


def no_maximum(second, second_lo, maximum, maximum_lo):
    """The second moment itself; no maximum is kept."""
    return second, second_lo


def largest(second, second_lo, maximum, maximum_lo):
    """max(maximum, second) by value, of normalised expansions; NaN where either is NaN.

    This is AMSGrad's maximum (Reddi, Kale and Kumar 2018, arXiv:1904.09237). If leading components
    differ, the expansion with the larger one is not the smaller number.
    """
    tie = (maximum == second) & (maximum_lo > second_lo)
    kept = (maximum > second) | tie | (maximum != maximum)
    return where(kept, maximum, second), where(kept, maximum_lo, second_lo)


def adam_feed_back(out_exp_avg, out_param, new_param, out_divisor, feedback):
    """m + (1 - 1/b1) (1 - b1^t) / lr (sqrt(v^) + eps) e, Algorithm 3 of the paper.

    `feedback` is the factor before the root.
    """
    error = rn(out_param - new_param)
    fed = rn(out_exp_avg + rn(rn(feedback * out_divisor) * error))
    # An infinite divisor moves nothing, and 0 times infinity is NaN.
    return where(error == ZERO, out_exp_avg, fed)


def momentum_feed_back(out_momentum_buffer, out_param, new_param, feedback):
    """b + (1 - 1/momentum) / lr e, Algorithm 2 of the paper; `feedback` is the factor of e."""
    error = rn(out_param - new_param)
    return rn(out_momentum_buffer + rn(feedback * error))


def feedback_factor(beta, lr):
    """(1 - 1/beta) / lr; 0 for a rate of 0, where the parameter does not move."""
    return where(lr == ZERO, ZERO, rn(div(rn(ONE - rn(div(ONE, beta))), lr)))
