"""A step whose moments are stored in blocks of 8 bits: read to float32, stepped, stored again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.kernels.elementwise import Elementwise
from mcf.kernels.tables import table_of, to_device
from mcf.optim import randomness
from mcf.optim.operator import update_
from mcf.optim.sharding.shards import is_sharded
from mcf.optim.step.bucket import Bucket
from mcf.optim.step.kernel import given_scalars, kernel, states
from mcf.optim.step.table import Table
from mcf.optim.storage import blocks
from mcf.optim.storage.blocks import BLOCK, Stored
from mcf.optim.storage.strategies import Strategy

# Elements stepped at a time: bounds the memory of their moments in float32, and keeps them in the
# caches of a CPU. Multiples of BLOCK.
CHUNK = {"cpu": 1 << 18}
DEVICE_CHUNK = 1 << 24


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


def check(where: str, p: Tensor, strategy: Strategy) -> None:
    """Raise for a part of a tensor that begins inside a block of the whole one."""
    offset, block = randomness.index_offset(p), strategy.block
    if offset % block:
        raise ValueError(
            f"{where} begins at element {offset} of a whole tensor, and moments of 8 bits are "
            f"stored in blocks of {block}; allowed are multiples of {block}"
        )


def check_layout(where: str, p: Tensor, strategy: Strategy) -> None:
    """Raise for a tensor that several processes share: also where its part begins at a block.

    So all of them raise alike, whatever each one has.
    """
    if strategy.block > 1 and is_sharded(p):
        raise TypeError(
            f"{where} is a DTensor, and precision={strategy.name!r} stores moments of 8 bits in "
            f"blocks of {strategy.block} elements of the whole tensor, which its parts may cut; "
            "allowed are plain tensors, and for DTensors precisions without such moments"
        )


class Chunked:
    """A `mcf.optim.step.launch.Launcher` of the step in float32, between reading and storing."""

    whole = False

    def __init__(self, bucket: Bucket, track_metrics: bool) -> None:
        """The kernel takes all moments as float32."""
        self._bucket = bucket
        self._spec = kernel(bucket.rule, bucket.arithmetic, track_metrics, bucket.form)
        self.names = given_scalars(self._spec)
        self.random = self._spec.random

    def direct(self, rows: Sequence[Sequence[Tensor]]) -> None:
        """There is nothing that could be kept."""

    def opaque(self, rows: Sequence[Sequence[Tensor]], table: Table) -> Callable[[], Tensor]:
        """See `mcf.optim.step.launch.Launcher`."""
        return lambda: _step(self._spec, self._bucket, rows, table)


def _step(
    spec: Elementwise, bucket: Bucket, rows: Sequence[Sequence[Tensor]], given: Table
) -> Tensor:
    device = rows[0][0].device
    sums = torch.zeros(len(rows), spec.sum_count, dtype=torch.float64, device=device)
    pieces: list[_Piece] = []
    room = size = CHUNK.get(device.type, DEVICE_CHUNK)
    for k, row in enumerate(rows):
        dense, moments = _sorted(bucket, row)
        flat = [None if t is None else t.contiguous() for t in dense]
        for start in range(0, row[0].numel(), size):
            piece = _cut(k, flat, moments, start, start + size)
            if piece.size > room:
                _run(spec, bucket, pieces, given, sums)
                pieces, room = [], size
            pieces.append(piece)
            room -= piece.size
        if any(t is not u for t, u in zip(dense, flat, strict=True)):
            _run(spec, bucket, pieces, given, sums)
            pieces, room = [], size
            _copy_back(spec, dense, flat)
    _run(spec, bucket, pieces, given, sums)
    return sums


def _sorted(bucket: Bucket, row: Sequence[Tensor]) -> tuple[list[Tensor | None], list[Stored]]:
    """The kernel's tensors of a row, None for moments in blocks; and those."""
    rule, arith = bucket.rule, bucket.arithmetic
    names = tuple(states(rule, arith))
    found = dict(zip(names, row[len(row) - len(names) :], strict=True))
    dense: list[Tensor | None] = [*row[: len(row) - len(names)]]
    moments = []
    kept = dict(rule.states)
    for name in states(rule, arith.inside):
        storage = rule.storage(name, arith) if name in kept else None
        if storage is None or storage.in_step is storage:
            dense.append(found[name])
        else:
            dense.append(None)
            moments.append(Stored.of(name, found))
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
    spec: Elementwise, bucket: Bucket, pieces: Sequence[_Piece], given: Table, sums: Tensor
) -> None:
    """Step some pieces at once."""
    if not pieces:
        return
    # Every piece begins a block of its own, and what lies between them is 0.
    counts = [blocks.blocks(piece.size) for piece in pieces]
    shape = (sum(counts), BLOCK)
    wide = [sums.new_zeros(shape, dtype=torch.float32) for _ in pieces[0].moments]
    parts = [_parts(x, counts, pieces) for x in wide]
    for k, mine in enumerate(parts):
        blocks.load([piece.moments[k] for piece in pieces], mine)
    rows = [_filled(piece.dense, mine) for piece, *mine in zip(pieces, *parts, strict=True)]
    owners = table_of([piece.row for piece in pieces], torch.int64)
    scalars = given.values.index_select(0, to_device(owners, given.values.device))
    first: list[int] = []
    if given.first:
        first = [given.first[piece.row] + piece.start for piece in pieces]
    elif spec.random:
        # The table is on the device where a GradScaler's scale is there.
        starts = table_of([piece.start for piece in pieces])
        scalars[:, -1] += to_device(starts, scalars.device)
    found = update_(spec, rows, scalars, given.live, first)
    for k, (x, mine) in enumerate(zip(wide, parts, strict=True)):
        moments = [piece.moments[k] for piece in pieces]
        # Of rules that count lost additions to a second moment, the last term.
        counted = spec.sum_count > 3 and moments[0].name in bucket.rule.seconds[:1]
        lost = blocks.store(moments, mine, blocks.largest(x), counted, given.live)
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
