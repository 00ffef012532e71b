"""Steps of an optimizer on one parameter at a time, with the bits of a step on all of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mcf.optim.optimizer import LowPrecisionOptimizer
from mcf.optim.step.run import Steps


class SingleSteps:
    """Steps of single parameters of an optimizer, for its present parameters."""

    def __init__(self, optimizer: LowPrecisionOptimizer) -> None:
        self._optimizer = optimizer
        self._group: dict[Tensor, int] = {}
        self._name: dict[Tensor, str] = {}
        # Per parameter: its group, and the steps whose last one may be repeated.
        self._last: dict[Tensor, tuple[dict[str, Any], Steps]] = {}
        for index in range(len(optimizer.param_groups)):
            for where, p in optimizer._named(index):
                self._group[p], self._name[p] = index, where

    @property
    def params(self) -> list[Tensor]:
        """The parameters."""
        return list(self._group)

    def step(self, p: Tensor) -> None:
        """Step a parameter that has a gradient."""
        optimizer = self._optimizer
        index, named = self._group[p], (self._name[p], p)
        group, marks = optimizer.param_groups[index], optimizer._steps.marks
        before, steps = self._last.get(p, (None, None))
        if before is not group or steps is None or steps.marks is not marks:
            # The first step, or the state was loaded.
            steps = Steps(marks)
            self._last[p] = group, steps
        optimizer._check_capture(index, [named])
        with torch.no_grad():
            # `step` itself may be replaced by schedulers and wrappers with a bound version.
            optimizer._take(steps, optimizer._request((index, named)))
