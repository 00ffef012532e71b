"""Exact: a program has the bits of its steps one by one, wherever its operands are.

Caught mutants: a place whose address stays that of an earlier call; the index of another tensor;
the room of a call that still runs; a number below the range taken for zero; an earlier count kept.
"""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mcf.kernels import program as programs
from mcf.kernels import registry
from mcf.kernels.formats import FP64
from mcf.kernels.operators import ADD, MUL, kernel
from mcf.kernels.program import Launch, Move, Program, Within

pytest.importorskip("numba", reason="needs Numba")


def _launch(operation: Any, like: Tensor) -> Any:
    spec = kernel(operation, FP64, 2, 2)
    found = registry.prepare(spec, [[like] * 6])
    assert found is not None
    return found.row(np.ones((1, len(spec.scalars))))


def _pair(seed: int, *shape: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(-(2**40), 2**40, shape, generator=generator).double()
    return [first, first.flip(-1) * 2.0**-70]


def _places(*tensors: Tensor) -> list[int]:
    return [t.data_ptr() for t in tensors]


def _program(count: int) -> Program:
    """x * y + x with the first operand's elements in reverse order."""
    like = torch.empty(count, dtype=torch.float64)
    x, y, out, turned, product = ([2 * k, 2 * k + 1] for k in range(5))
    found = Program.of(
        [
            Move(x, turned, count, np.arange(count)[::-1]),
            Launch(_launch(MUL, like), product + turned + y),
            Launch(_launch(ADD, like), out + product + turned),
        ],
        6,
        [8 * count] * 4,
    )
    assert found is not None
    return found


def _expected(x: list[Tensor], y: list[Tensor]) -> list[Tensor]:
    like = torch.empty_like(x[0])
    turned = [c.flip(0) for c in x]
    product, out = ([torch.empty_like(like) for _ in range(2)] for _ in range(2))
    _launch(MUL, like)(_places(*product, *turned, *y))
    _launch(ADD, like)(_places(*out, *product, *turned))
    return out


def test_steps_together_are_steps_one_by_one() -> None:
    program = _program(5)
    for seed in range(3):
        x, y = _pair(seed, 5), _pair(10 + seed, 5)
        out = [torch.empty_like(c) for c in x]
        assert program(_places(*x, *y, *out))
        assert all(map(torch.equal, out, _expected(x, y)))


def test_calls_at_once_have_rooms_of_their_own() -> None:
    program = _program(5)
    x, y, a, b = _pair(1, 5), _pair(2, 5), _pair(3, 5), _pair(4, 5)
    out, other = ([torch.empty_like(c) for c in x] for _ in range(2))
    call = program._call

    def meanwhile(place: int) -> None:
        # As another thread does between this call's beginning and its end.
        program._call = call
        assert program(_places(*a, *b, *other))
        call(place)

    program._call = meanwhile
    assert program(_places(*x, *y, *out))
    assert all(map(torch.equal, out, _expected(x, y)))
    assert all(map(torch.equal, other, _expected(a, b)))


def test_moves_of_words_and_of_bytes() -> None:
    x, truth = torch.arange(12.0, dtype=torch.float64).reshape(3, 4), torch.arange(7) % 3 == 0
    turned, copy = torch.empty(4, 3, dtype=torch.float64), torch.zeros(7, dtype=torch.bool)
    at = torch.tensor([6, 0, 0, 3, 5, 1, 2])
    index = np.arange(12).reshape(3, 4).T
    program = Program.of([Move([0], [1], 12, index), Move([2], [3], 7, at.numpy(), size=1)], 4)
    assert program is not None
    assert program(_places(x, turned, truth, copy))
    assert torch.equal(turned, x.T)
    assert torch.equal(copy, truth[at])


@pytest.mark.parametrize(("given", "made"), [(8, 4), (4, 8), (4, 4)])
def test_moves_convert_sizes(given: int, made: int) -> None:
    """Mutants: an element converted at its own index instead of the source's, or not converted."""
    dtypes = {4: torch.float32, 8: torch.float64}
    x = (torch.arange(12, dtype=dtypes[given]) / 7).reshape(3, 4)
    out = torch.empty(4, 3, dtype=dtypes[made])
    to = 0 if given == made else made
    program = Program.of([Move([0], [1], 12, np.arange(12).reshape(3, 4).T, given, to)], 2)
    assert program is not None
    assert program(_places(x, out))
    assert torch.equal(out, x.T.to(out.dtype))


def test_what_follows_numbers_out_of_range_is_left_out() -> None:
    least, most = 2.0**-120, 2.0**60
    program = Program.of([Within([0, 1], 3, least, most), Move([0], [2], 3)], 3)
    assert program is not None
    usual = torch.tensor([0.0, -least, most], dtype=torch.float64)
    for bad in (2 * most, -torch.inf, torch.nan, least * (1 - 2.0**-53), 5e-324, -0.0):
        for k in range(2):
            given = [usual.clone(), usual.clone()]
            given[k][1] = bad
            out = torch.full((3,), 7.0, dtype=torch.float64)
            done = bad == 0
            assert program(_places(*given, out)) is done
            assert torch.equal(out, given[0] if done else torch.full_like(out, 7.0))
    # The next call is not the last one's.
    assert program(_places(usual, usual, out))


def test_other_launches_make_no_program() -> None:
    assert Program.of([Launch(lambda addresses: None, [0])], 1) is None


def test_rooms_of_all_programs_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 256
    gc.collect()  # programs that are garbage by now give their rooms back before, not meanwhile
    monkeypatch.setattr(programs, "_spare", 2 * 4 * 8 * count)
    made = [_program(count) for _ in range(3)]
    assert [p._kept for p in made] == [True, True, False]
    x, y = _pair(1, count), _pair(2, count)
    out = [torch.empty_like(c) for c in x]
    for p in made:
        for _ in range(2):
            assert p(_places(*x, *y, *out))
            assert all(map(torch.equal, out, _expected(x, y)))
    assert [len(p._free) for p in made] == [1, 1, 0]
    del p, made
    gc.collect()
    assert programs._spare == 2 * 4 * 8 * count
