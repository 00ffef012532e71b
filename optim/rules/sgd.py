"""Stochastic gradient descent with momentum, Nesterov momentum and weight decay, as in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.optim.optimizer import ParamsT
from typing_extensions import Unpack

from mcf.kernels.algorithms.primitives import ONE, neg, rn, where
from mcf.optim.optimizer import LowPrecisionOptimizer
from mcf.optim.options import Options, hyperparameters
from mcf.optim.rule.formulas import decay_and_gradient, feedback_factor, momentum_feed_back
from mcf.optim.rule.rule import FIRST, Coefficients, Rule
from mcf.optim.storage.slots import accumulate, decayed, direction
from mcf.optim.storage.strategies import Arithmetic


def sgd(weight, grads, momentum_buffer, lr, momentum, one_minus_dampening, weight_decay):
    """Compute one step: the new state and the update of the parameter.

    g <- g + weight_decay p;  b <- momentum b + (1 - dampening) g;  p <- p - lr d, with d = b, or g
    + momentum b (Nesterov), or g (no momentum). Decoupled weight decay adds weight_decay p to d
    instead of to g.
    """
    decay, gradient = decay_and_gradient(weight, grads, weight_decay)
    momentum_buffer = rn(rn(momentum * momentum_buffer) + rn(one_minus_dampening * gradient))
    update = neg(rn(lr * decayed(direction(gradient, momentum_buffer, momentum), decay)))
    param, param_lo = accumulate(weight[0], weight[1], update)
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


def dampened(dampening, step):
    """1 - dampening; 1 in the first step, when the buffer is the whole gradient, as in torch."""
    return (where(step == ONE, ONE, rn(ONE - dampening)),)


def momentum_feedback(momentum, lr):
    """(1 - 1/momentum) / lr, the factor of `formulas.momentum_feed_back`."""
    return (feedback_factor(momentum, lr),)


_DIRECTIONS = {
    "sgd": plain_direction,
    "sgd_momentum": momentum_direction,
    "sgd_nesterov": nesterov_direction,
}


def _rule(name: str, decoupled: bool) -> Rule:
    """Return the rule with one of the directions, and weight decay of either form."""
    direction = _DIRECTIONS[name]
    buffer = direction is not plain_direction
    return Rule(
        name=f"{name}_decoupled" if decoupled else name,
        function=sgd,
        results=("param", "param_lo", "momentum_buffer", "update"),
        states=(("momentum_buffer", FIRST),) if buffer else (),
        # A schedule may set the momentum to 0 and back; torch keeps the buffer, too.
        absent=() if buffer else ("momentum_buffer",),
        decoupled=decoupled,
        slots=(("direction", direction),),
        coefficients=(Coefficients(dampened, ("one_minus_dampening",)),),
        feedback=Coefficients(momentum_feedback, ("feedback",)),
        feed_back=momentum_feed_back if direction is momentum_direction else None,
    )


_RULES = {(name, d): _rule(name, d) for name in _DIRECTIONS for d in (False, True)}


class SGD(LowPrecisionOptimizer):
    """Stochastic gradient descent as in torch, with a storage precision for each tensor.

    g <- g + weight_decay p; b <- momentum b + (1 - dampening) g (b = g in the first step);
    p <- p - lr d with d = g without momentum, b with it, g + momentum b with Nesterov's.

    Args:
        momentum: momentum factor; 0 stores no buffer.
        dampening: dampening of the momentum.
        weight_decay: L2 penalty, or the rate of decay if decoupled.
        nesterov: Nesterov momentum; needs a momentum and no dampening.
        precision: `"plain"`, `"kahan"`, `"light"`, `"split16"`, `"split16_sr"`, `"split8"`,
            `"split8_sr"`, `"stochastic"`, `"bf16_sr"`, `"8bit"` (a momentum in 8 bits, 3 of them
            precision, from 2**-28 to 14), `"eco"`, `"eco_stochastic"` or `"master"`; see
            `mcf.optim.AdamW`. ECO's keep rounding errors in the momentum buffer: they need a
            momentum without Nesterov.
        decoupled_weight_decay: decay the parameter itself, p <- p - lr (d + weight_decay p): SGDW
            (Loshchilov and Hutter 2019, arXiv:1711.05101).

    Guarantees and errors are those of `mcf.optim.AdamW`.
    """

    precisions = (
        "plain", "kahan", "light", "split16", "split16_sr", "split8", "split8_sr", "stochastic",
        "bf16_sr", "8bit",
        "eco", "eco_stochastic", "master",
    )  # fmt: skip
    later = ("decoupled_weight_decay",)
    rules = _RULES

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        decoupled_weight_decay: bool = False,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, hyperparameters(locals()), **options)

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        if group["nesterov"] and (group["momentum"] == 0 or group["dampening"] != 0):
            raise ValueError(
                "Nesterov momentum requires a momentum and zero dampening, got "
                f"momentum={group['momentum']}, dampening={group['dampening']}"
            )

    def _check_scheduled(self, group: dict[str, Any]) -> None:
        # A schedule may set the momentum to 0 and back.
        nesterov = group["nesterov"] and group["momentum"] != 0
        super()._check_scheduled({**group, "nesterov": nesterov})

    def _check_arithmetic(self, group: dict[str, Any], arith: Arithmetic, where: str) -> None:
        if arith.strategy.feedback and (group["momentum"] == 0 or group["nesterov"]):
            raise ValueError(
                f"precision={group['precision']!r} of {where} keeps rounding errors in the "
                "momentum buffer: it needs a momentum, and not Nesterov's, got "
                f"momentum={group['momentum']}, nesterov={group['nesterov']}"
            )

    def _rule(self, group: dict[str, Any]) -> Rule:
        name = "sgd_nesterov" if group["nesterov"] else "sgd_momentum"
        name = "sgd" if group["momentum"] == 0 else name
        return self.rules[name, group["decoupled_weight_decay"]]

    def _given(
        self, group: dict[str, Any], arith: Arithmetic, read: Callable[[Any], Any]
    ) -> dict[str, Any]:
        return {name: read(group[name]) for name in ("momentum", "dampening")}
