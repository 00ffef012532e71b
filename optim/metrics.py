"""Sums that a step's kernels return, as the metrics users read."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


class StepMetrics:
    """The sums of one step, by parameter group; read from the device only when asked for."""

    def __init__(self, groups: int) -> None:
        """Nothing summed yet, for a number of groups."""
        self._sums: list[list[Tensor]] = [[] for _ in range(groups)]
        self._sizes = [0] * groups

    def add(self, group: int, sums: Tensor, size: int) -> None:
        """Add a kernel's sums [rows, terms] over `size` elements."""
        self._sums[group].append(sums.sum(0))
        self._sizes[group] += size

    def result(self) -> dict[str, Any]:
        """The metrics over all groups, and of each under `groups`."""
        per_group = [
            torch.stack([s.cpu() for s in sums]).sum(0) if sums else None for sums in self._sums
        ]
        present = [s for s in per_group if s is not None]
        total = torch.stack(present).sum(0) if present else None
        return {
            **_read(total, sum(self._sizes)),
            "groups": [_read(s, n) for s, n in zip(per_group, self._sizes, strict=True)],
        }


def _read(sums: Tensor | None, size: int) -> dict[str, float]:
    along, norm_squared, lost, *lost_sq = sums.tolist() if sums is not None else (0.0, 0.0, 0.0)
    norm = math.sqrt(norm_squared)
    values = {
        "edq": along / norm if norm else 0.0,
        "update_norm": norm,
        "edq_ratio": along / norm_squared if norm_squared else math.nan,
        "lost_param": lost / size if size else math.nan,
    }
    if lost_sq:
        values["lost_exp_avg_sq"] = lost_sq[0] / size
    return values
