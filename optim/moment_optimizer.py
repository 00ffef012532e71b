"""Checks and scalars that optimizers with Adam's moments share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mcf.kernels.algorithms.primitives import ONE, ZERO, div, rn, where
from mcf.kernels.bind import Algorithm
from mcf.optim import validation
from mcf.optim.optimizer import LowPrecisionOptimizer
from mcf.optim.options import check_tensors
from mcf.optim.rule.rule import FIRST, SECOND, SLOW, Coefficients, Rule
from mcf.optim.storage.codes import root
from mcf.optim.storage.pair import PAIR
from mcf.optim.storage.strategies import Arithmetic


def corrections(beta1, whole_beta2, power_beta1, power_whole_beta2, strict):
    """1 - b1 and 1 - b2; 1 - b1^t and 1 - b2^t, or their inverses, as the slot `unbias` needs."""
    correction1 = rn(ONE - power_beta1)
    correction2 = rn(ONE - power_whole_beta2)
    return (
        rn(ONE - beta1),
        rn(ONE - whole_beta2),
        where(strict > ZERO, correction1, rn(div(ONE, correction1))),
        where(strict > ZERO, correction2, rn(div(ONE, correction2))),
    )


# The coefficients of every rule with Adam's moments.
CORRECTIONS = Coefficients(
    corrections, ("one_minus_beta1", "one_minus_beta2", "bias_correction1", "bias_correction2")
)


def two_moments(
    name: str,
    function: Algorithm,
    *,
    results: tuple[str, ...] = (),
    states: tuple[tuple[str, str], ...] = (),
    coefficients: tuple[Coefficients, ...] = (),
    slots: tuple[tuple[str, Algorithm], ...] = (),
    **fields: Any,
) -> Rule:
    """Return a rule with `exp_avg`, `exp_avg_sq` and weight decay, decoupled or in the gradient.

    Args:
        name: see `Rule`.
        function: see `Rule`; it returns param, param_lo, exp_avg, exp_avg_sq, exp_avg_sq_lo, then
            `results`, then the update and the increment of exp_avg_sq.
        results: see `function`.
        states: states in addition to the two moments; those stored as the second moment come last.
        coefficients: coefficients in addition to CORRECTIONS.
        slots: slots in addition to `unit`.
        fields: further fields of `Rule`.
    """
    every = (("exp_avg", FIRST), ("exp_avg_sq", SECOND), *states)
    return Rule(
        name=name,
        function=function,
        results=(
            "param", "param_lo", "exp_avg", "exp_avg_sq", "exp_avg_sq_lo", *results,
            "update", "increment",
        ),
        states=tuple(sorted(every, key=lambda state: state[1] in (SECOND, SLOW))),
        coefficients=(CORRECTIONS, *coefficients),
        slots=(("unit", root), *slots),
        **fields,
    )  # fmt: skip


class MomentOptimizer(LowPrecisionOptimizer):
    """An optimizer with `lr`, `betas`, `eps` and `weight_decay`."""

    # The number of decay rates, and the indices of those of the first and the second moment.
    beta_count = 2
    moments = (0, 1)

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        validation.betas(group["betas"], self.beta_count)
        check_tensors(group, "lr", group["lr"])
        for k, beta in enumerate(group["betas"]):
            check_tensors(group, f"betas[{k}]", beta)

    def _check_arithmetic(self, group: dict[str, Any], arith: Arithmetic, where: str) -> None:
        # A value that a captured graph reads cannot be checked here.
        looked = not (group["capturable"] and isinstance(group["betas"][0], Tensor))
        if arith.strategy.feedback and looked and group["betas"][0] == 0:
            raise ValueError(
                f"Invalid beta parameter at index 0: 0 with precision={group['precision']!r} of "
                f"{where}, which keeps rounding errors in the first moment; allowed is more than 0"
            )
        # Half the smallest subnormal number is the largest value that rounds to 0.
        smallest = float(arith.format.min_subnormal) / 2
        if 0 < group["eps"] <= smallest:
            raise ValueError(
                f"Invalid epsilon value: {group['eps']} is 0 in {arith.format.name} arithmetic "
                f"(compute_dtype of {where}); allowed is more than {smallest:.3g}, or 0"
            )

    def _given(
        self, group: dict[str, Any], arith: Arithmetic, read: Callable[[Any], Any]
    ) -> dict[str, Any]:
        first, second = self.moments
        beta2 = read(group["betas"][second])
        # Strict arithmetic needs beta2, and rates like it, in two components.
        paired = arith.strict and arith.strategy.second is PAIR
        high, low = components(beta2, arith) if paired else (beta2, 0.0)
        return {
            "beta1": read(group["betas"][first]),
            "beta2": high,
            "beta2_lo": low,
            # beta2 as one number.
            "whole_beta2": beta2,
            "strict": float(arith.strict),
            # It cuts a float64 to the bits of a component (`ademamix.leading_bits`), or to all.
            "splitter": 2.0 ** (53 - arith.component.p) + 1 if paired else 1.0,
            "eps": read(group["eps"]),
        }


def components(beta: float | Tensor, arith: Arithmetic) -> tuple[Any, Any]:
    """Return a rate in two components; those of a tensor are tensors, whose value is not read."""
    dtype = arith.component.dtype
    home = beta.device if isinstance(beta, Tensor) else "cpu"
    whole = torch.as_tensor(beta, dtype=torch.float64, device=home)
    high = whole.to(dtype).double()
    low = (whole - high).to(dtype).double()
    return (high, low) if isinstance(beta, Tensor) else (high.item(), low.item())
