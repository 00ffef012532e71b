"""Straight-line formulas of one system, and the kernel that computes them for many systems."""

from __future__ import annotations

import functools
import hashlib
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mcf.elementary.fused import is_rare
from mcf.fusion.stand_ins import MixedLanesError, Numbers, by_lane, contiguous
from mcf.kernels.algorithms.families import written
from mcf.kernels.algorithms.truths import larger
from mcf.kernels.bind import Algorithm, weight
from mcf.kernels.elementwise import Elementwise, Field, parameters
from mcf.kernels.formats import Format

# In which order the statements of a program stand.


class Statement(NamedTuple):
    """A statement of a program.

    Args:
        made: the codes of its results.
        text: of it.
        read: the codes that it reads.
    """

    made: tuple[int, ...]
    text: str
    read: frozenset[int]


def needed(statements: Sequence[Statement], results: Collection[int]) -> list[Statement]:
    """Return the statements that results depend on, in their order."""
    wanted, found = set(results), []
    for each in reversed(statements):
        if not wanted.isdisjoint(each.made):
            wanted |= each.read
            found.append(each)
    return found[::-1]


def depth_first(statements: Sequence[Statement], results: Sequence[int]) -> list[Statement]:
    """Return the statements that results depend on, depth first, the longest chain first.

    So fewer numbers are alive at once than in the order of a recording, where what is done to one
    element of a tensor is done to all of them before the next thing is.
    """
    maker = {code: k for k, s in enumerate(statements) for code in s.made}
    before = [{maker[c] for c in s.read if c in maker} for s in statements]
    length: list[int] = []
    for places in before:
        length.append(1 + max((length[k] for k in places), default=0))

    def pending(k: int) -> Iterator[int]:
        return iter(sorted(before[k], key=lambda j: (-length[j], j)))

    order: dict[int, None] = {}
    for result in results:
        path = [(maker[result], pending(maker[result]))] if result in maker else []
        while path:
            place, rest = path[-1]
            step = next((k for k in rest if k not in order), None)
            if step is None:
                order[place] = None
                path.pop()
            else:
                path.append((step, pending(step)))
    return [statements[k] for k in order]


# An argument of an algorithm: a code, a name that the algorithm knows, or a tuple of these.
Argument = int | str | tuple[int | str, ...]


# A program of up to this many operations is compiled inline.
INLINED = 8_000


class TooLongError(Exception):
    """Raised when a program has more statements than a kernel may have."""


class Program:
    """Statements on the numbers of one system, which have codes 0, 1, 2, ...

    Equal statements are emitted once: they compute the same bits.

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
        self._functions: dict[str, Algorithm] = {}
        # Tables that algorithms read, and masks of results that are not valid.
        self._tables: dict[str, None] = {}
        self._rare: list[int] = []
        self._statements: list[Statement] = []

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

    def constants(self, value: Tensor) -> Numbers:
        """Return a tensor of constants as numbers."""
        codes = [self.constant(x) for x in value.double().reshape(-1).tolist()]
        shaped = torch.tensor(codes, dtype=torch.int64, device="cpu").reshape(value.shape)
        return contiguous(shaped, torch.full_like(shaped, -1))

    def statement(
        self, function: Algorithm, arguments: Sequence[Argument], count: int
    ) -> tuple[int, ...]:
        """Emit a call of an algorithm and return the codes of its results."""
        key = (function, *arguments)
        if key not in self._known:
            self.weight += weight(function)
            if self.weight > self._most:
                raise TooLongError("too many statements for one kernel")
            name = self._called(function)
            results = tuple(self.named(f"v{len(self._names)}") for _ in range(count))
            flat = [a for each in arguments for a in (each if isinstance(each, tuple) else [each])]
            text = ", ".join(map(self._text, arguments))
            made = ", ".join(self._names[r] for r in results)
            read = frozenset(a for a in flat if isinstance(a, int))
            self._statements.append(Statement(results, f"{made}, = {name}({text})", read))
            self._known[key] = results
        return self._known[key]

    def _called(self, function: Algorithm) -> str:
        name: str = function.__name__
        k = 0
        while self._functions.setdefault(f"{name}_{k}", function) is not function:
            k += 1
        return f"{name}_{k}"

    def _text(self, argument: Argument) -> str:
        if isinstance(argument, tuple):
            return f"({', '.join(map(self._text, argument))},)"
        return self._names[argument] if isinstance(argument, int) else argument

    def each(
        self, apply: Callable[[Sequence[int]], tuple[int, ...]], given: Sequence[Numbers]
    ) -> list[Numbers]:
        """Apply a function to the codes of each element of some tensors.

        Raises:
            MixedLanesError: if an element's operands are of several systems, or systems differ.
            TooLongError: if there are no elements.
        """
        shape = given[0].shape
        if not shape.numel():
            raise TooLongError("a tensor has no elements")
        codes = torch.stack([x.codes.reshape(-1) for x in given])
        lanes = torch.stack([x.lanes.reshape(-1) for x in given])
        mine = lanes.amax(0)
        if bool(((lanes != mine) & (lanes >= 0)).any()):
            raise MixedLanesError("an element depends on two systems")
        shared, own = by_lane(mine, self.systems)
        first = codes[:, own[0]]
        if bool((codes[:, own] != first[:, None]).any()):
            raise MixedLanesError("systems do different things")
        results: list[Tensor] = []
        for places, which in ((shared, codes[:, shared]), (own, first)):
            rows = [apply(column) for column in which.t().tolist()]
            if rows:
                made = torch.tensor(rows, dtype=torch.int64, device="cpu").t()
                results = results or [torch.empty_like(mine) for _ in made]
                for target, row in zip(results, made, strict=True):
                    target[places] = row.expand(places.shape)
        return [contiguous(c.reshape(shape), mine.reshape(shape)) for c in results]

    def kernel_on(self, spec: Elementwise, given: Sequence[Numbers]) -> list[Numbers]:
        """Apply a kernel's algorithm to the tensors that it reads."""
        return self.each(lambda codes: self._applied(spec, codes), given)

    def _applied(self, spec: Elementwise, given: Sequence[int]) -> tuple[int, ...]:
        names = [f.name for f in spec.fields if f.read and not f.table]
        values: dict[str, Argument] = {"ZERO": self.constant(0.0)}
        values |= zip(names, given, strict=True)
        values |= {s: self.constant(1.0) for s in spec.scalars}
        for f in spec.fields:
            if f.table:
                self._tables[f.name] = None
                values[f.name] = f.name
        arguments = [spec.argument(p, values) for p in parameters(spec.function)]
        made = self.statement(spec.function, arguments, len(spec.results))
        if spec.sum_count == 0:
            return made
        self._rare.append(made[-1])
        return made[:-1]

    def kernel(
        self,
        name: str,
        inputs: Sequence[int],
        shared: Sequence[int],
        out: Sequence[int],
        crowded: bool = False,
    ) -> tuple[Elementwise, list[float], list[str]]:
        """Return the kernel for some numbers of each system, its constants and its tables.

        Its fields are the results, the inputs, the inputs that all systems share, constants and
        tables. It counts systems whose results are not usable, if that can happen.

        Args:
            name: of the kernel.
            inputs: codes of the inputs of each system.
            shared: codes of the inputs that all systems share.
            out: codes of the results.
            crowded: see `Executor`.
        """
        rare = functools.reduce(self._larger, self._rare[1:], self._rare[0]) if self._rare else None
        results = [*out, *([] if rare is None else [rare])]
        statements = (depth_first if crowded else needed)(self._statements, results)
        lines = [s.text for s in statements]
        wanted = set(results).union(*(s.read for s in statements))
        values = {code: struct.unpack(">d", key)[0] for key, code in self._constants.items()}
        constants = [code for code in values if code in wanted]
        fields = [self._names[c] for c in (*inputs, *shared, *constants)]
        tables = [t for t in self._tables if any(t in line for line in lines)]
        stored = tuple(f"o{k}" for k in range(len(out)))
        body = [*lines, f"return {', '.join(self._names[c] for c in results)},"]
        # Triton looks source text up by its name, which must be unique.
        digest = hashlib.sha256("\n".join([*fields, *body]).encode()).hexdigest()
        function = written(
            name,
            ", ".join([*fields, *tables]),
            body,
            "A graph.",
            f"<mcf fused {digest}>",
            **self._functions,
        )
        uniform = {self._names[c] for c in (*shared, *constants)}
        spec = Elementwise(
            name=name,
            function=function,
            results=stored if rare is None else (*stored, "rare"),
            fields=(
                *(Field(r, self.format, read=False, written=True) for r in stored),
                *(Field(f, self.format, uniform=f in uniform) for f in fields),
                *(Field(t, self.format, uniform=True, table=True) for t in tables),
            ),
            stores=tuple((r, r) for r in stored),
            arithmetic=self.format,
            roundings=(("rc", self.format), ("narrow", self.format)),
            rounded=stored,
            sums=None if rare is None else is_rare,
            sum_count=int(rare is not None),
            counts=int(rare is not None),
            few=True,
            calls=tuple(self._functions.values()) if self.weight > INLINED else (),
            long=True,
        )
        return spec, [values[c] for c in constants], tables

    def _larger(self, a: int, b: int) -> int:
        return self.statement(larger, [a, b], 1)[0]
