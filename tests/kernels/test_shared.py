"""Exact: long rows by plan, on any number of threads, have the bits of the operators.

Caught mutants: shares that a second call finds used up; rooms of fewer threads than come; blocks of
one row taken for rows; a count of one item alone; a child that calls its parent's threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mcf
from mcf.kernels import registry
from mcf.kernels.algorithms.primitives import ZERO, rn
from mcf.kernels.elementwise import Elementwise, Field
from mcf.kernels.fold import BLOCK, product_fold
from mcf.kernels.formats import FP64
from mcf.kernels.operators import ADD, kernel
from tests.helpers import assert_all_same_bits, assert_same_bits

pytest.importorskip("numba", reason="needs Numba")

from mcf.kernels.numba.cpu import SERIAL
from mcf.kernels.numba.loops import prepared
from mcf.kernels.numba.runtime import team

if not team.is_native():
    pytest.skip("this build of torch has no GNU OpenMP", allow_module_level=True)

CPU = torch.device("cpu")


def _pair(seed: int, *shape: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    first, second = torch.randint(-(2**50), 2**50, (2, *shape), generator=generator).double()
    return [first, second * 2.0**-60]


def _places(tensors: Any) -> list[int]:
    return [t.data_ptr() for t in tensors]


@pytest.mark.sampled
@pytest.mark.parametrize("shape", [(1, BLOCK + 1), (1, 3 * BLOCK + 7), (3, 2 * BLOCK), (70, 1000)])
def test_folds_of_long_rows(threads: int, shape: tuple[int, int]) -> None:
    spec = product_fold(FP64, 2, 2, 2)
    call = registry.on(CPU).prepare_fold(spec, *shape, CPU)
    assert isinstance(call, prepared.LongFold)
    for seed in range(2):
        x, y = (_pair(seed + k, *shape) for k in (0, 7))
        out = torch.empty(spec.state, shape[0], dtype=torch.float64)
        call(_places(x + y), out.data_ptr())
        with mcf.executor("torch"):
            expected = registry.fold(spec, [x, y])
        assert_same_bits(out, expected, f"{threads} threads, {shape}")


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("shape", [(1, 70, 33, 130), (5, 33, 17, 40), (70, 1000, 1, 1)])
def test_products_of_many_elements(threads: int, shape: tuple[int, int, int, int]) -> None:
    batch, rows, inner, columns = shape
    spec = product_fold(FP64, 2, 2, 2)
    call = registry.on(CPU).prepare_product(spec, shape, CPU)
    assert isinstance(call, prepared.Call)
    assert call.shared
    for seed in range(2):
        x, y = _pair(seed, batch, rows, inner), _pair(seed + 7, batch, inner, columns)
        out = torch.empty(spec.state, batch, rows, columns, dtype=torch.float64)
        call(_places(x + y), out.data_ptr())
        with mcf.executor("torch"):
            expected = registry.product(spec, x, y)
        assert_same_bits(out, expected, f"{threads} threads, {shape}")


REDUCTIONS: dict[str, Callable[[Any], Tensor]] = {
    "dot": lambda x: torch.dot(x, x.flip(0)),
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.mean(),
    "norm": lambda x: x.norm(),
    "scaled norm": lambda x: (x * 2.0**-500).norm(),
    "var": lambda x: x.var(),
    "std": lambda x: x.std(),
}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_of_long_rows(name: str) -> None:
    x = mcf.MCFTensor(_pair(3, BLOCK + 77))
    found = [REDUCTIONS[name](x) for _ in range(2)]
    with mcf.executor("torch"):
        expected = REDUCTIONS[name](x)
    for each in found:
        assert_all_same_bits(each.components, expected.components, name)


def test_elements_of_many_items(threads: int) -> None:
    count = 2 * SERIAL + 3
    x, y = (_pair(seed, count) for seed in (1, 2))
    spec = kernel(ADD, FP64, 2, 2)
    launch = registry.prepare(spec, [[x[0]] * 6])
    assert launch is not None
    call = launch.row(np.ones((1, len(spec.scalars))))
    assert isinstance(call, prepared.Call)
    assert call.shared
    for a, b in ((x, y), (y, y)):
        out = [torch.empty(count, dtype=torch.float64) for _ in range(2)]
        assert call(_places([*out, *a, *b])) is None
        with mcf.executor("torch"):
            expected = mcf.MCFTensor(a) + mcf.MCFTensor(b)
        assert_all_same_bits(out, expected.components, f"{threads} threads")


def _double(x):  # type: ignore[no-untyped-def]
    return (rn(x + x),)


def _is_negative(x):  # type: ignore[no-untyped-def]
    return (x < ZERO,)


COUNTING = Elementwise(
    name="counting",
    function=_double,
    results=("y",),
    fields=(Field("y", FP64, read=False, written=True), Field("x", FP64)),
    stores=(("y", "y"),),
    arithmetic=FP64,
    sums=_is_negative,
    sum_count=1,
    counts=1,
)


def test_counts_of_all_items(threads: int) -> None:
    x = torch.arange(2 * SERIAL, dtype=torch.float64)
    y = torch.empty_like(x)
    launch = registry.prepare(COUNTING, [[y, x]])
    assert launch is not None
    call = launch.row(np.ones((1, 0)))
    assert isinstance(call, prepared.Call)
    assert call.shared
    for place in (None, 0, SERIAL, None, len(x) - 1):
        given = x.clone()
        if place is not None:
            given[place] = -1.0
        assert call(_places([y, given])) == (0.0 if place is None else 1.0,)
        assert torch.equal(y, given + given)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_forked_children_call_no_thread() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        x = mcf.MCFTensor(_pair(5, 3 * BLOCK))
        expected = x.sum().tolist()
        child = os.fork()
        if child == 0:
            os._exit(0 if x.sum().tolist() == expected and team.words[1] == 1 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        torch.set_num_threads(before)
