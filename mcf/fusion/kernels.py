"""Record stages of graphs as kernels, and launch them."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.fx import Node

from mcf.elementary.tables import table
from mcf.fusion.operators import recorded
from mcf.fusion.program import SYSTEM, MixedLanesError, Program, TooLongError, by_system
from mcf.fusion.stages import Stage
from mcf.kernels import registry
from mcf.kernels.formats import Format

log = logging.getLogger("mcf.fusion")
_serial = itertools.count()

_empty_like = torch.empty_like

Run = Callable[[Sequence[Any]], list[Tensor] | None]

# Limit of numbers that a kernel reads and writes per system.
WIDEST = 512


class Input(NamedTuple):
    """An operand.

    Args:
        codes: the codes of a system's numbers, in the order of the elements.
        core: see `core_of`.
        systems: the number of systems with separate elements in it; 1 if all share its elements.
    """

    codes: list[int]
    core: torch.Size
    systems: int


class Output(NamedTuple):
    """A result, a dense tensor of its own.

    Args:
        codes: of a system's numbers, in the order of memory.
        shape: of the tensor.
        strides: of the tensor.
        own: the places of each system's numbers in memory [systems, count]; None for one system
            after the other.
    """

    codes: list[int]
    shape: torch.Size
    strides: tuple[int, ...]
    own: Tensor | None


class Recorded(NamedTuple):
    """A stage as a program on systems.

    Args:
        program: the statements of one system.
        systems: the number of systems.
        inputs: the operands that are tensors.
        outputs: the results.
    """

    program: Program
    systems: int
    inputs: list[Input]
    outputs: list[Output]


def candidates(given: Sequence[Any]) -> Iterator[tuple[int, ...]]:
    """Yield leading dimensions that may count systems, from the most systems to one."""
    shapes = {t.shape[:k] for t in given if isinstance(t, Tensor) for k in range(1, t.ndim + 1)}
    several = sorted(shapes, key=lambda s: (-s.numel(), len(s), tuple(s)))
    yield from (tuple(s) for s in several if s.numel() > 1)
    yield ()


def record(stage: Stage, given: Sequence[Any], fmt: Format, longest: int, name: str) -> Recorded:
    """Record a stage for operands like these.

    Args:
        stage: the stage of a graph.
        given: example inputs, tensors and integers.
        fmt: the format of its numbers.
        longest: the largest number of arithmetic operations per system.
        name: for messages.

    Raises:
        TooLongError: if it would be too long for a kernel.
    """
    problems = []
    for lead in candidates(given):
        try:
            return _record(stage, given, fmt, longest, lead)
        except (MixedLanesError, TooLongError) as error:
            problems.append(f"{list(lead)}: {error}")
    raise TooLongError(f"{name}: by leading dimensions, {'; '.join(problems)}")


def _record(
    stage: Stage, given: Sequence[Any], fmt: Format, longest: int, lead: tuple[int, ...]
) -> Recorded:
    systems = torch.Size(lead).numel()
    program = Program(fmt, systems, longest)
    known: dict[Node, Any] = {}
    inputs: list[Input] = []
    for k, (node, x) in enumerate(zip(stage.inputs, given, strict=True)):
        known[node] = x
        if _truths(x):
            raise TooLongError("a truth value comes from elsewhere")
        if isinstance(x, Tensor):
            known[node], found = _input(program, f"i{k}", x, lead)
            inputs.append(found)
    for node in stage.nodes:
        args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), known.__getitem__)
        known[node] = recorded(program, node, args, kwargs)
    outputs = []
    for node in stage.outputs:
        if _truths(node.meta.get("val")):
            raise TooLongError("a truth value leaves")
        result = known[node]
        for x in result if isinstance(result, list) else [result]:
            outputs.append(_output(x, systems))
    return Recorded(program, systems, inputs, outputs)


def _truths(x: Any) -> bool:
    parts = x if isinstance(x, list | tuple) else [x]
    return any(isinstance(t, Tensor) and t.dtype is torch.bool for t in parts)


def _output(x: Tensor, systems: int) -> Output:
    """Return the layout of a result in memory."""
    dense = torch.empty_like(x).copy_(x)
    flat = dense.as_strided((dense.numel(),), (1,))
    codes, lanes = flat % SYSTEM, flat // SYSTEM
    # With one system, shared constants count as its own.
    shared, own = by_system(lanes if systems > 1 else torch.ones_like(lanes), systems)
    if len(shared):
        raise MixedLanesError("a result is one for all systems")
    found = codes[own]
    if bool((found != found[0]).any()):
        raise MixedLanesError("systems do different things")
    in_turn = torch.equal(own.reshape(-1), torch.arange(own.numel(), device="cpu"))
    return Output(found[0].tolist(), x.shape, dense.stride(), None if in_turn else own)


def core_of(x: Tensor) -> torch.Size:
    """Return the shape of an operand's distinct elements: expanded dimensions count once."""
    return torch.Size(1 if step == 0 else n for n, step in zip(x.shape, x.stride(), strict=True))


def offsets(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Return the offsets of the elements of a tensor, in order."""
    at = torch.arange(torch.Size(shape).numel(), device="cpu")
    found = torch.zeros_like(at)
    for extent, step in zip(reversed(shape), reversed(strides), strict=True):
        found += at % extent * step
        at = at // extent
    places: list[int] = found.tolist()
    return places


def _input(program: Program, name: str, x: Tensor, lead: tuple[int, ...]) -> tuple[Tensor, Input]:
    """Return an operand's numbers and its layout in memory."""
    core = core_of(x)
    own = tuple(core[: len(lead)]) == lead
    systems = program.systems if own else 1
    count = core.numel() // systems
    if count > WIDEST:
        raise TooLongError(f"an operand of {count} numbers")
    places = offsets(core, x.stride())
    if len(set(places)) < len(places):
        raise TooLongError("an operand with elements in one place")
    codes = [program.named(f"{name}_{k}") for k in range(count)]
    numbers = torch.tensor(codes, dtype=torch.int64, device="cpu")
    if own:
        numbers = numbers + torch.arange(1, systems + 1, device="cpu")[:, None] * SYSTEM
    laid = torch.empty_strided(core, x.stride(), dtype=torch.int64, device="cpu")
    return laid.copy_(numbers.reshape(core)).expand(x.shape), Input(codes, core, systems)


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
            own, shared, out, registry.on(device).crowded
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
