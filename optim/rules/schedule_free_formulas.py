"""The formulas of schedule-free AdamW (Defazio et al. 2024, arXiv:2405.15682)."""

from __future__ import annotations

from mcf.kernels.algorithms.primitives import ONE, ZERO, div, neg, rn, sqrt, where
from mcf.optim.rules.ademamix import leading_bits
from mcf.optim.storage.slots import (
    accumulate,
    decay_and_add,
    param_value,
    scaled_gradient,
    second_moment_value,
)


def schedule_free(
    param,
    param_lo,
    grad,
    grad_lo,
    exp_avg_sq,
    exp_avg_sq_lo,
    z_minus_y,
    z_minus_y_lo,
    grad_scale,
    grad_limit,
    beta2,
    beta2_lo,
    one_minus_beta2,
    towards_z,
    rate,
    rest,
    rest_lo,
    rate_of_rest,
    eps,
    weight_decay,
):
    """One step: the new state, the update of the parameter and the increment of exp_avg_sq.

    v <- beta2 v + (1 - beta2) g^2;  u = g / (sqrt(v) + eps) + weight_decay y;
    y <- y + c (z - y) - lr_t (1 - beta1 (1 - c)) u;  z - y <- (1 - c) (z - y - beta1 lr_t u).

    The parameter is y. The second line is the authors' z <- z - lr_t u in terms of the difference:
    a momentum with a rate of 1 - c, nearly 1, that is stored as the second moment is.
    """
    decay = rn(weight_decay * param_value(param, param_lo))
    gradient = scaled_gradient(grad, grad_lo, grad_scale, grad_limit)
    increment = rn(one_minus_beta2 * rn(gradient * gradient))
    exp_avg_sq, exp_avg_sq_lo = decay_and_add(exp_avg_sq, exp_avg_sq_lo, beta2, beta2_lo, increment)
    root = rn(sqrt(second_moment_value(exp_avg_sq, exp_avg_sq_lo)))
    direction = rn(rn(div(gradient, rn(root + eps))) + decay)
    towards = rn(towards_z * second_moment_value(z_minus_y, z_minus_y_lo))
    update = rn(towards - rn(rate * direction))
    moved = neg(rn(rate_of_rest * direction))
    z_minus_y, z_minus_y_lo = decay_and_add(z_minus_y, z_minus_y_lo, rest, rest_lo, moved)
    param, param_lo = accumulate(param, param_lo, update)
    return (
        param,
        param_lo,
        exp_avg_sq,
        exp_avg_sq_lo,
        z_minus_y,
        z_minus_y_lo,
        update,
        increment,
    )


def shares(
    lr,
    beta1,
    whole_beta2,
    power_whole_beta2,
    step,
    warmup_steps,
    step_power,
    lr_power,
    splitter,
    lr_max,
    weight_sum,
):
    """1 - b2, c, lr_t (1 - b1 (1 - c)), 1 - c in two components, b1 (1 - c) lr_t; lr_max, the sum.

    lr_t = lr min(t / warmup_steps, 1) sqrt(1 - b2^t); c = w_t / (w_1 + ... + w_t),
    w_t = t^r max(lr_1, ..., lr_t)^weight_lr_power.
    """
    warm = rn(lr * rn(div(step, warmup_steps)))
    now = where(step < warmup_steps, warm, lr)
    now = rn(now * rn(sqrt(rn(ONE - power_whole_beta2))))
    largest = where(now > lr_max, now, lr_max)
    weight = rn(small_power(step, step_power) * small_power(largest, lr_power))
    total = rn(weight_sum + weight)
    share = where(total > ZERO, rn(div(weight, where(total > ZERO, total, ONE))), ZERO)
    rest = rn(ONE - share)
    kept = rn(beta1 * rest)
    high = leading_bits(rest, splitter)
    low = leading_bits(rn(rest - high), splitter)
    return (
        rn(ONE - whole_beta2),
        share,
        rn(now * rn(ONE - kept)),
        high,
        low,
        rn(kept * now),
        largest,
        total,
    )


def small_power(x, exponent):
    """x^0, x^1 or x^2."""
    return where(exponent > ONE, rn(x * x), where(exponent > ZERO, x, rn(x - x) + ONE))
