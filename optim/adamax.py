"""Adamax under every precision strategy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT
from typing_extensions import Unpack

from mcf.optim.moments import CORRECTIONS, MomentOptimizer
from mcf.optim.options import Options
from mcf.optim.precision import Precision
from mcf.optim.rules.adamax import adamax
from mcf.optim.rules.metrics import param_terms
from mcf.optim.update import Rule

_RULE = Rule(
    name="adamax",
    function=adamax,
    scalars=(
        "grad_scale", "lr", "beta1", "one_minus_beta1", "beta2", "beta2_lo",
        "bias_correction1", "inverse_bias_correction1", "eps", "weight_decay",
    ),
    results=("param", "param_lo", "exp_avg", "exp_inf", "exp_inf_lo", "update"),
    metrics=param_terms,
    metric_count=3,
    first="exp_avg",
    second="exp_inf",
    coefficients=(CORRECTIONS,),
)  # fmt: skip


class Adamax(MomentOptimizer):
    r"""Adamax (arXiv:1412.6980), each tensor stored as a precision says.

    g <- g + weight_decay p; m <- b1 m + (1 - b1) g; n <- max(b2 n, |g| + eps);
    p <- p - lr m / ((1 - b1^t) n).

    The norm n, `exp_inf`, is stored as a second moment is: under `"plus"` as an expansion. One bf16
    number would keep its largest value for ever, because .999 n rounds to n.

    Args:
        params: parameters, named parameters or groups, as in torch; dense and floating-point.
        lr: learning rate, a float or a 1-element tensor; may change at every step.
        betas: decay rates of the moment and of the norm, in [0, 1).
        eps: added to |g|.
        weight_decay: L2 penalty.
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
            "precision": precision,
            "compute_dtype": compute_dtype,
            "maximize": maximize,
        }
        super().__init__(params, defaults, track_metrics=track_metrics, **options)

    def _rule(self, group: dict[str, Any]) -> Rule:
        return _RULE
