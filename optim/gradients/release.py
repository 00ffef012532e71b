"""The step in the backward pass: each parameter is updated as soon as its gradient is there."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

from torch import Tensor
from torch.utils.hooks import RemovableHandle

from mcf.optim.gradients import reducers
from mcf.optim.gradients.single_steps import SingleSteps
from mcf.optim.optimizer import LowPrecisionOptimizer
from mcf.optim.step import shared_memory
from mcf.optim.step.bucket import Named


class GradientRelease:
    """Steps each parameter when backward has its gradient, and frees the gradient.

    Gradients then never exist all at once: a model's gradients cost what the largest one costs.
    Every update has the bits of a step after the backward pass.

        release = GradientRelease(optimizer)
        loss.backward()         # updates the parameters
        optimizer.step()        # finds no gradients and does nothing; so does zero_grad()
        scheduler.step()

    A backward pass is then a step, one for each batch; micro-batches are for `MomentAccumulator`.
    `nonfinite` is applied to each parameter by itself. Hooks of `optimizer.step` see only the calls
    of `optimizer.step`. Learning-rate schedulers count a backward pass as a call of it.

    With `fully_shard` each gradient is reduced over the processes before its parameter is stepped.
    Elsewhere a process steps on the gradients of its own backward pass. Where
    `DistributedDataParallel` averages them there is nothing to release: its buckets hold all
    gradients at once, and with `gradient_as_bucket_view=True` they are the only copy. So the two
    are refused together, whichever is made first.

    Args:
        optimizer: one of this package; its parameters at this time take part.

    Raises:
        TypeError: for another optimizer.
        ValueError: with `max_grad_norm`, `track_metrics` or an accumulator, which need all
            gradients at once, if the optimizer is released already, and for parameters that share
            memory.
        RuntimeError: for parameters whose gradients are reduced over processes after the backward
            pass has added them up (of a `DistributedDataParallel`, which also refuses to be made
            while they are released, or flattened by FSDP); from a step under a
            `torch.amp.GradScaler`, whose scale comes too late.
    """

    def __init__(self, optimizer: LowPrecisionOptimizer) -> None:
        """See the class."""
        if not isinstance(optimizer, LowPrecisionOptimizer):
            raise TypeError(
                f"optimizer is a {type(optimizer).__name__}; allowed are those of mcf.optim"
            )
        for what, there in (
            ("max_grad_norm", optimizer.max_grad_norm is not None),
            ("track_metrics", optimizer._track_metrics),
            ("an accumulator", optimizer._accumulator is not None),
            ("another GradientRelease", optimizer._released),
        ):
            if there:
                raise ValueError(f"gradient release does not go with {what}")
        reducers.check_flat(_named(optimizer))
        reducers.check(list(optimizer._parameters()))
        # One is stepped while another has yet to be read: backward would say in which order.
        shared_memory.check(
            [shared_memory.Use(w, p, True) for w, p in _named(optimizer) if p.requires_grad]
        )
        self._optimizer = optimizer
        self._handles: list[RemovableHandle] = []
        self._steps = SingleSteps(optimizer)
        for p in self._steps.params:
            if p.requires_grad:
                hook = p.register_post_accumulate_grad_hook(self._step)  # type: ignore[no-untyped-call]
                self._handles.append(hook)
        self._handles.append(reducers.refuse(weakref.WeakMethod(self._managed)))
        optimizer._released = True

    def _managed(self) -> list[Tensor]:
        """The parameters that take part."""
        return self._steps.params

    def remove(self) -> None:
        """Step no more in backward passes."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._optimizer._released = False

    def _step(self, p: Tensor) -> None:
        optimizer = self._optimizer
        if optimizer.max_grad_norm is not None:
            raise ValueError("gradient release does not go with max_grad_norm")
        self._steps.step(p)
        p.grad = None
        # What schedulers look at to warn of a `step` that was forgotten.
        optimizer._opt_called = True  # type: ignore[attr-defined]


def _named(optimizer: LowPrecisionOptimizer) -> Iterator[Named]:
    """Its parameters, each after the words that name it."""
    for index in range(len(optimizer.param_groups)):
        yield from optimizer._named(index)
