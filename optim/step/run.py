"""A step in two parts: everything that can fail, then all changes.

First everything is prepared: states, scalars, tables, copies. Then each bucket is launched and
counted, while signals wait. So an error or an interrupt finds the step not begun, or done. Between
two launches only the second one's own errors can occur (a device out of memory). The parameters of
the first have then made the step, as their `step` shows, and a step on the same gradients takes the
others alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.kernels import registry
from mcf.optim.rule.metrics import StepMetrics
from mcf.optim.sharding.processes import across
from mcf.optim.step import gradient_scaling, interrupts, rewritten, shared_memory
from mcf.optim.step.bucket import Bucket, Request
from mcf.optim.step.prepared import DirectBucket, Prepared, prepared
from mcf.optim.step.rewritten import Marks, Repair


class Steps:
    """The state that an optimizer's steps leave for later ones.

    Attributes:
        metrics: the metrics of the last step.
        marks: the weights as that step left them.
    """

    def __init__(self, marks: Marks | None = None) -> None:
        """Begin before the first step; `marks` may be shared with the steps of other parameters."""
        self.metrics: StepMetrics | None = None
        self.marks = Marks() if marks is None else marks
        # The buckets of the last step that can be repeated.
        self._repeat: Repeat | None = None
        # For each parameter that is a step ahead of others: that step's gradient and its version.
        self._ahead: dict[Tensor, tuple[Tensor, int]] = {}

    def anew(self) -> Steps:
        """Return new steps for replaced states, with the metrics and the state of the warning."""
        made = Steps()
        made.metrics, made.marks.warned = self.metrics, self.marks.warned
        return made

    def forget(self) -> None:
        """Have the next step checked in full."""
        self.tell()
        self._repeat = None

    def tell(self) -> None:
        """Record in `marks` how the last step left the weights."""
        if self._repeat is not None:
            self._repeat.tell(self.marks)

    def take(self, request: Request) -> None:
        """Take a step; everything is checked before anything is changed."""
        repeat = self._repeat
        holds = repeat is not None and not self._ahead and repeat.holds(request)
        if repeat is not None and not holds:
            # It holds parameters that the model may no longer have.
            self.forget()
            repeat.release()
            repeat = None
        try:
            self._step(request, repeat)
        finally:
            # Also after an error; otherwise gradients would stay alive.
            if repeat is not None:
                repeat.release()

    def _step(self, request: Request, repeat: Repeat | None) -> None:
        """Take the step, with the cached buckets of the last one if `repeat` is given."""
        ready: list[Prepared] = [] if repeat is None else [*repeat.buckets]
        buckets: list[Bucket] = []
        if repeat is None or not repeat.whole:
            buckets = request.collect(repeat.stepped if repeat is not None else ())
        scale: float | Tensor = 1.0
        live: bool | Tensor = True
        if request.gradients is not gradient_scaling.PLAIN:
            scale, live = self._factor(request, [*(each.bucket for each in ready), *buckets])
            if live is False:
                return
        direct = True
        elsewhere = isinstance(scale, Tensor) and repeat is not None and repeat.elsewhere(scale)
        if repeat is not None and (live is not True or elsewhere):
            # If a device decides whether the step is taken, it also counts.
            self.forget()
            buckets = [*(each.bucket for each in repeat.buckets), *buckets]
            repeat, ready, direct = None, [], False
        if self._ahead:
            buckets = self._left(buckets)
        read: set[int] = set()
        if buckets:
            made = [each for b in buckets for each in prepared(b, request, live, direct)]
            ready += made
            read = shared_memory.check([use for each in ready for use in each.uses()])
        for each in ready:
            each.prepare(scale, read)
        repairs = [found for each in ready for found in each.repairs(request, self.marks)]
        if repairs:
            rewritten.tell(self.marks, repairs)
        metrics = None if request.terms is None else StepMetrics(request.terms)
        renew = repeat is None and live is True and direct
        after = (lambda: self._renew(request, ready)) if renew else None
        self._commit(request, ready, metrics, repairs, after)
        if metrics is not None:
            metrics.reduce(request.sharers)

    def _factor(
        self, request: Request, buckets: Sequence[Bucket]
    ) -> tuple[float | Tensor, bool | Tensor]:
        """Return the factor of every gradient, and whether the step is taken."""
        found: list[gradient_scaling.Found] = []
        if request.gradients.looks:
            places = request.places
            found = [
                gradient_scaling.Found(
                    w, gradient_scaling.components(p, request.lows), places[p], across(p)
                )
                for b in buckets
                for w, p in b.named
            ]
        return gradient_scaling.factor(request.gradients, found, request.sharers, request.everyone)

    def _renew(self, request: Request, made: Sequence[Prepared]) -> None:
        """Cache the buckets of a step that can be repeated."""
        found = Repeat(request, made)
        found.release()
        self._repeat = found if found.buckets else None

    def _commit(
        self,
        request: Request,
        ready: Sequence[Prepared],
        metrics: StepMetrics | None,
        repairs: Sequence[Repair],
        after: Callable[[], None] | None,
    ) -> None:
        """Launch the step and call `after`, while signals wait."""
        done = 0
        try:
            with interrupts.Deferred():
                if repairs:
                    rewritten.apply(repairs)
                for each in ready:
                    each.commit(request, self.marks, metrics)
                    done += 1
                self.metrics = metrics
                self._ahead = {}
                if after is not None:
                    after()
        except BaseException as error:
            self._ahead |= ahead(ready[:done])
            if 0 < done < len(ready):
                _explain(error, ready, done)
            raise

    def _left(self, buckets: Iterable[Bucket]) -> list[Bucket]:
        """Return the buckets without parameters that have made the step on the same gradients."""
        rest = []
        for bucket in buckets:
            named = [(where, p) for where, p in bucket.named if not self._is_ahead(p)]
            if named:
                rest.append(bucket.of(named))
        return rest

    def _is_ahead(self, p: Tensor) -> bool:
        grad, version = self._ahead.get(p, (None, 0))
        return grad is not None and p.grad is grad and rewritten.version(grad) == version


def ahead(done: Iterable[Prepared]) -> dict[Tensor, tuple[Tensor, int]]:
    """Return the gradients of parameters that have made the step, and the gradients' versions."""
    params = (p for each in done for p in each.params)
    return {p: (p.grad, rewritten.version(p.grad)) for p in params if p.grad is not None}


def _explain(error: BaseException, ready: Sequence[Prepared], done: int) -> None:
    """Add a note to an error (Python 3.11) that says which parameters have made the step."""
    add: Callable[[str], Any] | None = getattr(error, "add_note", None)
    if add is not None:
        made = sum(len(each.params) for each in ready[:done])
        rest = sum(len(each.params) for each in ready[done:])
        add(
            f"{made} parameters have made this step, as their state 'step' says, and {rest} have "
            "not; step() on the same gradients takes the others alone"
        )


class Repeat:
    """The buckets of a step that the next one may repeat."""

    def __init__(self, request: Request, made: Sequence[Prepared]) -> None:
        """Cache the buckets of a step, after it has created all states."""
        self._executor = registry.get_executor()
        self._groups = [(group, list(group["params"])) for group in request.groups]
        self._track = request.terms is not None
        self._clipped = request.gradients.max_grad_value is not None
        self.buckets = [each for each in made if isinstance(each, DirectBucket)]
        # Whether these buckets hold all parameters with gradients; others differ in layout or type.
        self.whole = len(self.buckets) == len(made)
        live = {id(p) for each in made for p in each.params}
        self._idle = [p for _, params in self._groups for p in params if id(p) not in live]
        self.stepped = {id(p) for b in self.buckets for p in b.params}
        for b in self.buckets:
            b.watch(request)
        self._places = Places(
            [column for b in self.buckets for column in b.stretches()],
            [n for b in self.buckets for n in b.read_bytes()],
        )

    def holds(self, request: Request) -> bool:
        """Return whether a step now equals the cached one; keep what it needs."""
        if (
            registry.get_executor() != self._executor
            or (request.terms is not None) != self._track
            or (request.gradients.max_grad_value is not None) != self._clipped
            or len(request.groups) != len(self._groups)
            or torch._C._len_torch_dispatch_stack()
        ):
            return False
        for group, (before, params) in zip(request.groups, self._groups, strict=True):
            now = group["params"]
            if group is not before or len(now) != len(params) or not all(map(is_, now, params)):
                return False
        for p in self._idle:
            if p.grad is not None:
                return False
        written: list[array[int]] = []
        read: list[array[int]] = []
        try:
            for b in self.buckets:
                if not b.holds(request):
                    return False
                written += b.written()
                read += b.read()
        except (KeyError, AttributeError, TypeError, ValueError):
            # A state is missing or not a tensor, or the full checks will raise an error.
            return False
        return self._places.hold(written, read)

    def elsewhere(self, scale: Tensor) -> bool:
        """Return whether the factor of gradients is on another device than some of them."""
        return any(scale.device != b.params[0].device for b in self.buckets)

    def tell(self, marks: Marks) -> None:
        """Record in `marks` how the last step left the weights."""
        for b in self.buckets:
            b.tell(marks)

    def release(self) -> None:
        """Release the tensors of a step."""
        for b in self.buckets:
            b.release()


class Places:
    """The addresses of a step's dense tensors, which are compared before it is repeated."""

    def __init__(
        self, written: Sequence[Sequence[tuple[int, int]]], lengths: Sequence[int]
    ) -> None:
        """Take addresses and bytes of written tensors, which are disjoint, and gradients' bytes."""
        self._written = [array("Q", [start for start, _ in column]) for column in written]
        every: Iterable[tuple[int, int]] = (s for column in written for s in column)
        some = sorted((start, start + length) for start, length in every if length)
        # Sentinels before and after all stretches, so that each address has neighbours.
        self._starts = np.array([*(s for s, _ in some), 2**64 - 1], dtype=np.uint64)
        self._ends = np.array([0, *(e for _, e in some)], dtype=np.uint64)
        self._lengths = np.array(lengths, dtype=np.uint64)
        self._read: list[array[int]] = []

    def hold(self, written: Sequence[array[int]], read: Sequence[array[int]]) -> bool:
        """Return whether the same memory is written, and none of it read as a gradient."""
        if written != self._written:
            return False
        if read == self._read:
            return True
        starts = np.concatenate(read)
        if ((starts == 0) & (self._lengths != 0)).any():
            # The memory was freed; the full checks report it.
            return False
        after = np.searchsorted(self._starts, starts, side="right")
        apart = (self._ends[after] <= starts) & (starts + self._lengths <= self._starts[after])
        if not (apart | (self._lengths == 0)).all():
            return False
        self._read = list(read)
        return True
