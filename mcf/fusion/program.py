"""Formulas of one system, and the kernel that computes them for many systems."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.elementary.fused import is_rare
from mcf.kernels.algorithms.truths import larger
from mcf.kernels.bind import Algorithm, weight
from mcf.kernels.elementwise import Elementwise, Field
from mcf.kernels.formats import Format
from mcf.kernels.statements import Recording, depth_first, in_order, operands_of, printed

# An argument of an algorithm: a code, a name that the algorithm knows, or a tuple of these.
Argument = int | str | tuple[int | str, ...]

# A program of up to this many operations is compiled inline.
INLINED = 8_000
# The unit of systems in the integers that represent elements.
SYSTEM = 1 << 32


class TooLongError(Exception):
    """Raised when a program has more statements than a kernel may have."""


class MixedLanesError(Exception):
    """A number of one system depends on another's, or systems perform different operations."""


def by_system(lanes: Tensor, systems: int) -> tuple[Tensor, Tensor]:
    """Return the flat indices of shared elements, and those [systems, count] of the others.

    Args:
        lanes: 1 + the system of each element, or 0 if all systems share it.
        systems: the number of systems.

    Raises:
        MixedLanesError: if one system has more elements than another.
    """
    shared = (lanes == 0).nonzero()[:, 0]
    mine, order = lanes.sort(stable=True)
    own = order[len(shared) :]
    count, left = divmod(len(own), systems)
    expected = torch.arange(1, systems + 1, device="cpu").repeat_interleave(count)
    if left or not torch.equal(mine[len(shared) :], expected):
        raise MixedLanesError("systems have different numbers of elements")
    return shared, own.view(systems, count)


class Program:
    """The statements on the numbers of one system, which have codes 0, 1, 2, ...

    While a graph is recorded, integers stand for the elements of a tensor: the code of an element
    plus `SYSTEM` times its lane, which is 1 + its system, or 0 if all systems share the element. So
    PyTorch itself moves elements (views, copies, broadcasts, concatenations). The code of the
    constant 0 is 0, so that movements which fill in zeros fill in this constant.

    Equal statements are recorded once: they compute the same bits.

    Args:
        fmt: the format of all numbers, float32 or float64.
        systems: the number of systems.
        most: the largest number of arithmetic operations.
    """

    def __init__(self, fmt: Format, systems: int, most: int) -> None:
        self.format, self.systems, self._most = fmt, systems, most
        # Operations of arithmetic in all statements.
        self.weight = 0
        self._names: list[str] = []
        self._constants: dict[bytes, int] = {}
        self._known: dict[tuple[Any, ...], tuple[int, ...]] = {}
        self._recording = Recording()
        # Tables that algorithms read, and masks of results that are not valid.
        self._tables: dict[str, None] = {}
        self._rare: list[int] = []
        self.constant(0.0)

    def named(self, name: str) -> int:
        """Return the code of a new variable."""
        self._names.append(name)
        return len(self._names) - 1

    def constant(self, value: float) -> int:
        """Return the code of a constant."""
        key = struct.pack(">d", value)
        if key not in self._constants:
            self._constants[key] = self.named(f"u{len(self._constants)}")
        return self._constants[key]

    def constants(self, value: Tensor) -> Tensor:
        """Return a tensor of constants as numbers."""
        codes = [self.constant(x) for x in value.double().reshape(-1).tolist()]
        return torch.tensor(codes, dtype=torch.int64, device="cpu").reshape(value.shape)

    def call(
        self, function: Algorithm, arguments: Sequence[Argument], count: int
    ) -> tuple[int, ...]:
        """Record a call of an algorithm and return the codes of its results."""
        key = (function, *arguments)
        if key not in self._known:
            self.weight += weight(function)
            if self.weight > self._most:
                raise TooLongError("too many statements for one kernel")
            made = self._recording.calls(function, count, *map(self._operand, arguments))
            self._known[key] = tuple(map(self.named, made))
        return self._known[key]

    def _operand(self, argument: Argument) -> Any:
        if isinstance(argument, tuple):
            return tuple(map(self._operand, argument))
        return self._names[argument] if isinstance(argument, int) else argument

    def each(
        self, apply: Callable[[Sequence[int]], tuple[int, ...]], given: Sequence[Tensor]
    ) -> list[Tensor]:
        """Apply a function to the codes of each element of some tensors of one shape.

        Raises:
            MixedLanesError: if an element's operands are of several systems, or systems differ.
            TooLongError: if there are no elements.
        """
        shape = given[0].shape
        if not shape.numel():
            raise TooLongError("a tensor has no elements")
        flat = torch.stack([x.reshape(-1) for x in given])
        codes, lanes = flat % SYSTEM, flat // SYSTEM
        mine = lanes.amax(0)
        if bool(((lanes != mine) & (lanes > 0)).any()):
            raise MixedLanesError("an element depends on two systems")
        shared, own = by_system(mine, self.systems)
        first = codes[:, own[0]]
        if bool((codes[:, own] != first[:, None]).any()):
            raise MixedLanesError("systems do different things")
        results: list[Tensor] = []
        for places, which in ((shared, codes[:, shared]), (own, first)):
            rows = [apply(column) for column in which.t().tolist()]
            if rows:
                made = torch.tensor(rows, dtype=torch.int64, device="cpu").t()
                results = results or [mine * SYSTEM for _ in made]
                for target, row in zip(results, made, strict=True):
                    target[places] += row.expand(places.shape)
        return [x.reshape(shape) for x in results]

    def grouped(
        self, function: Algorithm, groups: Sequence[Sequence[Tensor]], count: int
    ) -> list[Tensor]:
        """Apply an algorithm of tuples to the elements of groups of tensors."""
        ends = [sum(map(len, groups[: k + 1])) for k in range(len(groups))]
        starts = [0, *ends]

        def apply(codes: Sequence[int]) -> tuple[int, ...]:
            given = [tuple(codes[a:b]) for a, b in zip(starts, ends, strict=False)]
            return self.call(function, given, count)

        return self.each(apply, [c for group in groups for c in group])

    def kernel_on(self, spec: Elementwise, given: Sequence[Tensor]) -> list[Tensor]:
        """Apply a kernel's algorithm to the tensors that it reads."""
        self._tables |= {f.name: None for f in spec.fields if f.table}

        def apply(codes: Sequence[int]) -> tuple[int, ...]:
            arguments = operands_of(spec, codes, self.constant(0.0))
            made = self.call(spec.function, arguments, len(spec.results))
            if spec.sum_count == 0:
                return made
            self._rare.append(made[-1])
            return made[:-1]

        return self.each(apply, given)

    def kernel(
        self,
        inputs: Sequence[int],
        shared: Sequence[int],
        out: Sequence[int],
        crowded: bool = False,
    ) -> tuple[Elementwise, list[float], list[str]]:
        """Return the kernel for some numbers of each system, its constants and its tables.

        Its fields are the results, the inputs, the inputs that all systems share, constants and
        tables. It counts systems whose results are not usable, if that can happen.

        Args:
            inputs: codes of the inputs of each system.
            shared: codes of the inputs that all systems share.
            out: codes of the results.
            crowded: see `Executor`.
        """
        results = [*out]
        if self._rare:
            results.append(
                functools.reduce(lambda a, b: self.call(larger, [a, b], 1)[0], self._rare)
            )
        names, recording = self._names, self._recording
        returned = tuple(names[c] for c in results)
        order = depth_first if crowded else in_order
        statements = order(recording.statements, returned)
        wanted = set(returned).union(*(s.reads for s in statements))
        values = {names[code]: struct.unpack(">d", key)[0] for key, code in self._constants.items()}
        constants = [name for name in values if name in wanted]
        uniform = [*(names[c] for c in shared), *constants]
        fields = [*(names[c] for c in inputs), *uniform]
        tables = [t for t in self._tables if t in wanted]
        # Triton looks source text up by its file name, which `written` makes unique.
        function = printed(
            "graph", [*fields, *tables], statements, returned, recording.functions, "A graph."
        )
        stored = tuple(f"o{k}" for k in range(len(out)))
        rare = int(len(results) > len(out))
        spec = Elementwise(
            name="graph",
            function=function,
            results=(*stored, *["rare"] * rare),
            fields=(
                *(Field(r, self.format, read=False, written=True) for r in stored),
                *(Field(f, self.format, uniform=f in uniform) for f in fields),
                *(Field(t, self.format, uniform=True, table=True) for t in tables),
            ),
            stores=tuple((r, r) for r in stored),
            arithmetic=self.format,
            roundings=(("rc", self.format), ("narrow", self.format)),
            rounded=stored,
            sums=is_rare if rare else None,
            sum_count=rare,
            counts=rare,
            few=True,
            calls=tuple(recording.functions.values()) if self.weight > INLINED else (),
            long=True,
        )
        return spec, [values[c] for c in constants], tables
