"""Adam under every precision strategy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT
from typing_extensions import Unpack

from mcf.optim.moment_optimizer import MomentOptimizer
from mcf.optim.options import Options
from mcf.optim.precision import Precision
from mcf.optim.rule.rule import Rule
from mcf.optim.rules import adamw
from mcf.optim.storage.strategies import STRATEGIES, PrecisionName

_RULE = adamw.adam_rule("adam", decoupled=False, amsgrad=False)
_AMSGRAD = adamw.adam_rule("adam_amsgrad", decoupled=False, amsgrad=True)


class Adam(MomentOptimizer):
    r"""Adam (arXiv:1412.6980) with an L2 penalty and a storage precision for each tensor.

    g <- g + weight_decay p; m <- b1 m + (1 - b1) g; v <- b2 v + (1 - b2) g^2;
    p <- p - lr m^ / (sqrt(v^) + eps), m^ = m / (1 - b1^t), v^ = v / (1 - b2^t).

    The penalty goes through both moments; `mcf.optim.AdamW` decays the parameter itself.

    Args:
        params: parameters, named parameters or groups, as in torch; dense and floating-point.
        lr: learning rate, a float or a 1-element tensor; may change at every step.
        betas: decay rates of the two moments, in [0, 1).
        eps: added to the denominator.
        weight_decay: L2 penalty.
        amsgrad: divide by the largest v so far (arXiv:1904.09237), stored as v is.
        decoupled_weight_decay: decay the parameter itself; then this is AdamW, bit for bit.
        precision: see `mcf.optim.AdamW`.
        compute_dtype: see `mcf.optim.AdamW`.
        maximize: maximize the objective.
        track_metrics: sum in every step what `metrics()` returns.
        options: see `mcf.optim.AdamW`.

    Guarantees and errors are those of `mcf.optim.AdamW`.
    """

    precisions = tuple(STRATEGIES)

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        precision: PrecisionName | Precision = "plus",
        compute_dtype: torch.dtype = torch.float32,
        maximize: bool = False,
        decoupled_weight_decay: bool = False,
        track_metrics: bool = False,
        **options: Unpack[Options],
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "decoupled_weight_decay": decoupled_weight_decay,
            "precision": precision,
            "compute_dtype": compute_dtype,
            "maximize": maximize,
        }
        super().__init__(params, defaults, track_metrics=track_metrics, **options)

    def _rule(self, group: dict[str, Any]) -> Rule:
        if group["decoupled_weight_decay"]:
            return adamw.rule(group["amsgrad"])
        return _AMSGRAD if group["amsgrad"] else _RULE
