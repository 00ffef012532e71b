"""RAdam under every precision strategy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT
from typing_extensions import Unpack

from mcf.optim.coefficients import Coefficients
from mcf.optim.moments import MomentOptimizer, two_moments
from mcf.optim.options import Options
from mcf.optim.precision import Precision
from mcf.optim.rules import coefficients as formulas
from mcf.optim.rules.radam import radam
from mcf.optim.update import Rule


def _rule(name: str, *, decoupled: bool) -> Rule:
    scalars = ("bias_correction1", "inverse_bias_correction1", "rectification")
    rectified = Coefficients(formulas.radam, ("rectification",))
    return two_moments(name, radam, scalars, decoupled=decoupled, coefficients=(rectified,))


_L2 = _rule("radam", decoupled=False)
_DECOUPLED = _rule("radam_decoupled", decoupled=True)


class RAdam(MomentOptimizer):
    r"""RAdam (arXiv:1908.03265), each tensor stored as a precision says.

    m <- b1 m + (1 - b1) g; v <- b2 v + (1 - b2) g^2; m^ = m / (1 - b1^t);
    p <- p - lr m^ r_t sqrt(1 - b2^t) / (sqrt(v) + eps), or p - lr m^ while the variance of v is not
    tractable; r_t and when that is: `radam` in `mcf.optim.rules.coefficients`.

    Args:
        params: parameters, named parameters or groups, as in torch; dense and floating-point.
        lr: learning rate, a float or a 1-element tensor; may change at every step.
        betas: decay rates of the two moments, in [0, 1).
        eps: added to the denominator.
        weight_decay: L2 penalty, or the rate of decay if decoupled.
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
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
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
            "decoupled_weight_decay": decoupled_weight_decay,
            "precision": precision,
            "compute_dtype": compute_dtype,
            "maximize": maximize,
        }
        super().__init__(params, defaults, track_metrics=track_metrics, **options)

    def _rule(self, group: dict[str, Any]) -> Rule:
        return _DECOUPLED if group["decoupled_weight_decay"] else _L2
