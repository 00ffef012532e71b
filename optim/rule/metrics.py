"""Metrics of a step: effective descent quality and lost additions.

Effective descent quality is Definition 3.3 of the Collage paper (arXiv:2405.03637): the projection
of the update that the stored parameter really made on the intended one. An addition is lost when
the stored number keeps its value although the addend is not zero (Definition 3.2, for the operand
that is stored). Kernels sum the terms that this module defines.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.kernels.algorithms.primitives import ZERO
from mcf.optim.sharding.processes import Across
from mcf.optim.storage.slots import param_moved


def param_terms(param, param_lo, new_param, new_param_lo, out_update):
    """Per element: <effective, intended>, |intended|^2, whether the parameter lost the addition."""
    effective = param_moved(param, param_lo, new_param, new_param_lo)
    lost = (effective == ZERO) & (out_update != ZERO)
    return effective * out_update, out_update * out_update, lost


def adamw_terms(
    param,
    param_lo,
    new_param,
    new_param_lo,
    out_update,
    exp_avg_sq,
    exp_avg_sq_lo,
    new_exp_avg_sq,
    new_exp_avg_sq_lo,
    out_increment,
    one_minus_beta2,
):
    """The terms of the parameter, and whether the second moment lost an addition.

    The second moment v changes by (1 - beta2) (g^2 - v).
    """
    along, norm, lost = param_terms(param, param_lo, new_param, new_param_lo, out_update)
    decay = one_minus_beta2 * (exp_avg_sq + exp_avg_sq_lo)
    unchanged = (new_exp_avg_sq == exp_avg_sq) & (new_exp_avg_sq_lo == exp_avg_sq_lo)
    lost_sq = unchanged & (out_increment != decay)
    return along, norm, lost, lost_sq


class StepMetrics:
    """The sums of one step, by parameter group; read from the device only on request."""

    def __init__(self, terms: Sequence[int]) -> None:
        """Begin with empty sums; `terms` has the number of terms of each group."""
        self._terms = list(terms)
        self._sums = [[torch.zeros(n, dtype=torch.float64, device="cpu")] for n in terms]
        self._sizes = [0] * len(self._sums)
        # Sums over the local parts of tensors, by the processes that have the other parts.
        self._parts: dict[Across, list[Tensor]] = {}

    def add(self, group: int, sums: Tensor, size: int, across: Across | None = None) -> None:
        """Add a kernel's sums [rows, terms] over `size` elements, shared `across` processes."""
        if across is None:
            self._sums[group].append(sums.sum(0))
        else:
            parts = self._parts.setdefault(across, self._nothing())
            parts[group] = parts[group].to(sums.device) + sums.sum(0)
        self._sizes[group] += size

    def _nothing(self) -> list[Tensor]:
        return [torch.zeros(n, dtype=torch.float64, device="cpu") for n in self._terms]

    def reduce(self, sharers: Sequence[Across]) -> None:
        """Add up the sums of all parts; called by all processes, which agree on `sharers`."""
        for across in sharers:
            device = torch.device(across.mesh.device_type)
            parts = [t.to(device) for t in self._parts.pop(across, None) or self._nothing()]
            found = torch.split(across.reduce(torch.cat(parts), "sum"), self._terms)
            for mine, sums in zip(self._sums, found, strict=True):
                mine.append(sums)

    def result(self, flat: bool) -> dict[str, Any]:
        """Return the metrics overall and per group, under `groups` or `groups/0/...` if flat."""
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
    # Only rules with a second moment count its lost additions.
    shares = zip(("lost_param", "lost_exp_avg_sq"), lost, strict=False)
    return {
        "edq": along / norm if norm else 0.0,
        "update_norm": norm,
        "edq_ratio": along / norm_squared if norm_squared else math.nan,
        **{name: count / size if size else math.nan for name, count in shares},
    }
