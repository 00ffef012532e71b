"""StableAdamW, AdamW with update clipping (Wortsman et al. 2023, arXiv:2304.13013)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT
from typing_extensions import Unpack

from mcf.kernels.algorithms.primitives import ZERO, div, neg, rn, sqrt, where
from mcf.optim.moment_optimizer import MomentOptimizer
from mcf.optim.options import Options, hyperparameters
from mcf.optim.rule.formulas import averaged
from mcf.optim.rule.rule import SECOND, Rule
from mcf.optim.rules import adamw
from mcf.optim.sharding.processes import across
from mcf.optim.step.bucket import Bucket
from mcf.optim.step.kernel import columns, kernel
from mcf.optim.step.launch import Launcher
from mcf.optim.step.norm import total_norm
from mcf.optim.step.opaque_operator import update_
from mcf.optim.step.table import Table
from mcf.optim.storage.slots import scaled_gradient, second_moment_value, unbias
from mcf.optim.storage.strategies import WITHOUT_FEEDBACK


def ratios(grads, second, rates, bias_correction2, eps):
    """|g| / max(sqrt(v^), eps), with v as the following step computes it; 0 for a g of 0."""
    gradient = scaled_gradient(grads)
    _, high, low, _ = averaged(gradient, ZERO, second, rates)
    root = rn(sqrt(unbias(second_moment_value(high, low), bias_correction2)))
    size = where(gradient < ZERO, neg(gradient), gradient)
    quotient = rn(div(size, where(root > eps, root, eps)))
    return (where(size == ZERO, ZERO, quotient),)


RATIOS = Rule(
    name="ratios",
    function=ratios,
    results=("ratio",),
    made=("ratio",),
    states=(("exp_avg_sq", SECOND),),
)


class Clipped(Launcher):
    """A launcher that divides each tensor's rate by max(1, RMS).

    RMS^2 is the mean of the squares of `ratios` over a whole tensor, on all processes that have
    parts of it. The sum is an integer, so that it has the same bits for any order and layout.
    """

    def __init__(self, bucket: Bucket, track_metrics: bool) -> None:
        """Create the kernels of a bucket."""
        super().__init__(bucket, track_metrics)
        rule, arith = bucket.rule, bucket.arithmetic
        self._ratios = kernel(RATIOS, arith, False, bucket.form)
        names = columns(rule, arith, bucket.form)
        *operands, _ = (f.name for f in self._ratios.fields)
        self._columns = [names.index(name) for name in operands]
        self._format = arith.format.dtype

    def direct(self, rows: Sequence[Sequence[Tensor]]) -> None:
        return None

    def opaque(self, rows: Sequence[Sequence[Tensor]], table: Table) -> Callable[[], Tensor]:
        place, step = self.names.index("lr"), super().opaque(rows, table)
        columns = table.values.unbind(1)
        some = torch.stack([columns[self.names.index(n)] for n in self._ratios.scalars], 1)

        def run() -> Tensor:
            factors = self._factors(rows, table, some)
            table.values.select(1, place).mul_(factors.to(table.values.device))
            return step()

        return run

    def _factors(self, rows: Sequence[Sequence[Tensor]], table: Table, some: Tensor) -> Tensor:
        """Return 1 / max(1, RMS) of each row, float64; 1 where it is NaN."""
        made = [torch.empty_like(row[0], dtype=self._format) for row in rows]
        read = [[*(row[k] for k in self._columns), t] for row, t in zip(rows, made, strict=True)]
        update_(self._ratios, read, some, table.live)
        found = []
        for p, ratio in zip(table.params, made, strict=True):
            who = across(p)
            norm = total_norm([(ratio,)], [who], [who] if who is not None else [])
            rms = norm / math.sqrt(max(1, p.numel()))
            found.append(torch.where(rms > 1, 1 / rms, 1.0).to(some.device))
        return torch.stack(found)


_RULES = {
    (): dataclasses.replace(
        adamw.adam_rule("stable_adamw", decoupled=True, amsgrad=False),
        launcher=Clipped,
        feed_back=None,
        feedback=None,
    )
}


class StableAdamW(MomentOptimizer):
    r"""StableAdamW (arXiv:2304.13013) with a storage precision for each tensor.

    AdamW whose rate is lr / max(1, RMS) for each tensor, RMS^2 = mean(g^2 / max(v^, eps^2)):
    Adafactor's update clipping (arXiv:1804.04235) instead of a clipped gradient norm.

    Names and defaults are those of optimi; there, too, the clipped rate multiplies the weight
    decay.

    A step is two kernels with an exact sum between them: RMS has the same bits for any order,
    layout and sharding. The relative error of RMS is at most 2^-23 in float32 registers.

    Args:
        eps: added to the denominator, and a lower bound of sqrt(v^) in RMS.
        precision: any of `mcf.optim.AdamW` except ECO's.

    Guarantees and errors are those of `mcf.optim.AdamW`, except that an infinity in a gradient
    makes the RMS of its tensor NaN, which clips nothing.
    """

    precisions = WITHOUT_FEEDBACK
    rules = _RULES

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.99),
        eps: float = 1e-6,
        weight_decay: float = 1e-2,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, hyperparameters(locals()), **options)
