"""Lion under precision strategies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT
from typing_extensions import Unpack

from mcf.optim import validation
from mcf.optim.coefficients import Coefficients
from mcf.optim.optimizer import LowPrecisionOptimizer
from mcf.optim.options import Options
from mcf.optim.precision import Precision
from mcf.optim.rules import coefficients as formulas
from mcf.optim.rules.lion import lion
from mcf.optim.rules.metrics import param_terms
from mcf.optim.strategies import WITHOUT_FEEDBACK, Arithmetic
from mcf.optim.update import Rule

_RULE = Rule(
    name="lion",
    function=lion,
    scalars=(
        "grad_scale", "lr", "beta1", "one_minus_beta1", "beta2", "one_minus_beta2", "weight_decay",
    ),
    results=("param", "param_lo", "exp_avg", "update"),
    metrics=param_terms,
    metric_count=3,
    first="exp_avg",
    coefficients=(Coefficients(formulas.lion, ("one_minus_beta1", "one_minus_beta2")),),
    decoupled=True,
)  # fmt: skip


class Lion(LowPrecisionOptimizer):
    """Lion (arXiv:2302.06675), each tensor stored as a precision says.

    p <- p - lr (sign(b1 m + (1 - b1) g) + weight_decay p); m <- b2 m + (1 - b2) g.

    torch has no Lion; names and defaults are those of the paper's reference implementation
    (google/automl, lion/lion_pytorch.py). Unlike there, NaN in a gradient reaches the parameter:
    the sign of NaN is NaN.

    Args:
        params: parameters, named parameters or groups, as in torch; dense and floating-point.
        lr: learning rate, a float or a 1-element tensor; may change at every step.
        betas: of the update and of the moment, in [0, 1).
        weight_decay: decoupled weight decay.
        precision: any of `mcf.optim.AdamW` but `"plus"`, which is `"light"` here (no second
            moment), and those of ECO.
        compute_dtype: see `mcf.optim.AdamW`.
        maximize: maximize the objective.
        track_metrics: let every step sum what `metrics()` returns.
        options: see `mcf.optim.AdamW`.

    Guarantees and errors are those of `mcf.optim.AdamW`.
    """

    # What another strategy does with a second moment is not there to be done.
    precisions = tuple(name for name in WITHOUT_FEEDBACK if name != "plus")

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-4,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        precision: str | Precision = "light",
        compute_dtype: torch.dtype = torch.float32,
        maximize: bool = False,
        track_metrics: bool = False,
        **options: Unpack[Options],
    ) -> None:
        """See the class."""
        defaults = {
            "lr": lr,
            "betas": betas,
            "weight_decay": weight_decay,
            "precision": precision,
            "compute_dtype": compute_dtype,
            "maximize": maximize,
        }
        super().__init__(params, defaults, track_metrics=track_metrics, **options)

    def _check_group(self, group: dict[str, Any]) -> None:
        validation.number("learning rate", group["lr"])
        validation.betas(group["betas"])
        validation.number("weight_decay value", group["weight_decay"])

    def _rule(self, group: dict[str, Any]) -> Rule:
        return _RULE

    def _given(
        self, group: dict[str, Any], arith: Arithmetic, read: Callable[[Any], Any]
    ) -> dict[str, Any]:
        beta1, beta2 = (read(b) for b in group["betas"])
        return {
            "grad_scale": -1.0 if group["maximize"] else 1.0,
            "lr": read(group["lr"]),
            "beta1": beta1,
            "beta2": beta2,
            "weight_decay": read(group["weight_decay"]),
        }
