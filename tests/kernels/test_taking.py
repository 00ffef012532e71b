"""Exact: native steps that take elements by number, copy, choose and look do what torch does.

Caught mutants: a number below 0 that counts from the end where torch refuses it; one beyond the end
that is read; a stride or an offset left out; an operand that is broadcast read as it lies; -0 for 0
where a number is looked at; `any` for `all`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mcf.kernels.bit_functions import copied, simple, spread
from mcf.kernels.sequence import Bound, Together
from mcf.kernels.taking import expected, taken, takes

DTYPES = (torch.float64, torch.float32, torch.bool, torch.int64, torch.int32)
NUMBERS = torch.arange(120).reshape(4, 5, 6)


def _made(steps: list[Bound] | None) -> bool:
    assert steps is not None
    return Together(steps)()


def _layouts(dtype: torch.dtype) -> list[Tensor]:
    x = (NUMBERS % 2 if dtype is torch.bool else NUMBERS).to(dtype)
    return [x, x.transpose(0, 2), x[1:, ::2, 1::2], x[:, :1].expand(4, 5, 6)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_elements_by_number(dtype: torch.dtype) -> None:
    for x in _layouts(dtype):
        for dim in range(3):
            most = x.shape[dim]
            whole = torch.arange(240)
            for k, at in enumerate((whole[:7], whole[:24].reshape(3, 8)[:, ::3], whole[5])):
                for wraps in (False, True):
                    index = at % most - (most if wraps else 0)
                    wanted = x[(*[slice(None)] * dim, index)]
                    out = torch.empty(wanted.shape, dtype=dtype)
                    assert takes(x, index, out)
                    assert _made([taken(x, dim, index, out, along=False, wraps=wraps)]), k
                    assert torch.equal(out, wanted)
            size = [2, 3, 4]
            index = (torch.arange(24) * 7 % most).reshape(size[::-1]).permute(2, 1, 0)
            index = index.narrow(dim, 0, 2) if index.shape[dim] > 2 else index
            small = [
                min(a, b) if d != dim else a
                for d, (a, b) in enumerate(zip(index.shape, x.shape, strict=True))
            ]
            index = index[tuple(slice(n) for n in small)]
            out = torch.empty(index.shape, dtype=dtype)
            assert _made([taken(x, dim, index, out, along=True, wraps=False)])
            assert torch.equal(out, torch.gather(x, dim, index))


def test_numbers_that_are_none() -> None:
    x, out = torch.arange(5.0), torch.empty(3)
    for bad, wraps in (([0, 5, 1], True), ([0, -1, 1], False), ([-6, 0, 1], True)):
        index = torch.tensor(bad)
        assert not _made([taken(x, 0, index, out, along=False, wraps=wraps)])
        index[:] = 2
        step = taken(x, 0, index, out, along=False, wraps=wraps)
        assert _made([step])
        index[1] = bad[1] if bad[1] else -6
        assert not _made([step])
    assert not takes(x, torch.tensor([0], dtype=torch.int32), out)
    assert not takes(x, torch.tensor([0]), torch.empty(6)[::2])
    assert not takes(x, torch.tensor([0]), torch.empty(3, dtype=torch.float64))
    assert not takes(x.to(torch.float16), torch.tensor([0]), torch.empty(3, dtype=torch.float16))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_copies_of_any_layout(dtype: torch.dtype) -> None:
    for x in _layouts(dtype):
        for size in (x.shape, (2, *x.shape)):
            out = torch.empty(size, dtype=dtype)
            assert _made([copied(x, out)])
            assert torch.equal(out, x.expand(size))


CASES: dict[str, tuple[Any, ...]] = {
    "where": (NUMBERS % 2 == 0, NUMBERS.double()[0], torch.tensor(-0.0, dtype=torch.float64)),
    "bitwise_xor": (NUMBERS % 2 == 0, torch.tensor(True)),
    "bitwise_and": ((NUMBERS % 2 == 0).transpose(0, 2), (NUMBERS % 3 == 0)[0, 0, :4]),
    "neg": (NUMBERS.double().transpose(0, 1),),
    "isnan": (torch.tensor([0.0, torch.nan, 1.0]).expand(2, 3),),
    "ne": (NUMBERS, torch.tensor(7)),
    "eq": (NUMBERS[:, 0], NUMBERS[0, :4]),
}


@pytest.mark.parametrize("name", CASES)
def test_functions_of_bits_with_operands_that_broadcast(name: str) -> None:
    given = CASES[name]
    wanted = getattr(torch, name)(*given)
    out = torch.empty(wanted.shape, dtype=wanted.dtype)
    assert _made(spread(name, given, out))
    assert torch.equal(out, wanted)
    if wanted.is_floating_point():
        assert torch.equal(out.signbit(), wanted.signbit())
    assert spread(name, given, torch.empty(*wanted.shape, 2, dtype=wanted.dtype)[..., 0]) is None


def test_what_has_no_native_step() -> None:
    floats, out = torch.zeros(3), torch.empty(3, dtype=torch.bool)
    assert simple("ne", [floats, floats], out) is None
    assert simple("eq", [floats.bool(), floats.bool()], out) is None
    assert simple("all", [floats], out[:1].reshape(())) is None
    assert simple("all", [out], out) is None
    assert spread("neg", [floats.half()], torch.empty(3, dtype=torch.float16)) is None


def test_all_and_any() -> None:
    for pattern in ([True] * 3, [False] * 3, [False, True, False], [True], [False]):
        x = torch.tensor(pattern)
        for name in ("all", "any"):
            out = torch.empty((), dtype=torch.bool)
            assert _made(spread(name, [x], out))
            assert out.item() is getattr(x, name)().item()


def test_a_look_at_a_number() -> None:
    for dtype, value, others in (
        (torch.float64, 0.0, (-0.0, 1.0, torch.nan)),
        (torch.float32, -1.5, (1.5, 0.0)),
        (torch.bool, True, (False,)),
        (torch.int64, -3, (3, 0)),
    ):
        x = torch.tensor(value, dtype=dtype)
        raw = x.numpy().tobytes()
        step = expected(x, int.from_bytes(raw, "little", signed=len(raw) == 8))
        assert _made([step])
        for other in others:
            x.fill_(other)
            assert not _made([step]), (value, other)
        x.fill_(value)
        assert _made([step])
