"""The kernel of a recorded stage, and its launches."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.elementary.tables import table
from mcf.fusion.fused_program import TooLongError
from mcf.fusion.stage_recording import WIDEST, Input, Recorded, offsets, record
from mcf.fusion.stages import Stage
from mcf.kernels import registry
from mcf.kernels.formats import Format

log = logging.getLogger("mcf.fusion")
_serial = itertools.count()

_empty_like = torch.empty_like

Run = Callable[[Sequence[Any]], list[Tensor] | None]


def longest_on(given: Sequence[Any]) -> int:
    """Return how many operations a kernel on some operands may have; 0 if there are no kernels."""
    devices = {x.device for x in given if isinstance(x, Tensor)}
    return registry.on(*devices).longest if len(devices) == 1 else 0


def kernel_of(stage: Stage, given: Sequence[Any], fmt: Format) -> Run | None:
    """Return a function that computes a stage in one launch, for operands of these signatures.

    Return None if there is no such kernel; the log says why.
    """
    name = f"stage{next(_serial)}"
    longest = longest_on(given)
    if not longest:
        log.debug("no kernel for %s: its executor has none, or there are several devices", name)
        return None
    tensors = [x for x in given if isinstance(x, Tensor)]
    if any(x.is_neg() or x._is_zerotensor() for x in tensors):
        log.debug("no kernel for %s: an operand's memory has other numbers than the operand", name)
        return None
    if any(not x.numel() for x in tensors):
        log.debug("no kernel for %s: an operand has no elements", name)
        return None
    try:
        return Kernel(record(stage, given, fmt, longest, name), given, fmt)
    except TooLongError as error:
        log.debug("no kernel for %s", error)
        return None


class Kernel:
    """The launch of a recorded stage.

    Args:
        recorded: the stage.
        given: example operands.
        fmt: the format of the operands.
    """

    def __init__(self, recorded: Recorded, given: Sequence[Any], fmt: Format) -> None:
        self.systems = recorded.systems
        places = [k for k, x in enumerate(given) if isinstance(x, Tensor)]
        device = given[places[0]].device
        options: Any = {"dtype": fmt.dtype, "device": device}
        own = [c for x in recorded.inputs if self._own(x) for c in x.codes]
        shared = [c for x in recorded.inputs if not self._own(x) for c in x.codes]
        out = [c for x in recorded.outputs for c in x.codes]
        if len(own) + len(shared) + len(out) > WIDEST:
            raise TooLongError(f"{len(own) + len(shared)} numbers to read, {len(out)} to write")
        self.spec, constants, tables = recorded.program.kernel(
            "graph", own, shared, out, registry.on(device).crowded
        )
        self._constants = torch.tensor(constants, **options)
        size = self._constants.element_size()
        self._behind = [self._constants.data_ptr() + k * size for k in range(len(constants))]
        self._tables = [table(name, device) for name in tables]
        self._behind += [t.data_ptr() for t in self._tables]
        inputs = [
            (k, _Places(given[k], found, self._own(found)))
            for k, found in zip(places, recorded.inputs, strict=True)
        ]
        # Operands that all systems share are the kernel's last.
        self._operands = sorted(inputs, key=lambda x: not x[1].own)
        self._results: list[tuple[Tensor, list[int], Tensor | None, Tensor]] = []
        for x in recorded.outputs:
            result = torch.empty_strided(x.shape, x.strides, **options)
            room = result
            if self.systems > 1 and (len(x.codes) > 1 or x.own is not None):
                room = torch.empty(len(x.codes), self.systems, **options)
            offsets = [size * self.systems * j for j in range(len(x.codes))]
            where = None if x.own is None else x.own.to(device)
            self._results.append((room, offsets, where, result))
        like = torch.empty(self.systems, **options)
        launch = registry.prepare(self.spec, [[like] * len(self.spec.fields)])
        assert launch is not None
        self._launch = launch.row(np.ones((1, 0)))

    def _own(self, x: Input) -> bool:
        return x.systems == self.systems

    def __call__(self, given: Sequence[Any]) -> list[Tensor] | None:
        """Return the outputs, new dense tensors; None if the kernel lacks a needed step."""
        addresses: list[int] = []
        out, keep = [], []
        for room, places, _, _ in self._results:
            x = _empty_like(room)
            place = x.data_ptr()
            addresses += [place + o for o in places]
            out.append(x)
        # Copies live until the kernel has read them.
        for k, where in self._operands:
            keep.append(where.addresses(given[k], addresses))
        addresses += self._behind
        counted = self._launch(addresses)
        if counted is not None and counted[0]:
            return None
        return out if self.systems == 1 else [*map(_placed, out, self._results)]


def _placed(x: Tensor, found: tuple[Tensor, list[int], Tensor | None, Tensor]) -> Tensor:
    """Convert numbers [count, systems] to a result."""
    room, _, own, like = found
    if room is like:
        return x
    result = _empty_like(like)
    memory = result.as_strided((like.numel(),), (1,))
    if own is None:
        memory.view(room.shape[1], -1).copy_(x.t())
    else:
        memory[own] = x.t()
    return result


class _Places:
    """The addresses of an operand's numbers."""

    def __init__(self, like: Tensor, found: Input, own: bool) -> None:
        self.own = own
        self.systems, self._core = found.systems, found.core
        self._count = len(found.codes)
        self._expanded = found.core != like.shape
        size = like.element_size()
        if self.systems > 1:
            self._offsets = [size * self.systems * j for j in range(self._count)]
            return
        self._offsets = [size * k for k in offsets(found.core, like.stride())]

    def addresses(self, x: Tensor, to: list[int]) -> Tensor:
        """Append the addresses of an operand; return the tensor that has to stay alive."""
        if self.systems > 1:
            if self._expanded:
                x = x.as_strided(self._core, x.stride())
            x = x.reshape(self.systems, self._count).t().contiguous()
        place = x.data_ptr()
        to += [place + offset for offset in self._offsets]
        return x
