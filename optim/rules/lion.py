"""The update of Lion, evolved sign momentum (Chen et al. 2023, arXiv:2302.06675)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.optim.optimizer import ParamsT
from typing_extensions import Unpack

from mcf.kernels.algorithms.primitives import ONE, ZERO, neg, rn, where
from mcf.optim import validation
from mcf.optim.optimizer import LowPrecisionOptimizer
from mcf.optim.options import Options, hyperparameters
from mcf.optim.rule.rule import FIRST, Coefficients, Rule
from mcf.optim.storage.slots import accumulate, param_value, scaled_gradient
from mcf.optim.storage.strategies import WITHOUT_SECOND, Arithmetic


def lion(weight, grads, exp_avg, lr, beta1, one_minus_beta1, beta2, one_minus_beta2, weight_decay):
    """Compute one step: the new state and the update of the parameter.

    p <- p - lr (sign(beta1 m + (1 - beta1) g) + weight_decay p);  m <- beta2 m + (1 - beta2) g.
    """
    decay = rn(weight_decay * param_value(weight[0], weight[1]))
    gradient = scaled_gradient(grads)
    ahead = rn(rn(beta1 * exp_avg) + rn(one_minus_beta1 * gradient))
    update = neg(rn(lr * rn(sign(ahead) + decay)))
    exp_avg = rn(rn(beta2 * exp_avg) + rn(one_minus_beta2 * gradient))
    param, param_lo = accumulate(weight[0], weight[1], update)
    return param, param_lo, exp_avg, update


def sign(x):
    """-1 for x < 0, 1 for x > 0, x for zeros and NaN."""
    return where(x > ZERO, ONE, where(x < ZERO, ZERO - ONE, x))


def complements(beta1, beta2):
    """1 - b1, 1 - b2."""
    return rn(ONE - beta1), rn(ONE - beta2)


_RULES = {(): Rule(
    name="lion",
    function=lion,
    results=("param", "param_lo", "exp_avg", "update"),
    states=(("exp_avg", FIRST),),
    coefficients=(Coefficients(complements, ("one_minus_beta1", "one_minus_beta2")),),
    decoupled=True,
)}  # fmt: skip


class Lion(LowPrecisionOptimizer):
    """Lion (arXiv:2302.06675) with a storage precision for each tensor.

    p <- p - lr (sign(b1 m + (1 - b1) g) + weight_decay p); m <- b2 m + (1 - b2) g.

    torch has no Lion; names and defaults are those of the paper's reference implementation
    (google/automl, lion/lion_pytorch.py). Unlike there, NaN in a gradient reaches the parameter:
    the sign of NaN is NaN.

    Args:
        betas: decay rates in the update and of the moment, in [0, 1).
        precision: any of `mcf.optim.AdamW` except `"plus"`, which equals `"light"` here (no second
            moment), `"4bit"`, `"split16_8bit"`, `"split8_8bit"` and ECO's. The moment of `"8bit"`
            has 3 bits of precision, from 2**-28 to 14, rounded stochastically, which adds 0.4 of
            its own variance at betas[1] = 0.99.

    Guarantees and errors are those of `mcf.optim.AdamW`.
    """

    # Strategies that differ only in the second moment do not apply.
    precisions = WITHOUT_SECOND
    rules = _RULES

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-4,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.99),
        weight_decay: float = 0.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, hyperparameters(locals()), **options)

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        validation.betas(group["betas"])

    def _given(
        self, group: dict[str, Any], arith: Arithmetic, read: Callable[[Any], Any]
    ) -> dict[str, Any]:
        beta1, beta2 = (read(b) for b in group["betas"])
        return {"beta1": beta1, "beta2": beta2}
