"""AdamW under the names of the Collage paper (arXiv:2405.03637)."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT
from typing_extensions import Unpack

from mcf.optim import validation
from mcf.optim.options import Options
from mcf.optim.rules.adamw import AdamW


class CollageAdamW(AdamW):
    """AdamW of the Collage paper (arXiv:2405.03637): `AdamW` with `precision=mode`.

    Args:
        params: see `AdamW`.
        lr: see `AdamW`.
        betas: see `AdamW`.
        eps: see `AdamW`.
        weight_decay: see `AdamW`.
        amsgrad: see `AdamW`.
        mode: `"light"` (option B of the paper, the parameter as an expansion), `"plus"` (option C,
            the second moment and beta2 too) or `"kahan"`, their special case.
        compute_dtype: see `AdamW`; the parameter's dtype gives the paper's arithmetic.
        maximize: see `AdamW`.
        track_metrics: see `AdamW`.
        options: see `AdamW`.
    """

    precisions = ("light", "plus", "kahan")
    custom = False

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group as torch does; the group may have its own `mode`."""
        if isinstance(param_group, dict) and "mode" in param_group:
            mode = param_group["mode"]
            validation.choice("mode", mode, self.precisions)
            rest = {name: option for name, option in param_group.items() if name != "mode"}
            param_group = {**rest, "precision": mode}
        super().add_param_group(param_group)

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        mode: Literal["light", "plus", "kahan"] = "plus",
        compute_dtype: torch.dtype = torch.float32,
        maximize: bool = False,
        track_metrics: bool = False,
        **options: Unpack[Options],
    ) -> None:
        if "precision" in options:
            raise TypeError(
                f"{type(self).__name__} names its precision mode; use mode='light', 'plus' or "
                "'kahan', or AdamW, whose precision can be any"
            )
        validation.choice("mode", mode, self.precisions)
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            precision=mode,
            compute_dtype=compute_dtype,
            maximize=maximize,
            track_metrics=track_metrics,
            **options,
        )
