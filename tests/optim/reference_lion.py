"""Lion as its paper has it (arXiv:2302.06675, algorithm 2), in torch operations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class ReferenceLion(torch.optim.Optimizer):
    """p <- p (1 - lr wd) - lr sign(b1 m + (1 - b1) g); m <- b2 m + (1 - b2) g."""

    def __init__(
        self, params: Any, lr: float, betas: tuple[float, float], weight_decay: float
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                g: Tensor = p.grad
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p *= 1 - group["lr"] * group["weight_decay"]
                p -= group["lr"] * torch.sign(beta1 * m + (1 - beta1) * g)
                self.state[p]["exp_avg"] = beta2 * m + (1 - beta2) * g
