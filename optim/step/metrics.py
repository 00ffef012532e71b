"""Sums that a step's kernels return, as the metrics users read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class StepMetrics:
    """The sums of one step, by parameter group; read from the device only when asked for."""

    def __init__(self, terms: Sequence[int]) -> None:
        """Nothing summed yet; `terms` has the number of terms of each group."""
        self._sums = [[torch.zeros(n, dtype=torch.float64, device="cpu")] for n in terms]
        self._sizes = [0] * len(self._sums)

    def add(self, group: int, sums: Tensor, size: int) -> None:
        """Add a kernel's sums [rows, terms] over `size` elements."""
        self._sums[group].append(sums.sum(0))
        self._sizes[group] += size

    def result(self, flat: bool) -> dict[str, Any]:
        """The metrics over all groups, and of each under `groups`, or `groups/0/...` if flat."""
        per_group = [torch.stack([s.cpu() for s in sums]).sum(0) for sums in self._sums]
        total = torch.stack(per_group).sum(0)
        groups = [_read(s, n) for s, n in zip(per_group, self._sizes, strict=True)]
        found = _read(total, sum(self._sizes))
        if not flat:
            return {**found, "groups": groups}
        return found | {
            f"groups/{k}/{name}": x for k, g in enumerate(groups) for name, x in g.items()
        }


def _read(sums: Tensor, size: int) -> dict[str, float]:
    along, norm_squared, *lost = sums.tolist()
    norm = math.sqrt(norm_squared)
    # The second moment's is there for rules that have one.
    shares = zip(("lost_param", "lost_exp_avg_sq"), lost, strict=False)
    return {
        "edq": along / norm if norm else 0.0,
        "update_norm": norm,
        "edq_ratio": along / norm_squared if norm_squared else math.nan,
        **{name: count / size if size else math.nan for name, count in shares},
    }
