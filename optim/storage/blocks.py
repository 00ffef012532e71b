"""Moments in blocks of numbers of 8 bits with one scale each, an experiment.

A block is BLOCK consecutive elements of the parameter in row-major order, and its scale the
smallest power of two under which its largest finite magnitude is at most the format's largest
number, 448 for e4m3 and 57344 for e5m2 (but 2**-100 at least). Elements are stored as one number or
as two, the second of which is kept times 16 or 8 (`mcf.kernels.algorithms.float8`). Scaling is
exact, so a number is rounded once, to 4 or 9 bits in e4m3 and to 3 or 7 in e5m2, and an element
whose neighbour is 2**14 or 2**29 times as large has fewer. NaN is kept, infinity by e5m2 alone:
under e4m3 it becomes NaN.

Of a second moment, which is known by its name (`ROOTS`), the root is stored: that halves its range
of exponents and, at twice the relative error, the bits it needs. One that is not 0 is never stored
as 0, but as the smallest number of its block: a moment that is too large makes a step too small, a
moment of 0 one without bounds.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.kernels.algorithms import float8
from mcf.kernels.bind import Algorithm
from mcf.kernels.elementwise import Elementwise, Field
from mcf.kernels.formats import E4M3, E5M2, FP32, INT8, Format
from mcf.optim.operator import registered, update_
from mcf.optim.storage import coding
from mcf.optim.storage.base import Storage
from mcf.optim.storage.float32 import FLOAT32

BLOCK = 128

# States that are stored by their root: second moments, sums of squares and norms, of this package's
# rules and of torch's optimizers.
ROOTS = ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "acc_delta", "sum", "exp_inf")
EXPONENT = "_exponent"


def parts(name: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a state that store a moment: one or two of codes, and the exponents."""
    return {n: state[n] for n in (name, f"{name}_lo", f"{name}{EXPONENT}") if n in state}


def holds(name: str, fmt: Format) -> bool:
    """Whether a state is part of such a moment."""
    return fmt in _CODING or name.endswith(EXPONENT)


def shape(name: str, p: Tensor) -> tuple[int, ...]:
    """The shape of a state: that of its parameter, but one dimension for exponents."""
    return (blocks(p.numel()),) if name.endswith(EXPONENT) else tuple(p.shape)


def blocks(count: int) -> int:
    """The number of blocks of so many elements."""
    return -(-count // BLOCK)


@dataclasses.dataclass(frozen=True)
class Kind:
    """How a moment is stored.

    Args:
        format: of its numbers.
        paired: whether each element has two.
        rooted: whether they are of the root.
    """

    format: Format
    paired: bool
    rooted: bool

    def __str__(self) -> str:
        words = [self.format.name] + ["pair"] * self.paired + ["root"] * self.rooted
        return "_".join(words)


# How numbers of each format are stored.
_CODING: dict[Format, dict[str, Algorithm]] = {
    E4M3: {
        "encode": float8.to_e4m3,
        "decode": float8.from_e4m3,
        "encode_pair": float8.to_e4m3_pair,
        "decode_pair": float8.from_e4m3_pair,
        "exponent_of": float8.e4m3_exponent,
    },
    E5M2: {
        "encode": float8.to_e5m2,
        "decode": float8.from_e5m2,
        "encode_pair": float8.to_e5m2_pair,
        "decode_pair": float8.from_e5m2_pair,
        "exponent_of": float8.e5m2_exponent,
    },
}


def _slots(kind: Kind) -> tuple[tuple[str, Algorithm], ...]:
    how: dict[str, Algorithm] = {
        "shrunk": coding.root if kind.rooted else coding.linear,
        "grown": coding.square if kind.rooted else coding.linear,
        "floored": float8.at_least_one if kind.rooted else coding.as_it_is,
    }
    return (*_CODING[kind.format].items(), *how.items())


def _codes(kind: Kind, **how: Any) -> tuple[Field, ...]:
    return tuple(Field(name, INT8, **how) for name in (("hi", "lo") if kind.paired else ("hi",)))


@functools.cache
def loading(kind: Kind) -> Elementwise:
    """The kernel that reads moments of a kind."""
    spec = Elementwise(
        name=f"load_{kind}",
        function=coding.load_pair if kind.paired else coding.load_one,
        results=("value",),
        fields=(
            *_codes(kind),
            Field("exponent", INT8, block=BLOCK),
            Field("value", FP32, read=False, written=True),
        ),
        stores=(("value", "value"),),
        arithmetic=FP32,
        absent=() if kind.paired else ("lo",),
        slots=_slots(kind),
    )
    return registered(spec)


@functools.cache
def storing(kind: Kind, counted: bool) -> Elementwise:
    """The kernel that stores moments of a kind; whether it counts lost additions."""
    before = (Field("before", INT8, block=BLOCK),) if counted else ()
    spec = Elementwise(
        name=f"store_{kind}{'_counted' if counted else ''}",
        function=coding.store_pair if kind.paired else coding.store_one,
        results=("hi", "lo"),
        fields=(
            *_codes(kind, read=counted, written=True),
            Field("value", FP32),
            Field("exponent", INT8, block=BLOCK),
            *before,
        ),
        stores=tuple((f.name, f.name) for f in _codes(kind)),
        arithmetic=FP32,
        rounded=("hi", "lo"),
        absent=() if kind.paired else ("lo",),
        slots=(*_slots(kind), ("loaded", coding.load_pair if kind.paired else coding.load_one)),
        sums=coding.lost if counted else None,
        sum_count=int(counted),
        counts=int(counted),
    )
    return registered(spec)


@functools.cache
def exponents(kind: Kind) -> Elementwise:
    """The kernel that makes blocks' exponents of their largest numbers."""
    spec = Elementwise(
        name=f"exponent_{kind}",
        function=coding.block_exponent,
        results=("exponent",),
        fields=(Field("largest", FP32), Field("exponent", INT8, read=False, written=True)),
        stores=(("exponent", "exponent"),),
        arithmetic=FP32,
        rounded=("exponent",),
        slots=_slots(kind),
    )
    return registered(spec)


@dataclasses.dataclass(frozen=True)
class Stored:
    """A stretch of a stored moment that begins at a block.

    Args:
        name: of the moment.
        kind: how it is stored.
        codes: its one or two tensors, flat.
        exponents: of its blocks.
    """

    name: str
    kind: Kind
    codes: tuple[Tensor, ...]
    exponents: Tensor

    @classmethod
    def of(cls, name: str, state: Mapping[str, Tensor]) -> Stored:
        """A whole moment of a parameter's state."""
        # Contiguous, whatever the layout of the parameter.
        *codes, exponents = parts(name, state).values()
        (fmt,) = (f for f in _CODING if f.dtype == codes[0].dtype)
        kind = Kind(fmt, len(codes) == 2, name in ROOTS)
        return cls(name, kind, tuple(t.view(torch.int8).view(-1) for t in codes), exponents)

    def part(self, start: int, stop: int) -> Stored:
        """Some of its elements, the first of which begins a block."""
        codes = tuple(t.narrow(0, start, stop - start) for t in self.codes)
        exponents = self.exponents.narrow(0, start // BLOCK, blocks(stop) - start // BLOCK)
        return dataclasses.replace(self, codes=codes, exponents=exponents)


def load(moments: Sequence[Stored], wide: Sequence[Tensor]) -> None:
    """Write the numbers of some moments of one kind to flat float32 tensors."""
    rows = [[*m.codes, m.exponents, x] for m, x in zip(moments, wide, strict=True)]
    update_(loading(moments[0].kind), rows, _none(rows))


def store(
    moments: Sequence[Stored],
    wide: Sequence[Tensor],
    largest: Tensor,
    counted: bool = False,
    live: Tensor | None = None,
) -> Tensor | None:
    """Store new numbers of some moments of one kind.

    Args:
        moments: where.
        wide: the numbers, flat float32 tensors.
        largest: of every block in order the largest finite magnitude; float32.
        counted: whether lost additions are counted.
        live: one number on the moments' device; where it is 0 nothing is changed. None for 1.

    Returns:
        If counted, for each moment how many elements keep their stored value though another number
        was to be stored; float64 [len(moments), 1].
    """
    kind = moments[0].kind
    made = torch.empty_like(largest, dtype=torch.int8)
    update_(exponents(kind), [[largest, made]], _none([0]))
    rows, first = [], 0
    for m, x in zip(moments, wide, strict=True):
        mine = made.narrow(0, first, len(m.exponents))
        first += len(m.exponents)
        rows.append([*m.codes, x, mine, *([m.exponents] if counted else [])])
    sums = update_(storing(kind, counted), rows, _none(rows), live)
    kept = [m.exponents for m in moments]
    made_of = [row[len(m.codes) + 1] for m, row in zip(moments, rows, strict=True)]
    if live is not None:
        made_of = [torch.where(live != 0, x, y) for x, y in zip(made_of, kept, strict=True)]
    torch._foreach_copy_(kept, made_of)
    return sums if counted else None


def read(name: str, state: Mapping[str, Tensor]) -> Tensor:
    """The numbers of a whole moment of a parameter's state, float32 of its shape."""
    moment = Stored.of(name, state)
    wide = torch.empty_like(state[name], dtype=torch.float32)
    if wide.numel():
        load([moment], [wide.view(-1)])
    return wide


def fill(name: str, state: Mapping[str, Tensor], wide: Tensor) -> None:
    """Store the numbers of a whole moment, float32 of its shape."""
    count = wide.numel()
    if count:
        whole = wide.new_zeros(blocks(count), BLOCK)
        part = whole.view(-1)[:count]
        part.copy_(wide.reshape(-1))
        store([Stored.of(name, state)], [part], largest(whole))


def largest(wide: Tensor) -> Tensor:
    """The largest finite magnitude of every block of a tensor of whole blocks, 0 if none is finite.

    A maximum has the same bits in any order.
    """
    size = wide.abs()
    return torch.where(size.isfinite(), size, 0.0).view(-1, BLOCK).amax(1)


def _none(rows: Sequence[object]) -> Tensor:
    """A table of no scalars."""
    return torch.zeros(len(rows), 0, dtype=torch.float64, device="cpu")


class Blocks(Storage):
    """Codes of 8 bits and an exponent for each block; of moments alone, stepped in float32."""

    parameter_bytes = None
    wide = True
    block = BLOCK

    def __init__(self, name: str, fmt: Format, *, paired: bool, second: bool) -> None:
        """How it is called, the format of the codes, whether they are two, and the roles it has."""
        self.name = name
        self.codes = (fmt,) * (1 + paired)
        self.first_bytes = len(self.codes) + 1 / BLOCK
        self.second_bytes = self.first_bytes if second else None

    @property
    def in_step(self) -> Storage:
        """See `Storage`."""
        return FLOAT32

    def moment(self, name: str, fmt: Format) -> dict[str, Format]:
        """See `Storage`."""
        codes = dict(zip((name, f"{name}_lo"), self.codes, strict=False))
        return {**codes, f"{name}{EXPONENT}": INT8}


FP8 = Blocks("fp8", E4M3, paired=False, second=False)
FP8_PAIR = Blocks("fp8x2", E4M3, paired=True, second=True)
E5M2_ONE = Blocks("e5m2", E5M2, paired=False, second=False)
E5M2_PAIR = Blocks("e5m2x2", E5M2, paired=True, second=True)
