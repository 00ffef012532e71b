"""StableAdamW, AdamW with update clipping (Wortsman et al. 2023, arXiv:2304.13013)."""

from __future__ import annotations

import dataclasses
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
from mcf.optim.rules.update_clipping import Clipped
from mcf.optim.storage.strategies import WITHOUT_FEEDBACK, PrecisionName

_RULE = dataclasses.replace(
    adamw.adam_rule("stable_adamw", decoupled=True, amsgrad=False),
    launcher=Clipped,
    feed_back=None,
    feedback=None,
)


class StableAdamW(MomentOptimizer):
    r"""StableAdamW (arXiv:2304.13013), each tensor stored as a precision says.

    AdamW whose rate is lr / max(1, RMS) for each tensor, RMS^2 = mean(g^2 / max(v^, eps^2)):
    Adafactor's update clipping (arXiv:1804.04235) in the place of a clipped gradient norm.

    Names and defaults are those of optimi's, whose clipped rate also multiplies the weight decay.

    A step is two kernels with an exact sum between them: RMS has the same bits for any order,
    layout and sharding. Relative error of RMS at most 2^-23 in float32 registers.

    Args:
        params: parameters, named parameters or groups, as in torch; dense and floating-point.
        lr: learning rate, a float or a 1-element tensor; may change at every step.
        betas: decay rates of the two moments, in [0, 1).
        eps: added to the denominator, and the least that sqrt(v^) is in RMS.
        weight_decay: decoupled weight decay.
        precision: any of `mcf.optim.AdamW` but those of ECO.
        compute_dtype: see `mcf.optim.AdamW`.
        maximize: maximize the objective.
        track_metrics: let every step sum what `metrics()` returns.
        options: see `mcf.optim.AdamW`.

    Guarantees and errors are those of `mcf.optim.AdamW`, but that an infinity in a gradient makes
    the RMS of its tensor NaN, which clips nothing.
    """

    precisions = WITHOUT_FEEDBACK

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.99),
        eps: float = 1e-6,
        weight_decay: float = 1e-2,
        *,
        precision: PrecisionName | Precision = "plus",
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
