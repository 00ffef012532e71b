"""What optimizers with Adam's moments check and compute alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from mcf.kernels.bind import Algorithm
from mcf.optim import validation
from mcf.optim.base import beta2_components
from mcf.optim.coefficients import Coefficients
from mcf.optim.optimizer import LowPrecisionOptimizer
from mcf.optim.options import check_tensors
from mcf.optim.rules import coefficients as formulas
from mcf.optim.rules import decay, maximum
from mcf.optim.rules.adamw import adamw
from mcf.optim.rules.feedback import adam_feed_back
from mcf.optim.rules.metrics import adamw_terms
from mcf.optim.strategies import Arithmetic
from mcf.optim.update import Rule

# What every rule with Adam's moments computes.
CORRECTIONS = Coefficients(
    formulas.adam,
    (
        "one_minus_beta1", "one_minus_beta2",
        "bias_correction1", "inverse_bias_correction1",
        "bias_correction2", "inverse_bias_correction2",
    ),
)  # fmt: skip
_FEEDBACK = Coefficients(formulas.adam_feedback, ("feedback",))


def two_moments(
    name: str,
    function: Algorithm,
    scalars: tuple[str, ...],
    *,
    decoupled: bool,
    results: tuple[str, ...] = (),
    coefficients: tuple[Coefficients, ...] = (),
    **fields: Any,
) -> Rule:
    """A rule with `exp_avg` and `exp_avg_sq` and with weight decay, decoupled or in the gradient.

    Args:
        name: see `Rule`.
        function: see `Rule`; it returns param, param_lo, exp_avg, exp_avg_sq, exp_avg_sq_lo, then
            `results`, then the update and the increment of exp_avg_sq.
        scalars: its scalars besides those that every such rule has.
        decoupled: where the weight decay enters.
        results: see `function`.
        coefficients: besides those that every such rule has.
        fields: further fields of `Rule`; `slots` in addition to those of the weight decay.
    """
    return Rule(
        name=name,
        function=function,
        scalars=(
            "grad_scale", "lr", "beta1", "one_minus_beta1", "beta2", "beta2_lo", "one_minus_beta2",
            *scalars, "eps", "weight_decay",
        ),
        results=(
            "param", "param_lo", "exp_avg", "exp_avg_sq", "exp_avg_sq_lo", *results,
            "update", "increment",
        ),
        metrics=adamw_terms,
        metric_count=4,
        first="exp_avg",
        second="exp_avg_sq",
        coefficients=(CORRECTIONS, *coefficients),
        slots=(*(decay.DECOUPLED if decoupled else decay.L2), *fields.pop("slots", ())),
        **fields,
    )  # fmt: skip


def adam_rule(name: str, *, decoupled: bool, amsgrad: bool) -> Rule:
    """Adam, AdamW, and either with the largest second moment so far as denominator."""
    maxima = ("max_exp_avg_sq", "max_exp_avg_sq_lo")
    return two_moments(
        name,
        adamw,
        (
            "bias_correction1", "inverse_bias_correction1",
            "bias_correction2", "inverse_bias_correction2",
        ),
        decoupled=decoupled,
        results=(*maxima, "divisor"),
        maximum="max_exp_avg_sq" if amsgrad else None,
        absent=() if amsgrad else maxima,
        # torch keeps the maximum of a group whose amsgrad is turned off.
        unused=() if amsgrad else maxima,
        feed_back=adam_feed_back,
        feedback=_FEEDBACK,
        slots=(("denominator", maximum.largest if amsgrad else maximum.current),),
    )  # fmt: skip


class MomentOptimizer(LowPrecisionOptimizer):
    """An optimizer with `lr`, `betas`, `eps` and `weight_decay`."""

    def _check_group(self, group: dict[str, Any]) -> None:
        validation.number("learning rate", group["lr"])
        check_tensors(group, "lr", group["lr"])
        validation.betas(group["betas"])
        for k, beta in enumerate(group["betas"]):
            check_tensors(group, f"betas[{k}]", beta)
        validation.number("epsilon value", group["eps"])
        validation.number("weight_decay value", group["weight_decay"])
        for name in ("amsgrad", "decoupled_weight_decay"):
            validation.flag(name, group.get(name, False))

    def _check_arithmetic(self, group: dict[str, Any], arith: Arithmetic, where: str) -> None:
        # What a captured graph reads is not looked at.
        looked = not (group["capturable"] and isinstance(group["betas"][0], Tensor))
        if arith.strategy.feedback and looked and group["betas"][0] == 0:
            raise ValueError(
                f"Invalid beta parameter at index 0: 0 with precision={group['precision']!r} of "
                f"{where}, which keeps rounding errors in the first moment; allowed is more than 0"
            )
        # Half the smallest number is the largest that rounds to 0.
        smallest = float(arith.format.min_subnormal) / 2
        if 0 < group["eps"] <= smallest:
            raise ValueError(
                f"Invalid epsilon value: {group['eps']} is 0 in {arith.format.name} arithmetic "
                f"(compute_dtype of {where}); allowed is more than {smallest:.3g}, or 0"
            )

    def _given(
        self, group: dict[str, Any], arith: Arithmetic, read: Callable[[Any], Any]
    ) -> dict[str, Any]:
        beta1, beta2 = (read(b) for b in group["betas"])
        high, low = beta2_components(beta2, arith)
        return {
            "grad_scale": -1.0 if group["maximize"] else 1.0,
            "lr": read(group["lr"]),
            "beta1": beta1,
            "beta2": high,
            "beta2_lo": low,
            # Not split into components.
            "whole_beta2": beta2,
            "eps": read(group["eps"]),
            "weight_decay": read(group["weight_decay"]),
        }
