"""Adam's step in two parts: adding gradients to the moments one by one, and the update.

Zhang et al. 2023, "Adam Accumulation to Reduce Memory Footprints of both Activations and Gradients
for Large-scale DNN Training" (arXiv:2305.19982).
"""

from __future__ import annotations

import dataclasses
import functools

from mcf.kernels.algorithms.primitives import rn
from mcf.optim.rule import formulas
from mcf.optim.rule.rule import Rule
from mcf.optim.rules.adamw import adamw, averaged, descent
from mcf.optim.step.launch import Partial
from mcf.optim.storage.slots import accumulate, denominator, param_value, scaled_gradient


def fold(
    grad,
    grad_lo,
    exp_avg,
    exp_avg_sq,
    exp_avg_sq_lo,
    grad_scale,
    grad_limit,
    kept1,
    one_minus_beta1,
    kept2,
    kept2_lo,
    one_minus_beta2,
):
    """m <- kept1 m + (1 - beta1) g;  v <- kept2 v + (1 - beta2) g^2.

    The kept factor is beta for the first gradient of a step, and 1 for the others.
    """
    gradient = scaled_gradient(grad, grad_lo, grad_scale, grad_limit)
    return averaged(
        gradient,
        exp_avg,
        exp_avg_sq,
        exp_avg_sq_lo,
        kept1,
        one_minus_beta1,
        kept2,
        kept2_lo,
        one_minus_beta2,
    )


def finish(
    param,
    param_lo,
    exp_avg,
    exp_avg_sq,
    exp_avg_sq_lo,
    max_exp_avg_sq,
    max_exp_avg_sq_lo,
    lr,
    bias_correction1,
    inverse_bias_correction1,
    bias_correction2,
    inverse_bias_correction2,
    eps,
    weight_decay,
):
    """w <- max(w, v) (AMSGrad), or v;  p <- p - lr (m^ / (sqrt(w^) + eps) + weight_decay p)."""
    shrunk = rn(weight_decay * param_value(param, param_lo))
    max_exp_avg_sq, max_exp_avg_sq_lo = denominator(
        exp_avg_sq, exp_avg_sq_lo, max_exp_avg_sq, max_exp_avg_sq_lo
    )
    divisor, update = descent(
        shrunk,
        exp_avg,
        max_exp_avg_sq,
        max_exp_avg_sq_lo,
        lr,
        bias_correction1,
        inverse_bias_correction1,
        bias_correction2,
        inverse_bias_correction2,
        eps,
    )
    param, param_lo = accumulate(param, param_lo, update)
    return param, param_lo, max_exp_avg_sq, max_exp_avg_sq_lo, divisor, update


@functools.cache
def parts(rule: Rule) -> tuple[Rule, Rule] | None:
    """Return the rules that add a gradient and that finish the step; None if there are none.

    Both keep the states of the rule, and compute its coefficients.
    """
    if rule.function is not adamw:
        return None
    common = dataclasses.replace(rule, launcher=Partial)
    moments = ("exp_avg", "exp_avg_sq", "exp_avg_sq_lo", "increment")
    taking = dataclasses.replace(
        common, name=f"{rule.name}_fold", function=fold, results=moments, counted=False
    )
    moved = ("param", "param_lo", "max_exp_avg_sq", "max_exp_avg_sq_lo", "divisor", "update")
    return taking, dataclasses.replace(
        common, name=f"{rule.name}_finish", function=finish, results=moved
    )


def is_penalty(rule: Rule) -> bool:
    """Return whether the weight decay is part of the gradient, so that each part would add it."""
    return dict(rule.slots).get("regularized") is formulas.added_decay
