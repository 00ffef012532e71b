"""Shapes and strides change no bit: empty, single, odd, strided, expanded, broadcast, threaded.

The reference for each case is the torch executor on contiguous copies of the broadcast arguments.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import mcf
from mcf.kernels import BF16, FP16, FP32, FP64
from mcf.kernels.layouts import SLAB, is_dense
from mcf.kernels.numba.cpu import ITEM, SERIAL
from tests.helpers import assert_all_same_bits, assert_same_bits, bits
from tests.helpers.adversarial import Draw
from tests.helpers.executors import EXECUTORS, on_each_executor

DTYPES = [BF16.dtype, FP16.dtype, FP32.dtype, FP64.dtype]
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
# Triton's block is 1024.
SIZES = [0, 1, 2, 3, 1023, 1024, 1025, 3 * 1024 + 7, ITEM - 1, ITEM, ITEM + 1]


def hard(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> Tensor:
    fmt = {d: f for d, f in zip(DTYPES, (BF16, FP16, FP32, FP64), strict=True)}[dtype]
    draw = Draw(fmt, seed)
    count = torch.Size(shape).numel()
    return draw.tensor(draw.numbers(draw.exponents(count))).reshape(shape)


def check(function: Callable[..., tuple[Tensor, ...]], *arguments: Tensor | tuple[Tensor, ...]):
    """The function on these very tensors gives the reference bits and leaves them unchanged."""
    flat = [t for a in arguments for t in (a if isinstance(a, tuple) else (a,))]
    before = [t.clone() for t in flat]
    shape = torch.broadcast_shapes(*(t.shape for t in flat))
    copies = [
        tuple(t.expand(shape).clone(memory_format=torch.contiguous_format) for t in a)
        if isinstance(a, tuple)
        else a.expand(shape).clone(memory_format=torch.contiguous_format)
        for a in arguments
    ]
    results = function(*arguments)
    with mcf.executor("torch"):
        reference = function(*copies)
    assert_all_same_bits(results, reference, function.__name__)
    assert_all_same_bits(flat, before, "arguments")
    inputs = {t.untyped_storage().data_ptr() for t in flat if t.numel()}
    for r in results:
        assert r.shape == shape
        assert r.is_contiguous()
        assert not r.numel() or r.untyped_storage().data_ptr() not in inputs


@pytest.mark.sampled(every=12)
@by_dtype
@pytest.mark.parametrize("size", SIZES)
@on_each_executor
def test_sizes(executor: str, size: int, dtype: torch.dtype) -> None:
    a, b = hard(size, dtype=dtype), hard(size, dtype=dtype, seed=1)
    with mcf.executor(executor):
        check(mcf.two_sum, a, b)


SHAPES: dict[str, Callable[[int], Tensor]] = {
    "0-dim": lambda k: hard(1, seed=k).reshape(()),
    "no rows": lambda k: hard(0, 3, seed=k).reshape(0, 3),
    "no columns": lambda k: hard(0, seed=k).reshape(3, 0),
    "transposed": lambda k: hard(31, 45, seed=k).T,
    "every second": lambda k: hard(2 * 1023, seed=k)[::2],
    "a column": lambda k: hard(1500, 3, seed=k)[:, 1],
    "inner slice": lambda k: hard(20, 30, seed=k)[2:-3, 5:-1],
    "expanded": lambda k: hard(1, 77, seed=k).expand(40, 77),
    "expanded scalar": lambda k: hard(1, seed=k).expand(1500),
    "channels last": lambda k: hard(2, 3, 5, 7, seed=k).to(memory_format=torch.channels_last),
    "permuted": lambda k: hard(5, 6, 7, seed=k).permute(2, 0, 1),
    "size-1 dimensions": lambda k: hard(6, 1, 7, seed=k).transpose(0, 1),
    "offset": lambda k: hard(1001, seed=k)[1:],
}


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("layout", SHAPES)
@on_each_executor
def test_strides(executor: str, layout: str) -> None:
    a, b, c = (SHAPES[layout](k) for k in range(3))
    dense = b.clone(memory_format=torch.contiguous_format)
    with mcf.executor(executor):
        check(mcf.two_sum, a, b)
        check(mcf.two_sum, a, dense)
        check(mcf.grow, (dense, b), c)
        check(mcf.split, a)


@on_each_executor
def test_one_tensor_for_every_argument(executor: str) -> None:
    a = hard(3000)
    with mcf.executor(executor):
        check(mcf.two_sum, a, a)
        check(mcf.mul, (a, a), (a, a))
        check(mcf.grow, (a[1:], a[:-1]), a[1:])


@on_each_executor
def test_broadcasting(executor: str) -> None:
    row, column, scalar = hard(45), hard(31, 1, seed=1), hard(1, seed=2).reshape(())
    with mcf.executor(executor):
        check(mcf.two_sum, row, column)
        check(mcf.two_prod, scalar, column)
        check(mcf.add, (row, scalar), (column, row))
        check(mcf.two_sum, hard(0), hard(1, 1))


@pytest.mark.parametrize(
    "executor",
    [
        *EXECUTORS[:2],
        pytest.param("triton", marks=[*EXECUTORS[2].marks, pytest.mark.slow]),
    ],
)
def test_strided_and_larger_than_a_slab(executor: str) -> None:
    # Copied part by part: along the first dimension, and along the last.
    with mcf.executor(executor):
        for shape in ((3, SLAB // 2 + 5), (SLAB // 2 + 5, 3)):
            check(mcf.two_sum, hard(*shape).T, hard(*shape, seed=1).T.contiguous())


def test_negative_view() -> None:
    # A lazy negation keeps the unnegated numbers in memory.
    z = torch.complex(torch.zeros(4), torch.tensor([1.0, -2.0, 0.0, 3.0]))
    a = z.conj().imag
    assert a.is_neg()
    for size in (4, 1):
        s, _ = mcf.two_sum(a[:size], torch.zeros(size))
        assert s.tolist() == a[:size].tolist()


@pytest.mark.parametrize("size", [SERIAL, SERIAL + 1, 5 * ITEM, 200_001])
def test_number_of_threads(set_threads: Callable[[int], None], size: int) -> None:
    a, b, c = (hard(size, seed=k) for k in range(3))
    results = []
    for count in (1, 2, 3):
        set_threads(count)
        with mcf.executor("numba"):
            results.append(mcf.grow((a, b), c))
    with mcf.executor("torch"):
        reference = mcf.grow((a, b), c)
    for got in results:
        assert_all_same_bits(got, reference)


@pytest.mark.slow
def test_strides_under_threads(set_threads: Callable[[int], None]) -> None:
    set_threads(2)
    a = hard(300, 700).T
    with mcf.executor("numba"):
        check(mcf.two_sum, a, hard(300, 700, seed=1).T)


@pytest.mark.parametrize(
    ("tensor", "dense"),
    [
        (torch.zeros(3, 4), True),
        (torch.zeros(3, 4).T, True),
        (torch.zeros(2, 3, 4).permute(1, 2, 0), True),
        (torch.zeros(3, 1, 4)[:, :, :], True),
        (torch.zeros(()), True),
        (torch.zeros(0, 3), True),
        (torch.zeros(6)[::2], False),
        (torch.zeros(1).expand(3), False),
        (torch.zeros(4, 4)[:, :3], False),
        (torch.zeros(4).as_strided((2, 2), (1, 1)), False),
    ],
)
def test_is_dense(tensor: Tensor, dense: bool) -> None:
    assert is_dense(tensor) is dense


def test_poison_would_be_seen() -> None:
    # The checks above rest on it: memory that no kernel wrote is NaN and differs from a result.
    unwritten = torch.empty(4, dtype=torch.bfloat16)
    assert unwritten.isnan().all()
    with pytest.raises(AssertionError, match="4 of 4 elements differ"):
        assert_same_bits(unwritten, torch.zeros(4, dtype=torch.bfloat16))
    assert bits(torch.tensor([-0.0])) != bits(torch.tensor([0.0]))
