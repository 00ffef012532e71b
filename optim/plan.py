"""A step that is like the one before: what need not be found out again, and what is checked again.

Between two steps of training little changes but the values of tensors and the addresses of
gradients. A plan keeps the rest: kernels, the work list, the addresses of parameters and states.
`holds` compares all that could have changed with what was checked in full; where anything differs
the step takes the general path, which also finds the words for what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import is_
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mcf.kernels import registry
from mcf.kernels.tables import as_tensor
from mcf.optim.batch import Batch, Named, Work, regular
from mcf.optim.memory import Places, Use

if TYPE_CHECKING:
    from mcf.optim.metrics import StepMetrics
    from mcf.optim.rewritten import Repair
    from mcf.optim.step import FusedOptimizer


class Repeated:
    """A batch that is stepped as the last time, before it is launched."""

    def __init__(self, batch: Batch, run: Callable[[], Any]) -> None:
        """`run` launches and counts."""
        self.params: Sequence[Tensor] = batch.params
        self._batch, self._run = batch, run

    def uses(self) -> Iterator[Use]:
        """The tensors that are written."""
        return self._batch.uses()

    def commit(self, metrics: StepMetrics | None) -> None:
        """See `mcf.optim.commit.Ready`."""
        sums = self._run()
        if metrics is not None:
            metrics.add(self._batch.work[0], as_tensor(sums), self._batch.size)


class Plan:
    """The repeatable part of a step; see the module."""

    def __init__(self, optimizer: FusedOptimizer, work: Sequence[Work]) -> None:
        """Made after a step on `work`, when all states are there."""
        self._executor = registry.get_executor()
        self._groups = [(group, list(group["params"])) for group in optimizer.param_groups]
        self._track = optimizer._track_metrics
        self._clipped = optimizer.max_grad_value is not None
        live = {id(p) for *_, found in work for _, p in found}
        self._idle = [p for _, params in self._groups for p in params if id(p) not in live]
        self._batches = []
        # Whether it steps all that has gradients: else layouts differ, or types are others.
        self.whole = True
        for each in work:
            if optimizer._counted_by_device(each):
                self.whole = False
                continue
            random = each[3].strategy.stochastic
            rows = {
                p: row
                for _, p in each[-1]
                if (row := regular(optimizer, each, p, random)) is not None
            }
            mine = (*each[:-1], [(where, p) for where, p in each[-1] if p in rows])
            launch = optimizer._prepare(mine, list(rows.values())) if rows else None
            self.whole &= launch is not None and len(rows) == len(each[-1])
            if launch is not None:
                self._batches.append(Batch(optimizer, mine, launch))
        written = [column for b in self._batches for column in b.stretches]
        self._places = Places(written, [n for b in self._batches for n in b.read_bytes])
        self.stepped = {id(p) for b in self._batches for p in b.params}

    @property
    def useful(self) -> bool:
        """Whether any of the step was prepared."""
        return bool(self._batches)

    def holds(self, optimizer: FusedOptimizer) -> bool:
        """Whether a step now is as the one that the plan was made from; keeps what `run` needs."""
        if (
            registry.get_executor() != self._executor
            or optimizer._track_metrics != self._track
            or (optimizer.max_grad_value is not None) != self._clipped
            or len(optimizer.param_groups) != len(self._groups)
            or torch._C._len_torch_dispatch_stack()
        ):
            return False
        for group, (before, params) in zip(optimizer.param_groups, self._groups, strict=True):
            now = group["params"]
            if group is not before or len(now) != len(params) or not all(map(is_, now, params)):
                return False
        if any(p.grad is not None for p in self._idle):
            return False
        try:
            return all(b.holds(optimizer) for b in self._batches) and self._places.hold(
                [column for b in self._batches for column in b.written()],
                [column for b in self._batches for column in b.read()],
            )
        except (KeyError, AttributeError, TypeError, ValueError):
            # A state that is not there or not a tensor, or an error that the general path raises.
            return False

    def live(self) -> list[Named]:
        """The parameters that `run` steps, with the words that name them."""
        return [pair for b in self._batches for pair in b.work[-1]]

    def work(self) -> list[Work]:
        """What `run` steps, as the full checks would return it."""
        return [b.work for b in self._batches]

    def prepare(
        self, optimizer: FusedOptimizer, scale: float | Tensor
    ) -> tuple[list[Repeated], list[Work]]:
        """All that can fail of the step, after `holds`; nothing is changed.

        Args:
            optimizer: the optimizer.
            scale: what multiplies every gradient.

        Returns:
            What is ready, and what is not, because the scale is on another device.
        """
        ready, undone = [], []
        for b in self._batches:
            if isinstance(scale, Tensor) and scale.device != b.params[0].device:
                undone.append(b.work)
            else:
                ready.append(Repeated(b, b.prepare(optimizer, scale)))
        return ready, undone

    def repairs(self, optimizer: FusedOptimizer) -> list[tuple[str, list[Repair]]]:
        """What has to be written beside weights that others wrote, after `holds`."""
        return [found for b in self._batches for found in b.repairs(optimizer)]

    def tell(self, optimizer: FusedOptimizer) -> None:
        """Say which weights the last step left, before the plan is given up."""
        for b in self._batches:
            b.tell(optimizer)

    def release(self) -> None:
        """Let go of what `holds` kept for `run`."""
        for b in self._batches:
            b.release()
