"""Record a stage of a graph for given shapes: a program and the layout of its numbers."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Node

from mcf.fusion.fused_program import Program, TooLongError
from mcf.fusion.recordable_operators import CONSTANTS, FILLED, FLOAT64, HANDLERS, MOVEMENTS
from mcf.fusion.stages import Stage
from mcf.fusion.stand_ins import SHARED, MixedLanesError, Numbers, by_lane, moved
from mcf.kernels.formats import FP32, FP64, Format

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


def recordable(node: Node, fmt: Format) -> bool:
    """Return whether a node of a graph can be recorded, if all its inputs can."""
    # LLVM vectorises loops of 16-bit numbers, which takes minutes for long ones.
    if node.op != "call_function" or fmt not in (FP32, FP64):
        return False
    target: Any = node.target
    if target is operator.getitem:
        source: Any = node.args[0]
        return recordable(source, fmt)
    values = node.meta.get("val")
    results = values if isinstance(values, list | tuple) else [values]
    tensors = [*results, *(n.meta.get("val") for n in node.all_input_nodes)]
    flat = [t for x in tensors for t in (x if isinstance(x, list | tuple) else [x])]
    for t in flat:
        if isinstance(t, Tensor) and t.dtype not in (fmt.dtype, torch.bool):
            return False
        if not isinstance(t, Tensor | torch.SymInt | int):
            return False
    if target in FLOAT64:
        # A reproducible sum is another algorithm.
        return fmt is FP64 and True not in [a for a in node.args if isinstance(a, bool)]
    if target in CONSTANTS:
        return not node.all_input_nodes or "like" in str(target) or "new" in str(target)
    return target in HANDLERS or target in MOVEMENTS or target in FILLED


def computes(node: Node) -> bool:
    """Return whether a node is arithmetic."""
    return node.target in HANDLERS or node.target in FLOAT64


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
    zero = program.constant(0.0)
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
        known[node] = _result(program, node, args, kwargs, zero)
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


def _output(x: Numbers, systems: int) -> Output:
    """Return the layout of a result in memory."""
    codes, lanes = (torch.empty_like(part).copy_(part) for part in x)
    codes, lanes = (part.as_strided((part.numel(),), (1,)) for part in (codes, lanes))
    # With one system, shared constants count as its own.
    shared, own = by_lane(lanes if systems > 1 else torch.zeros_like(lanes), systems)
    if len(shared):
        raise MixedLanesError("a result is one for all systems")
    found = codes[own]
    if bool((found != found[0]).any()):
        raise MixedLanesError("systems do different things")
    in_turn = torch.equal(own.reshape(-1), torch.arange(own.numel(), device="cpu"))
    strides = torch.empty_like(x.codes).stride()
    return Output(found[0].tolist(), x.shape, strides, None if in_turn else own)


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


def _input(program: Program, name: str, x: Tensor, lead: tuple[int, ...]) -> tuple[Numbers, Input]:
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
    names = [program.named(f"{name}_{k}") for k in range(count)]
    codes = torch.tensor(names, dtype=torch.int64, device="cpu").expand(systems, count)
    lanes = torch.arange(systems, device="cpu")[:, None]
    lanes = lanes if own else torch.full((1, 1), SHARED, device="cpu")
    numbers = []
    for part in (codes, lanes.expand(systems, count)):
        laid = torch.empty_strided(core, x.stride(), dtype=torch.int64, device="cpu")
        numbers.append(laid.copy_(part.reshape(core)).expand(x.shape))
    return Numbers(*numbers), Input(names, core, systems)


def _result(program: Program, node: Node, args: Any, kwargs: Any, zero: int) -> Any:
    target: Any = node.target
    if target is operator.getitem:
        return args[0][args[1]]
    if target in CONSTANTS:
        dtype = program.format.dtype
        cpu = torch.device("cpu")
        like = [
            torch.empty(a.shape, dtype=dtype, device=cpu) if isinstance(a, Numbers) else a
            for a in args
        ]
        return program.constants(target(*like, **{**kwargs, "device": cpu}))
    if target in MOVEMENTS or target in FILLED:
        return moved(target, args, kwargs, zero if target in FILLED else 0)
    return (HANDLERS.get(target) or FLOAT64[target])(program, *args)
