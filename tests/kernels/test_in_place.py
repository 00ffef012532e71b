"""Exact: results that lie on operands have the bits of results that lie apart, on any threads.

Caught mutants: a room shared by two threads, or by two calls; scalars left out; one number for all
read block by block; a block that counts written all the same; one block's count taken for all;
shares that a second call finds used up; results that lie half on an operand, on one of another size
or on each other taken for results on one.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mcf.kernels import registry
from mcf.kernels.elementwise import Elementwise
from mcf.kernels.formats import BF16, FP32, FP64, Format
from mcf.kernels.operators import ADD, FMA, MUL, RECIPROCAL, WHERE, Operation, kernel
from mcf.kernels.overlap import Place, Places
from tests.helpers import assert_all_same_bits
from tests.kernels.test_shared import COUNTING

pytest.importorskip("numba", reason="needs Numba")

from mcf.kernels.numba.cpu import SERIAL
from mcf.kernels.numba.loops import blocks_in_place


def _operand(fmt: Format, terms: int, count: int, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randint(1, 2 ** (fmt.p - 1), (terms, count), generator=generator).double()
    parts = [c.to(fmt.dtype) * 2.0 ** (-(fmt.p + 1) * k) for k, c in enumerate(whole)]
    if parts[0].numel() > 4:
        ends = torch.tensor([float("nan"), float("inf"), -0.0, 5e-324], dtype=torch.float64)
        parts[0][1:5] = ends.to(fmt.dtype)
    return parts


def _calls(spec: Elementwise, count: int) -> tuple[Any, Any]:
    """What applies a kernel to results that lie apart, and on operands."""
    like = torch.empty(count, dtype=torch.float64)
    launch = registry.prepare(spec, [[like] * len(spec.fields)])
    assert launch is not None
    scalars = np.ones((1, len(spec.scalars)))
    call = launch.in_place(scalars)
    assert isinstance(call, blocks_in_place.InPlace)
    return launch.row(scalars), call


def _places(tensors: Any) -> list[int]:
    return [t.data_ptr() for t in tensors]


def _check(
    operation: Operation, fmt: Format, terms: tuple[int, ...], count: int, uniform: str = ""
) -> None:
    spec = kernel(operation, fmt, *terms, uniform=frozenset(uniform))
    beside, on = _calls(spec, count)
    results = sum(f.written for f in spec.fields)
    for turn in range(2):
        groups = [
            _operand(fmt, n, 1 if name in uniform else count, 7 * turn + k)
            for k, (name, n) in enumerate(zip(operation.arguments, terms, strict=True))
        ]
        if operation is WHERE:
            groups[0] = [torch.arange(count) % 3 == turn]
        flat = [c for group in groups for c in group]
        expected = [torch.empty(count, dtype=fmt.dtype) for _ in range(results)]
        beside(_places([*expected, *flat]))
        for group in range(len(groups)):
            if len(groups[group]) < results or groups[group][0].dtype is not fmt.dtype:
                continue
            for order in (1, -1):
                given = [[c.clone() for c in g] for g in groups]
                target = given[group][:results][::order]
                if target[0].numel() == count:
                    assert on(_places([*target, *(c for g in given for c in g)])) == []
                    assert_all_same_bits(target, expected, f"{operation.name}, {count}, {group}")
        apart = [torch.empty_like(c) for c in expected]
        assert on(_places([*apart, *flat])) == []
        assert_all_same_bits(apart, expected, f"{operation.name}, {count}, apart")


@pytest.mark.parametrize("count", [1, 255, 256, 257, 5 * 256 + 7, 2 * SERIAL + 3])
def test_sizes_around_blocks(threads: int, count: int) -> None:
    _check(ADD, FP64, (2, 2), count)


KINDS: dict[str, tuple[Any, ...]] = {
    "a number": (MUL, FP64, (2, 1), 1000, "y"),
    "three operands": (FMA, FP64, (2, 2, 2), 1000),
    "a constant": (RECIPROCAL, FP64, (2,), 1000),
    "four components": (ADD, FP64, (4, 4), 1000),
    "truth values": (WHERE, FP64, (1, 2, 2), 2001),
    "choice of numbers": (WHERE, FP64, (1, 2, 2), 4001, "y"),
    "float32": (MUL, FP32, (2, 2), 2001),
    "bfloat16": (ADD, BF16, (2, 2), 2001),
}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", KINDS)
def test_kinds_of_kernels(name: str) -> None:
    operation, fmt, terms, count, *uniform = KINDS[name]
    _check(operation, fmt, terms, count, *uniform)


def test_what_is_counted_is_left(threads: int) -> None:
    count = 2 * SERIAL
    _, on = _calls(COUNTING, count)
    block = on._block
    for bad in ([], [0], [block - 1, block], [5 * block + 3, count - 1]):
        x = torch.arange(count, dtype=torch.float64)
        x[bad] = -1.0
        before = x.clone()
        left = on(_places([x, x]))
        starts = sorted({k // block * block for k in bad})
        assert left == [range(k, min(k + block, count)) for k in starts]
        expected = before + before
        for r in left:
            expected[r.start : r.stop] = before[r.start : r.stop]
        assert torch.equal(x, expected)


def test_calls_at_once_have_rooms_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    _, on = _calls(kernel(ADD, FP64, 2, 2), 1000)
    x, y, a, b = (_operand(FP64, 2, 1000, seed) for seed in range(4))
    expected, others = ([c.clone() for c in given] for given in (x, a))
    on(_places([*expected, *expected, *y]))
    on(_places([*others, *others, *b]))
    run = blocks_in_place.team.run

    def meanwhile(address: int, data: int, parts: int) -> None:
        # As another thread does between this call's beginning and its end.
        monkeypatch.setattr(blocks_in_place.team, "run", run)
        on(_places([*a, *a, *b]))
        run(address, data, parts)

    monkeypatch.setattr(blocks_in_place.team, "run", meanwhile)
    on(_places([*x, *x, *y]))
    assert_all_same_bits(x, expected, "the first call")
    assert_all_same_bits(a, others, "the second call")
    places = [place for place, _ in blocks_in_place._free[1]]
    assert len({*places}) == len(places) >= 2


def test_each_thread_has_a_room(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    """All threads come, one after the other, and each finds all blocks left."""
    _, on = _calls(kernel(ADD, FP64, 2, 2), 2 * SERIAL)
    x, y = (_operand(FP64, 2, 2 * SERIAL, seed) for seed in range(2))
    memory = np.zeros(blocks_in_place.THREAD * threads, np.int64)
    place = memory.ctypes.data
    monkeypatch.setattr(blocks_in_place, "_free", {threads: [(place, memory)]})

    def run(address: int, data: int, parts: int) -> None:
        place = data + 8 * len(on._words)
        shares = np.ctypeslib.as_array((ctypes.c_int64 * (8 * parts + 8)).from_address(place))
        left = shares[1:].copy()
        for _ in range(parts):
            shares[1:] = left
            blocks_in_place.team.native(address)(data)

    monkeypatch.setattr(blocks_in_place.team, "run", run)
    on(_places([*x, *x, *y]))
    rooms = memory.reshape(threads, -1)[:, blocks_in_place.TENSORS :][:, :2] - place
    size = 8 * blocks_in_place.THREAD
    assert (rooms // size).tolist() == [[k, k] for k in range(threads)]
    assert ((rooms + 8 * on._block) <= size * np.arange(1, threads + 1)[:, None]).all()


def test_where_results_lie() -> None:
    """Of ten elements: two results of 8 bytes, three operands of 8, one of 1, one number."""
    sizes, far = [8, 8, 8, 8, 8, 1, 0], 10_000
    apart = [far, 2 * far, 3 * far, 4 * far, 5 * far, 6 * far, 7 * far]

    def found(**moved: int) -> Place:
        given = [*apart]
        for name, address in moved.items():
            given["r0 r1 x y z truth number".split().index(name)] = address
        return Places(2, sizes, 10).of(given)

    assert found() is Place.APART
    assert found(x=far) is Place.ON
    assert found(x=2 * far, y=far, z=far) is Place.ON
    assert found(x=far + 80, y=far - 80, r1=far + 160) is Place.APART
    for shift in (-79, -8, 8, 79):
        assert found(x=far + shift) is Place.ACROSS
        assert found(x=far, y=2 * far + shift) is Place.ACROSS
    assert found(r1=far) is Place.ACROSS
    assert found(r1=far + 8) is Place.ACROSS
    assert found(truth=far) is Place.ACROSS
    assert found(truth=far - 10) is Place.APART
    assert found(number=far) is Place.ACROSS
    assert found(number=far + 72) is Place.ACROSS
    assert found(number=far + 80) is Place.APART
    assert found(number=far - 8) is Place.APART
