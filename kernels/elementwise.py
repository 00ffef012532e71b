"""Declare a fused elementwise kernel, from which each executor generates its own."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping
from types import FunctionType
from typing import Any

from mcf.kernels.algorithms import words
from mcf.kernels.bind import Algorithm
from mcf.kernels.formats import Format

_serial = itertools.count()

# Identifiers that generated code uses itself; fields and scalars must not have these names.
_TAKEN = frozenset(
    "data addresses rows starts stops scalars sums parts shares arrival turn share end count "
    "counter item row first last start n i live random function".split()
)


@dataclasses.dataclass(frozen=True)
class Field:
    """A tensor of a kernel: how it is stored and whether the kernel reads or writes it.

    Args:
        name: the name of the field.
        format: the format of its elements.
        read: whether the kernel loads it.
        written: whether the kernel stores it.
        rounding: the algorithm that rounds a float32 register stochastically when it is stored,
            from the number and 16 random bits; None rounds to nearest.
        draw: the random bits that `rounding` uses: "weight", "first" or "second".
        uniform: whether the tensor has one element, which is used at every index. Never the first
            field of a kernel, never written.
        table: whether the tensor is a lookup table in the registers' format, which the kernel reads
            by `gather`, at any index and any number of times; `uniform` too.

    A field whose format packs two numbers into an element has half as many elements as the others
    in its last dimension, which is even. Never the first field of a kernel, never uniform, and
    always a code.
    """

    name: str
    format: Format
    read: bool = True
    written: bool = False
    rounding: Algorithm | None = None
    draw: str = "weight"
    uniform: bool = False
    table: bool = False


@dataclasses.dataclass(frozen=True)
class Code:
    """A field of integer codes: loaded codes are decoded and stored numbers are encoded.

    Args:
        field: the field.
        decode: (code, *numbers of the fields `beside`) -> number.
        encode: (number, random bits that the field draws, and for each field in `beside` its
            computed number and its stored number or code) -> code.
        beside: fields that `decode` and `encode` also read; fields of codes among them precede this
            one in `Elementwise.codes`.
    """

    field: str
    decode: Algorithm
    encode: Algorithm
    beside: tuple[str, ...] = ()


# The variables that hold random bits in generated code.
DRAWN = {"weight": "random", "first": "random_first", "second": "random_second"}


# Instances are compared and hashed by identity: executors look kernels up at every launch.
@dataclasses.dataclass(frozen=True, eq=False)
class Elementwise:
    """For every index: load fields into registers, apply `function`, round and store its results.

    The parameters of `function` are found by name. A name of a field is that field's value; a name
    in `scalars` is that scalar; a name in `absent` is the constant 0, for a component which this
    kernel does not store.

    Args:
        name: for error messages and profiles.
        function: an algorithm; returns one register per entry of `results`.
        results: the names of the results.
        fields: the tensors, in the order in which a launch passes them.
        stores: (result, field) pairs; each field that is written appears once.
        arithmetic: the format every operation rounds to (primitive `rn`).
        roundings: (primitive, format) pairs for the other roundings that `function` uses.
        loads: (parameter, field) pairs for parameters that are not named as their field is.
        groups: (parameter, names) pairs for parameters that are tuples of the values above.
        scalars: names of the scalars, in the order of a launch's columns.
        absent: parameters that are the constant 0.
        rounded: results which are already numbers of the format that stores them.
        slots: (name, algorithm) pairs for the names `function` leaves open.
        sums: an algorithm over the parameters above, `new_<field>` (the value as stored) and
            `out_<result>`; its results are summed over all elements. None for no sums.
        sum_count: the number of results of `sums`.
        counts: the number of booleans among them, which come last.
        correction: a (result, algorithm) pair: the algorithm replaces the result before it is
            rounded and stored; it can read whatever `sums` can read of other results.
        long: whether an element takes hundreds of operations. Such a kernel has no codes, random
            bits or scalars and sums at most one condition on its results; CPUs have separate loops
            for it.
        few: whether launches have few elements, which a GPU then spreads over its processors.
        calls: algorithms that a long `function` calls often and that are compiled once each.
        codes: the fields that store numbers as integer codes; all other code sees the numbers.

    If random bits are drawn, the last `scalars` are those of `mcf.kernels.streams`.
    """

    name: str
    function: Algorithm
    results: tuple[str, ...]
    fields: tuple[Field, ...]
    stores: tuple[tuple[str, str], ...]
    arithmetic: Format
    roundings: tuple[tuple[str, Format], ...] = ()
    loads: tuple[tuple[str, str], ...] = ()
    groups: tuple[tuple[str, tuple[str, ...]], ...] = ()
    scalars: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    rounded: tuple[str, ...] = ()
    slots: tuple[tuple[str, Algorithm], ...] = ()
    sums: Algorithm | None = None
    sum_count: int = 0
    counts: int = 0
    correction: tuple[str, Algorithm] | None = None
    long: bool = False
    few: bool = False
    calls: tuple[Algorithm, ...] = ()
    codes: tuple[Code, ...] = ()
    # The serial number distinguishes kernels of one name in caches and in generated code.
    serial: int = dataclasses.field(default_factory=lambda: next(_serial))

    def __post_init__(self) -> None:
        written = sorted(f.name for f in self.fields if f.written)
        if sorted(field for _, field in self.stores) != written:
            raise ValueError(f"kernel {self.name}: stores {self.stores} do not match {written}")
        taken = _TAKEN & {*(f.name for f in self.fields), *self.scalars}
        if taken:
            raise ValueError(f"kernel {self.name}: generated code has other things named {taken}")
        known = {f.name for f in self.fields if f.read} | set(self.scalars) | set(self.absent)
        wanted = [n for p in parameters(self.function) for n in self.members(p)]
        missing = [n for n in wanted if dict(self.loads).get(n, n) not in known]
        if missing:
            raise ValueError(f"kernel {self.name}: nothing supplies {missing}")

    @functools.cached_property
    def draws(self) -> frozenset[str]:
        """The kinds of random bits that the kernel draws for each element."""
        coded = {code.field for code in self.codes}
        return frozenset(
            f.draw for f in self.fields if f.written and (f.rounding or f.name in coded)
        )

    @functools.cached_property
    def packed(self) -> bool:
        """Whether a field packs two numbers into an element; neighbours are computed together."""
        return any(f.format.packed > 1 for f in self.fields)

    @property
    def random(self) -> bool:
        """Whether the kernel draws random bits for each element."""
        return bool(self.draws)

    def draw_statements(self, index: str) -> list[str]:
        """Return the statements that draw the random bits of the element with this index."""
        lines = []
        if "weight" in self.draws:
            lines.append(f"random = draw({index}, {', '.join(parameters(words.random16)[1:])})")
        if self.draws - {"weight"}:
            keys = ", ".join(parameters(words.random16_pair)[1:])
            lines.append(f"random_first, random_second = draw_pair({index}, {keys})")
        return lines

    def decode_statements(self, prefix: str = "decode_") -> list[str]:
        """Return the statements that decode the loaded codes.

        They call functions whose names are `prefix` and the name of a field.
        """
        loaded = {f.name for f in self.fields if f.read}
        return [
            f"{c.field} = {prefix}{c.field}({', '.join((c.field, *c.beside))})"
            for c in self.codes
            if c.field in loaded
        ]

    def ordered_stores(self) -> list[tuple[str, str]]:
        """Return the (result, field) pairs in the order in which they are rounded.

        A correction comes last, and a code after what is beside it.
        """
        last = self.correction[0] if self.correction is not None else None
        depth = {code.field: len(code.beside) for code in self.codes}
        return sorted(self.stores, key=lambda pair: (pair[0] == last, depth.get(pair[1], 0)))

    def store_statements(self) -> list[str]:
        """Return the statements that correct and encode the results before they are stored."""
        fields, codes = {f.name: f for f in self.fields}, {c.field: c for c in self.codes}
        results = {field: result for result, field in self.stores}
        lines = []
        for result, field in self.ordered_stores():
            drawn = DRAWN[fields[field].draw]
            if self.correction is not None and result == self.correction[0]:
                lines.append(f"out_{result} = correct({self.call_of(self.correction[1])})")
            if field in codes:
                beside = codes[field].beside
                given = [x for b in beside for x in (f"out_{results[b]}", self.kept(b))]
                call = ", ".join([f"out_{result}", drawn, *given])
                lines.append(f"kept_{field} = encode_{field}({call})")
                call = ", ".join([f"kept_{field}", *(f"new_{b}" for b in beside)])
                lines.append(f"new_{field} = decode_{field}({call})")
                continue
            if fields[field].rounding is not None:
                lines.append(f"new_{field} = stochastic_{field}(out_{result}, {drawn})")
            else:
                rounding = "" if result in self.rounded else f"round_{field}"
                lines.append(f"new_{field} = {rounding}(out_{result})")
        return lines

    def kept(self, field: str) -> str:
        """Return the variable that is stored in a field: a number or its code."""
        return f"{'kept' if any(c.field == field for c in self.codes) else 'new'}_{field}"

    def helpers(self) -> dict[str, Algorithm]:
        """Return the algorithms that the generated statements call, by their names there."""
        found: dict[str, Algorithm] = {}
        if "weight" in self.draws:
            found["draw"] = words.random16
        if self.draws - {"weight"}:
            found["draw_pair"] = words.random16_pair
        found |= {f"stochastic_{f.name}": f.rounding for f in self.fields if f.rounding is not None}
        for code in self.codes:
            found |= {f"decode_{code.field}": code.decode, f"encode_{code.field}": code.encode}
        if self.correction is not None:
            found["correct"] = self.correction[1]
        return found

    @functools.cached_property
    def register(self) -> Format:
        """The widest register format that any field or the arithmetic needs."""
        wanted = [f.format.register for f in self.fields] + [self.arithmetic.register]
        return max(wanted, key=lambda f: f.p)

    def members(self, parameter: str) -> tuple[str, ...]:
        """Return the names of the values that make up a parameter: its group, or itself."""
        return dict(self.groups).get(parameter, (parameter,))

    def constant_or_name(self, name: str) -> str:
        """Return the variable or constant that supplies one value in generated code."""
        name = dict(self.loads).get(name, name)
        return "ZERO" if name in self.absent else name

    def expression(self, parameter: str) -> str:
        """Return the expression that supplies a parameter in generated code."""
        names = [self.constant_or_name(n) for n in self.members(parameter)]
        return f"({', '.join(names)},)" if parameter in dict(self.groups) else names[0]

    def argument(self, parameter: str, values: Mapping[str, Any]) -> Any:
        """Return the value of a parameter, from the values by name."""
        names, grouped = self._sources[parameter]
        return tuple(map(values.__getitem__, names)) if grouped else values[names[0]]

    @functools.cached_property
    def _sources(self) -> dict[str, tuple[list[str], bool]]:
        """The names that supply each parameter of the function, and whether they are a group."""
        return {
            p: ([*map(self.constant_or_name, self.members(p))], p in dict(self.groups))
            for p in parameters(self.function)
        }

    def call(self) -> str:
        """Return the argument list of `function` in generated code."""
        return ", ".join(self.expression(p) for p in parameters(self.function))

    def outputs(self) -> str:
        """Return the assignment targets of the results in generated code."""
        return ", ".join(f"out_{r}" for r in self.results) + ","

    def call_of(self, function: Algorithm) -> str:
        """Return the argument list of `sums` or of a correction in generated code.

        A `new_` of what is absent is 0.
        """
        stored = {f"new_{field}" for _, field in self.stores}
        names = []
        for p in parameters(function):
            source = dict(self.loads).get(p.removeprefix("new_"), p.removeprefix("new_"))
            if p.startswith("new_"):
                names.append(f"new_{source}" if f"new_{source}" in stored else "ZERO")
            else:
                names.append(p if p.startswith("out_") else self.expression(p))
        return ", ".join(names)


def parameters(function: Algorithm) -> tuple[str, ...]:
    """Return the names of the positional parameters of an algorithm."""
    assert isinstance(function, FunctionType)
    code = function.__code__
    return code.co_varnames[: code.co_argcount]
