"""NAdam under every precision strategy."""

from __future__ import annotations

import decimal
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT
from typing_extensions import Unpack

from mcf.optim import validation
from mcf.optim.coefficients import Coefficients
from mcf.optim.moments import MomentOptimizer, two_moments
from mcf.optim.options import Options
from mcf.optim.precision import Precision
from mcf.optim.rules import coefficients as formulas
from mcf.optim.rules.nadam import nadam
from mcf.optim.strategies import Arithmetic
from mcf.optim.update import Rule


def _rule(name: str, *, decoupled: bool) -> Rule:
    return two_moments(
        name,
        nadam,
        ("gradient_weight", "moment_weight", "bias_correction2", "inverse_bias_correction2"),
        decoupled=decoupled,
        numbers=(("mu_product", 1.0),),
        coefficients=(
            Coefficients(formulas.nadam, ("gradient_weight", "moment_weight", "new_mu_product")),
        ),
    )


_L2 = _rule("nadam", decoupled=False)
_DECOUPLED = _rule("nadam_decoupled", decoupled=True)


@functools.cache
def _momentum_base(decay: float) -> tuple[float, float]:
    """.96^momentum_decay as a pair."""
    with decimal.localcontext() as context:
        context.prec = 60
        exact = decimal.Decimal.from_float(0.96) ** decimal.Decimal(decay)
        high = float(exact)
        return high, float(exact - decimal.Decimal(high))


class NAdam(MomentOptimizer):
    r"""NAdam (Dozat 2016), Adam with Nesterov momentum, each tensor stored as a precision says.

    m <- b1 m + (1 - b1) g; v <- b2 v + (1 - b2) g^2; mu_t = b1 (1 - .96^(t momentum_decay) / 2);
    p <- p - lr ((1 - mu_t) g / (1 - mu_1 ... mu_t) + mu_{t+1} m / (1 - mu_1 ... mu_{t+1})) /
    (sqrt(v^) + eps), v^ = v / (1 - b2^t).

    The product of the momenta is the state `mu_product`, as in torch, but in float64.

    Args:
        params: parameters, named parameters or groups, as in torch; dense and floating-point.
        lr: learning rate, a float or a 1-element tensor; may change at every step.
        betas: decay rates of the two moments, in [0, 1).
        eps: added to the denominator.
        weight_decay: L2 penalty, or the rate of decay if decoupled.
        momentum_decay: how fast the momentum grows to b1.
        decoupled_weight_decay: decay the parameter itself, as AdamW does.
        precision: see `mcf.optim.AdamW`.
        compute_dtype: see `mcf.optim.AdamW`.
        maximize: maximize the objective.
        track_metrics: let every step sum what `metrics()` returns.
        options: see `mcf.optim.AdamW`.

    Guarantees and errors are those of `mcf.optim.AdamW`.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 2e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        precision: str | Precision = "plus",
        compute_dtype: torch.dtype = torch.float32,
        maximize: bool = False,
        track_metrics: bool = False,
        **options: Unpack[Options],
    ) -> None:
        """See the class."""
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum_decay": momentum_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "precision": precision,
            "compute_dtype": compute_dtype,
            "maximize": maximize,
        }
        super().__init__(params, defaults, track_metrics=track_metrics, **options)

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        validation.number("momentum_decay value", group["momentum_decay"])

    def _rule(self, group: dict[str, Any]) -> Rule:
        return _DECOUPLED if group["decoupled_weight_decay"] else _L2

    def _given(
        self, group: dict[str, Any], arith: Arithmetic, read: Callable[[Any], Any]
    ) -> dict[str, Any]:
        # A power that is no whole one is the host's.
        base, base_lo = _momentum_base(float(group["momentum_decay"]))
        given = super()._given(group, arith, read)
        return {**given, "momentum_base": base, "momentum_base_lo": base_lo}
