"""A step whose moments are stored in blocks of 8 bits: read to float32, stepped, stored again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mcf.kernels.elementwise import Elementwise
from mcf.kernels.tables import table_of, to_device
from mcf.optim import eight_bits, randomness, update
from mcf.optim.eight_bits import BLOCK, Stored

if TYPE_CHECKING:
    from mcf.optim.batch import Work
    from mcf.optim.scalars import Scalars

# Elements stepped at a time: bounds the memory of their moments in float32, and keeps them in the
# caches of a CPU. Multiples of BLOCK.
CHUNK = {"cpu": 1 << 18}
DEVICE_CHUNK = 1 << 24


@dataclasses.dataclass(frozen=True)
class _Given:
    """What `Scalars` holds for a kernel: its table, whether it is live, and first elements."""

    table: Tensor
    live: Tensor | None
    first: list[int]


@dataclasses.dataclass
class _Piece:
    """A stretch of a row that begins at a block.

    Args:
        row: the number of the row.
        start: the stretch's first element.
        dense: its parameter, gradients and states that the kernel takes as they are; None for one
            that is stored in blocks.
        moments: what stands in the places of the Nones.
    """

    row: int
    start: int
    dense: list[Tensor | None]
    moments: list[Stored]

    @property
    def size(self) -> int:
        """The number of elements."""
        assert self.dense[0] is not None
        return self.dense[0].numel()


def check(where: str, p: Tensor) -> None:
    """Raise for a part of a tensor that begins inside a block of the whole one."""
    offset = randomness.index_offset(p)
    if offset % BLOCK:
        raise ValueError(
            f"{where} begins at element {offset} of a whole tensor, and moments of 8 bits are "
            f"stored in blocks of {BLOCK}; allowed are multiples of {BLOCK}"
        )


def prepared(
    spec: Elementwise, work: Work, rows: Sequence[Sequence[Tensor]], scalars: Scalars
) -> Callable[[], Tensor]:
    """What steps rows of parameters, gradients and states, and returns the sums of the metrics.

    Args:
        spec: the kernel, which takes all moments as float32.
        work: what the rows are of.
        rows: of every parameter it, its gradient and its states in the order of `update.states`.
        scalars: of the rows.
    """
    given = _Given(scalars.table(spec), scalars.live, scalars.first(spec))
    return lambda: _step(spec, work, rows, given)


def _step(spec: Elementwise, work: Work, rows: Sequence[Sequence[Tensor]], given: _Given) -> Tensor:
    device = rows[0][0].device
    sums = torch.zeros(len(rows), spec.sum_count, dtype=torch.float64, device=device)
    pieces: list[_Piece] = []
    room = size = CHUNK.get(device.type, DEVICE_CHUNK)
    for k, row in enumerate(rows):
        dense, moments = _sorted(work, row)
        flat = [None if t is None else t.contiguous() for t in dense]
        for start in range(0, row[0].numel(), size):
            piece = _cut(k, flat, moments, start, start + size)
            if piece.size > room:
                _run(spec, work, pieces, given, sums)
                pieces, room = [], size
            pieces.append(piece)
            room -= piece.size
        if any(t is not u for t, u in zip(dense, flat, strict=True)):
            _run(spec, work, pieces, given, sums)
            pieces, room = [], size
            _copy_back(spec, dense, flat)
    _run(spec, work, pieces, given, sums)
    return sums


def _sorted(work: Work, row: Sequence[Tensor]) -> tuple[list[Tensor | None], list[Stored]]:
    """The kernel's tensors of a row, None for moments in blocks; and those."""
    _, _, rule, arith, _, _ = work
    names = tuple(update.states(rule, arith))
    states = dict(zip(names, row[len(row) - len(names) :], strict=True))
    dense: list[Tensor | None] = [*row[: len(row) - len(names)]]
    moments = []
    for name in update.states(rule, arith.inside):
        if update.block_storage(rule, arith, name) is None:
            dense.append(states[name])
        else:
            dense.append(None)
            moments.append(Stored.of(name, states))
    return dense, moments


def _cut(
    row: int, flat: Sequence[Tensor | None], moments: Sequence[Stored], start: int, stop: int
) -> _Piece:
    assert flat[0] is not None
    end = min(stop, flat[0].numel())
    dense = [None if t is None else t.view(-1).narrow(0, start, end - start) for t in flat]
    return _Piece(row, start, dense, [m.part(start, end) for m in moments])


def _copy_back(
    spec: Elementwise, dense: Sequence[Tensor | None], flat: Sequence[Tensor | None]
) -> None:
    for field, t, u in zip(spec.fields, dense, flat, strict=True):
        if field.written and t is not None and u is not None and t is not u:
            t.copy_(u)


def _run(
    spec: Elementwise, work: Work, pieces: Sequence[_Piece], given: _Given, sums: Tensor
) -> None:
    """Step some pieces at once."""
    if not pieces:
        return
    rule = work[2]
    # Every piece begins a block of its own, and what lies between them is 0.
    counts = [eight_bits.blocks(piece.size) for piece in pieces]
    shape = (sum(counts), BLOCK)
    wide = [sums.new_zeros(shape, dtype=torch.float32) for _ in pieces[0].moments]
    parts = [_parts(x, counts, pieces) for x in wide]
    for k, mine in enumerate(parts):
        eight_bits.load([piece.moments[k] for piece in pieces], mine)
    rows = [_filled(piece.dense, mine) for piece, *mine in zip(pieces, *parts, strict=True)]
    owners = table_of([piece.row for piece in pieces], torch.int64)
    scalars = given.table.index_select(0, to_device(owners, given.table.device))
    first: list[int] = []
    if given.first:
        first = [given.first[piece.row] + piece.start for piece in pieces]
    elif spec.random:
        # The table is on the device where a GradScaler's scale is there.
        starts = table_of([piece.start for piece in pieces])
        scalars[:, -1] += to_device(starts, scalars.device)
    found = update.update_(spec, rows, scalars, given.live, first)
    for k, (x, mine) in enumerate(zip(wide, parts, strict=True)):
        moments = [piece.moments[k] for piece in pieces]
        counted = bool(spec.sum_count) and moments[0].name == rule.second
        lost = eight_bits.store(moments, mine, eight_bits.largest(x), counted, given.live)
        if lost is not None:
            # What the kernel counts is what float32 loses.
            found = torch.cat([found.narrow(1, 0, spec.sum_count - 1), lost], 1)
    if spec.sum_count:
        sums.index_add_(0, to_device(owners, sums.device), found)


def _parts(x: Tensor, counts: Sequence[int], pieces: Sequence[_Piece]) -> list[Tensor]:
    """The stretches of a tensor of blocks that belong to pieces."""
    found = torch.split(x, list(counts))
    return [t.view(-1).narrow(0, 0, piece.size) for t, piece in zip(found, pieces, strict=True)]


def _filled(dense: Sequence[Tensor | None], moments: Sequence[Tensor]) -> list[Tensor]:
    """A row of the kernel."""
    rest: Iterator[Any] = iter(moments)
    return [next(rest) if t is None else t for t in dense]
