"""The gradient that a rule begins with: a stored one, or the sum of two, scaled and clipped."""

from mcf.kernels.algorithms.primitives import neg, rn, where


def single(grad, grad_lo, grad_scale, grad_limit):
    """RN(s g)."""
    return rn(grad * grad_scale)


def pair(grad, grad_lo, grad_scale, grad_limit):
    """RN(s RN(g + dg)), of a gradient accumulated in two components."""
    return rn(rn(grad + grad_lo) * grad_scale)


def single_clipped(grad, grad_lo, grad_scale, grad_limit):
    """RN(s g), no further from 0 than the limit."""
    return clipped(rn(grad * grad_scale), grad_limit)


def pair_clipped(grad, grad_lo, grad_scale, grad_limit):
    """RN(s RN(g + dg)), no further from 0 than the limit."""
    return clipped(rn(rn(grad + grad_lo) * grad_scale), grad_limit)


def clipped(x, limit):
    """min(max(x, -limit), limit), rounded; NaN stays NaN."""
    return rn(where(x > limit, limit, where(x < neg(limit), neg(limit), x)))
