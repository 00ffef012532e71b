"""Repeated steps: what is cached from the last step, and the guards that allow it.

Between two steps of training little changes but the values of tensors and the addresses of
gradients. The prepared buckets of a step are cached, and repeated if guards show that nothing else
has changed since the full checks. Otherwise the step is prepared anew with the full checks, which
also produce the error messages.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from operator import is_

import numpy as np
import torch
from torch import Tensor

from mcf.kernels import registry
from mcf.optim.step.bucket import Request
from mcf.optim.step.direct import DirectBucket
from mcf.optim.step.prepared import Prepared
from mcf.optim.step.rewritten import Marks


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
