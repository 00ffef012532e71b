"""Rounding errors of the parameter fed into the first moment: ECO (arXiv:2601.22101).

With w = p + u the parameter before it is rounded, p' as it is stored and e = w - p', the first
moment that is kept is m + s e, where s is the factor of ECO's algorithms. A master weight would
carry e along; this way the next update makes up for it, because a part 1 - beta of what was added
to m is missing then.
"""

from mcf.kernels.algorithms.primitives import ONE, ZERO, div, rn, where


def adam_feed_back(out_exp_avg, out_param, new_param, out_divisor, feedback):
    """m + (1 - 1/b1) (1 - b1^t) / lr (sqrt(v^) + eps) e, Algorithm 3 of the paper.

    `feedback` is all before the root.
    """
    error = rn(out_param - new_param)
    fed = rn(out_exp_avg + rn(rn(feedback * out_divisor) * error))
    # Where the divisor is infinite nothing moved, and 0 times infinity is NaN.
    return where(error == ZERO, out_exp_avg, fed)


def momentum_feed_back(out_momentum_buffer, out_param, new_param, feedback):
    """b + (1 - 1/momentum) / lr e, Algorithm 2 of the paper; `feedback` is the factor of e."""
    error = rn(out_param - new_param)
    return rn(out_momentum_buffer + rn(feedback * error))


def fed(out_exp_avg, out_param, new_param, out_divisor, feedback):
    """`adam_feed_back` alone, for a moment that another step has made."""
    return (adam_feed_back(out_exp_avg, out_param, new_param, out_divisor, feedback),)


def feedback_factor(beta, lr):
    """(1 - 1/beta) / lr; 0 for a rate of 0, where the parameter does not move."""
    return where(lr == ZERO, ZERO, rn(div(rn(ONE - rn(div(ONE, beta))), lr)))
