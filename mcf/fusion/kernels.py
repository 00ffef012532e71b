"""A recorded stage as a kernel, and its launches."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.fusion.program import TooLongError
from mcf.fusion.recording import WIDEST, Input, Recorded, offsets, record
from mcf.fusion.stages import Stage
from mcf.kernels import registry
from mcf.kernels.formats import Format

log = logging.getLogger("mcf.fusion")
_serial = itertools.count()

Run = Callable[[Sequence[Any]], list[Tensor]]


def kernel_of(stage: Stage, given: Sequence[Any], fmt: Format) -> Run | None:
    """What computes a stage on operands of such shapes and layouts in one launch.

    None where no kernel does; the log says why.
    """
    name = f"stage{next(_serial)}"
    tensors = [x for x in given if isinstance(x, Tensor)]
    devices = {x.device for x in tensors}
    if len(devices) != 1 or registry.executor_for(tensors[0].device) == "torch":
        log.debug("%s: no kernel on %s", name, devices)
        return None
    if any(not x.numel() for x in tensors):
        log.debug("%s: an operand has no elements", name)
        return None
    try:
        return Kernel(record(stage, given, fmt, name), given, fmt)
    except TooLongError as error:
        log.debug("no kernel for %s", error)
        return None


class Kernel:
    """The launch of a recorded stage.

    Args:
        recorded: the stage.
        given: operands like those of every call.
        fmt: their format.
    """

    def __init__(self, recorded: Recorded, given: Sequence[Any], fmt: Format) -> None:
        self.systems, self._outputs = recorded.systems, recorded.outputs
        self._tensors = [k for k, x in enumerate(given) if isinstance(x, Tensor)]
        tensors = [given[k] for k in self._tensors]
        self._dtype, self._device = fmt.dtype, tensors[0].device
        self._size = tensors[0].element_size()
        own = [c for x in recorded.inputs if self._own(x) for c in x.codes]
        shared = [c for x in recorded.inputs if not self._own(x) for c in x.codes]
        out = [c for codes, _, _ in recorded.outputs for c in codes]
        if len(own) + len(shared) + len(out) > WIDEST:
            raise TooLongError(f"{len(own) + len(shared)} numbers to read, {len(out)} to write")
        self.spec, constants = recorded.program.kernel("graph", own, shared, out)
        self._constants = torch.tensor(constants, dtype=self._dtype, device=self._device)
        self._inputs = [
            (_Places(x, found), self._own(found))
            for x, found in zip(tensors, recorded.inputs, strict=True)
        ]
        like = torch.empty(self.systems, dtype=self._dtype, device=self._device)
        launch = registry.prepare(self.spec, [[like] * len(self.spec.fields)])
        assert launch is not None
        self._launch = launch.row(np.ones((1, 0)))
        self._behind = [self._constants.data_ptr() + k * self._size for k in range(len(constants))]

    def _own(self, x: Input) -> bool:
        return x.systems == self.systems

    def __call__(self, given: Sequence[Any]) -> list[Tensor]:
        """The outputs, new contiguous tensors."""
        own: list[int] = []
        shared: list[int] = []
        # Copies live until the kernel has read them.
        keep = []
        for k, (places, is_own) in zip(self._tensors, self._inputs, strict=True):
            keep.append(places.addresses(given[k], own if is_own else shared))
        out, addresses = [], []
        step = self._size * self.systems
        for codes, shape, _ in self._outputs:
            wanted = shape if self.systems == 1 else (len(codes), self.systems)
            room = torch.empty(wanted, dtype=self._dtype, device=self._device)
            place = room.data_ptr()
            addresses += [place + step * j for j in range(len(codes))]
            out.append(room)
        self._launch([*addresses, *own, *shared, *self._behind])
        if self.systems == 1:
            return out
        placed = zip(out, self._outputs, strict=True)
        return [self._in_place(x, shape, own) for x, (_, shape, own) in placed]

    def _in_place(self, x: Tensor, shape: torch.Size, own: Tensor | None) -> Tensor:
        """Numbers [count, systems] as a result."""
        if own is None:
            return x.t().contiguous().view(shape)
        found = torch.empty(shape, dtype=self._dtype, device=self._device)
        found.view(-1)[own.to(self._device)] = x.t()
        return found


class _Places:
    """Where the numbers of an operand are."""

    def __init__(self, like: Tensor, found: Input) -> None:
        self.systems, self._core = found.systems, found.core
        self._count = len(found.codes)
        self._expanded = found.core != like.shape
        size = like.element_size()
        if self.systems > 1:
            self._offsets = [size * self.systems * j for j in range(self._count)]
            return
        self._offsets = [size * k for k in offsets(found.core, like.stride())]

    def addresses(self, x: Tensor, to: list[int]) -> Tensor:
        """Add the addresses of an operand; what has to live until they are read."""
        if self.systems > 1:
            if self._expanded:
                x = x.as_strided(self._core, x.stride())
            x = x.reshape(self.systems, self._count).t().contiguous()
        place = x.data_ptr()
        to += [place + offset for offset in self._offsets]
        return x
