"""Moments in blocks of numbers of 8 bits with one scale each, an experiment.

A block is BLOCK consecutive elements of the parameter in row-major order, and its scale the
smallest power of two under which its largest finite magnitude is at most 448, e4m3's largest number
(but 2**-100 at least). Elements are stored as one e4m3 number or as two, the second of which is
kept times 16 (`mcf.kernels.algorithms.float8`). Scaling is exact, so a number is rounded to 4 or
9 bits once, and an element whose neighbour is 2**14 times as large has fewer.

Of a second moment the root is stored: that halves its range of exponents and, at twice the relative
error, the bits it needs. One that is not 0 is never stored as 0, but as the smallest number of its
block: a moment that is too large makes a step too small, a moment of 0 one without bounds.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mcf.kernels import registry
from mcf.kernels.algorithms.float8 import at_least_one
from mcf.kernels.bind import Algorithm
from mcf.kernels.elementwise import Elementwise, Field
from mcf.kernels.formats import E4M3, FP32, INT8, Format
from mcf.optim.rules import eight_bits as rules
from mcf.optim.strategies import Storage

BLOCK = 128

# States that are stored by their root: all second moments and norms of this package's rules.
ROOTS = ("exp_avg_sq", "max_exp_avg_sq", "exp_inf")
EXPONENT = "_exponent"


def states(name: str, storage: Storage) -> dict[str, Format]:
    """The tensors that store a moment: codes, and one exponent for each block."""
    low = {f"{name}_lo": E4M3} if storage is Storage.FP8_PAIR else {}
    return {name: E4M3, **low, f"{name}{EXPONENT}": INT8}


def parts(name: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a state that store a moment: one or two of codes, and the exponents."""
    return {n: state[n] for n in (name, f"{name}_lo", f"{name}{EXPONENT}") if n in state}


def holds(name: str, fmt: Format) -> bool:
    """Whether a state is part of such a moment."""
    return fmt == E4M3 or name.endswith(EXPONENT)


def shape(name: str, p: Tensor) -> tuple[int, ...]:
    """The shape of a state: that of its parameter, but one dimension for exponents."""
    return (blocks(p.numel()),) if name.endswith(EXPONENT) else tuple(p.shape)


def blocks(count: int) -> int:
    """The number of blocks of so many elements."""
    return -(-count // BLOCK)


def _slots(rooted: bool) -> tuple[tuple[str, Algorithm], ...]:
    if rooted:
        return (
            ("shrunk", rules.root),
            ("grown", rules.square),
            ("floored", at_least_one),
        )
    return (("shrunk", rules.linear), ("grown", rules.linear), ("floored", rules.as_it_is))


def _root(rooted: bool) -> str:
    return "_root" if rooted else ""


def _codes(paired: bool, **how: bool) -> tuple[Field, ...]:
    return tuple(Field(name, INT8, **how) for name in (("hi", "lo") if paired else ("hi",)))


@functools.cache
def _loading(rooted: bool, paired: bool) -> Elementwise:
    return Elementwise(
        name=f"load_fp8{_root(rooted)}",
        function=rules.load_pair if paired else rules.load_one,
        results=("value",),
        fields=(
            *_codes(paired),
            Field("exponent", INT8, block=BLOCK),
            Field("value", FP32, read=False, written=True),
        ),
        stores=(("value", "value"),),
        arithmetic=FP32,
        absent=() if paired else ("lo",),
        slots=_slots(rooted),
    )


@functools.cache
def _storing(rooted: bool, paired: bool, counted: bool) -> Elementwise:
    before = (Field("before", INT8, block=BLOCK),) if counted else ()
    return Elementwise(
        name=f"store_fp8{_root(rooted)}",
        function=rules.store_pair if paired else rules.store_one,
        results=("hi", "lo"),
        fields=(
            *_codes(paired, read=counted, written=True),
            Field("value", FP32),
            Field("exponent", INT8, block=BLOCK),
            *before,
        ),
        stores=tuple((f.name, f.name) for f in _codes(paired)),
        arithmetic=FP32,
        rounded=("hi", "lo"),
        absent=() if paired else ("lo",),
        slots=(*_slots(rooted), ("loaded", rules.load_pair if paired else rules.load_one)),
        sums=rules.lost if counted else None,
        sum_count=int(counted),
        counts=int(counted),
    )


@functools.cache
def _exponents(rooted: bool) -> Elementwise:
    return Elementwise(
        name=f"exponent_fp8{_root(rooted)}",
        function=rules.block_exponent,
        results=("exponent",),
        fields=(Field("largest", FP32), Field("exponent", INT8, read=False, written=True)),
        stores=(("exponent", "exponent"),),
        arithmetic=FP32,
        rounded=("exponent",),
        slots=_slots(rooted),
    )


@dataclasses.dataclass(frozen=True)
class Stored:
    """A stretch of a stored moment that begins at a block.

    Args:
        name: of the moment.
        codes: its one or two tensors, flat.
        exponents: of its blocks.
    """

    name: str
    codes: tuple[Tensor, ...]
    exponents: Tensor

    @classmethod
    def of(cls, name: str, state: Mapping[str, Tensor]) -> Stored:
        """A whole moment of a parameter's state."""
        # Contiguous, whatever the layout of the parameter.
        *codes, exponents = parts(name, state).values()
        return cls(name, tuple(t.view(torch.int8).view(-1) for t in codes), exponents)

    def part(self, start: int, stop: int) -> Stored:
        """Some of its elements, the first of which begins a block."""
        codes = tuple(t[start:stop] for t in self.codes)
        return Stored(self.name, codes, self.exponents[start // BLOCK : blocks(stop)])

    @property
    def _rooted(self) -> bool:
        return self.name in ROOTS

    @property
    def _kind(self) -> tuple[bool, bool]:
        return self._rooted, len(self.codes) == 2


def load(moments: Sequence[Stored], wide: Sequence[Tensor]) -> None:
    """Write the numbers of some moments of one kind to flat float32 tensors."""
    rows = [[*m.codes, m.exponents, x] for m, x in zip(moments, wide, strict=True)]
    registry.run(_loading(*moments[0]._kind), rows, _none(rows))


def store(
    moments: Sequence[Stored], wide: Sequence[Tensor], largest: Tensor, counted: bool = False
) -> Tensor | None:
    """Store new numbers of some moments of one kind.

    Args:
        moments: where.
        wide: the numbers, flat float32 tensors.
        largest: of every block in order the largest finite magnitude; float32.
        counted: whether lost additions are counted.

    Returns:
        If counted, for each moment how many elements keep their stored value though another number
        was to be stored; float64 [len(moments), 1].
    """
    rooted, paired = moments[0]._kind
    exponents = torch.empty_like(largest, dtype=torch.int8)
    registry.run(_exponents(rooted), [[largest, exponents]], _none([0]))
    rows, first = [], 0
    for m, x in zip(moments, wide, strict=True):
        mine = exponents[first : first + len(m.exponents)]
        first += len(m.exponents)
        rows.append([*m.codes, x, mine, *([m.exponents] if counted else [])])
    sums = registry.run(_storing(rooted, paired, counted), rows, _none(rows))
    for m, row in zip(moments, rows, strict=True):
        m.exponents.copy_(row[len(m.codes) + 1])
    return sums


def read(name: str, state: Mapping[str, Tensor]) -> Tensor:
    """The numbers of a whole moment of a parameter's state, float32 of its shape."""
    moment = Stored.of(name, state)
    wide = torch.empty(state[name].shape, device=state[name].device)
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
    return torch.zeros(len(rows), 0, dtype=torch.float64)
