"""Steps in the backward pass: each parameter is updated as soon as it has its gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mcf.optim.companions import reducers
from mcf.optim.companions.reducers import Companion
from mcf.optim.optimizer import LowPrecisionOptimizer
from mcf.optim.step.run import Steps


class GradientRelease(Companion):
    """Steps each parameter when backward has its gradient, and frees the gradient.

    Gradients then never exist all at once: they need the memory of the largest one. Every update
    has the bits of a step after the backward pass.

        release = GradientRelease(optimizer)
        loss.backward()         # updates the parameters
        optimizer.step()        # finds no gradients and does nothing; so does zero_grad()
        scheduler.step()

    A backward pass is then a step, one for each batch; micro-batches are for `MomentAccumulator`.
    `nonfinite` is applied to each parameter by itself. Hooks of `optimizer.step` run only for its
    own calls. Learning-rate schedulers count a backward pass as a call.

    With `fully_shard` each gradient is reduced over the processes before its parameter is stepped.
    Otherwise a process steps on the gradients of its own backward pass. `DistributedDataParallel`
    leaves nothing to release: its buckets hold all gradients at once, and with
    `gradient_as_bucket_view=True` they are the only copy. So the two cannot be combined, in either
    order.

    Args:
        optimizer: an optimizer of this package; its present parameters take part.

    Raises:
        TypeError: for another optimizer.
        ValueError: with `max_grad_norm`, `track_metrics` or an accumulator, which need all
            gradients at once, if the optimizer is released already, and for parameters that share
            memory.
        RuntimeError: for parameters whose gradients are reduced over processes after the backward
            pass has added them up (by a `DistributedDataParallel`, whose constructor also raises
            while they are released, or flattened by FSDP); from a step under a
            `torch.amp.GradScaler`, whose scale comes too late.
    """

    def __init__(self, optimizer: LowPrecisionOptimizer) -> None:
        super().__init__(optimizer)
        for what, there in (
            ("max_grad_norm", optimizer.max_grad_norm is not None),
            ("track_metrics", optimizer._track_metrics),
            ("an accumulator", optimizer._accumulator is not None),
            ("another GradientRelease", optimizer._released),
        ):
            if there:
                raise ValueError(f"gradient release does not go with {what}")
        reducers.check_apart(optimizer)
        reducers.check(self._params, reducers.RELEASED)
        self._steps = SingleSteps(optimizer)
        self._attend(self._step, f"{reducers.RELEASED}; GradientRelease.remove() ends the release")
        optimizer._released = True

    def remove(self) -> None:
        """Stop stepping in backward passes."""
        self._detach()
        self._optimizer._released = False

    def _step(self, p: Tensor) -> None:
        optimizer = self._optimizer
        if optimizer.max_grad_norm is not None:
            raise ValueError("gradient release does not go with max_grad_norm")
        self._steps.step(p)
        p.grad = None
        # Schedulers read this to warn of a forgotten `step`.
        optimizer._opt_called = True  # type: ignore[attr-defined]


class SingleSteps:
    """Steps of single parameters of an optimizer, for its present parameters."""

    def __init__(self, optimizer: LowPrecisionOptimizer) -> None:
        self._optimizer = optimizer
        # Per parameter: the index of its group, and its name for error messages.
        self._known: dict[Tensor, tuple[int, str]] = {}
        # Per parameter: its group, and the steps whose last one may be repeated.
        self._last: dict[Tensor, tuple[dict[str, Any], Steps]] = {}
        for index in range(len(optimizer.param_groups)):
            for where, p in optimizer._named(index):
                self._known[p] = index, where

    def step(self, p: Tensor) -> None:
        """Step a parameter that has a gradient."""
        optimizer = self._optimizer
        index, where = self._known[p]
        group, marks = optimizer.param_groups[index], optimizer._steps.marks
        before, steps = self._last.get(p, (None, None))
        if before is not group or steps is None or steps.marks is not marks:
            # The first step, or the state was loaded.
            steps = Steps(marks)
            self._last[p] = group, steps
        optimizer._check_capture(index, [(where, p)])
        with torch.no_grad():
            # `step` itself may be replaced by schedulers and wrappers with a bound version.
            optimizer._take(steps, optimizer._request((index, (where, p))))
