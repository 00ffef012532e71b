"""Exact: order, extremes and running sums by plan are what the torch executor finds.

Caught mutants: the last of equal extremes or the first running one, NaN that does not win the
smallest, a median that passes over NaN, rows that are taken for columns, a dimension of size 1 that
is not the last taken for another, columns whose results are left in rows, results that two calls
share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

import mcf
from mcf.expansions.launch import calls
from tests.helpers import assert_all_same_bits
from tests.mcf.expansions.inputs import hard

TASKS: dict[str, Callable[[Any, int, bool], Any]] = {
    "sort": lambda x, d, k: x.sort(d, descending=k),
    "argsort": lambda x, d, k: x.argsort(d, k),
    "topk": lambda x, d, k: x.topk(x.shape[d], d, largest=k),
    "max": lambda x, d, k: x.max(d, k),
    "min": lambda x, d, k: x.min(d, k),
    "argmax": lambda x, d, k: x.argmax(d, k),
    "argmin": lambda x, d, k: x.argmin(None),
    "amax": lambda x, d, k: x.amax((), k),
    "amin": lambda x, d, k: x.min(),
    "amax of some": lambda x, d, k: x.amax(d, k),
    "kthvalue": lambda x, d, k: x.kthvalue(1 + x.shape[d] // 3, d, k),
    "median": lambda x, d, k: x.median(d, k),
    "median of all": lambda x, d, k: x.median(),
    "cummax": lambda x, d, k: x.cummax(d),
    "cummin": lambda x, d, k: x.cummin(d),
    "cumsum": lambda x, d, k: x.cumsum(d),
    "cumprod": lambda x, d, k: x.cumprod(d),
    "prod": lambda x, d, k: x.prod(d, k),
    "prod of all": lambda x, d, k: x.prod(),
}


def _parts(found: Any) -> list[Tensor]:
    """The plain tensors of a result."""
    each = found if isinstance(found, tuple) else (found,)
    return [p for t in each for p in (t.components if isinstance(t, mcf.MCFTensor) else (t,))]


def _numbers(dtype: torch.dtype, terms: int, count: int) -> Any:
    """Hard numbers, each some times and in both forms of a tie, zeros, infinities."""
    parts = [c[:16] for c in hard(dtype, terms, 16, 5)]
    ends = [
        [0.0, -0.0, math.inf, -math.inf, 1.0, 1 + 2.0**-52],
        [0, 0, 0, 0, 2.0**-53, -(2.0**-53)],
    ]
    for k, c in enumerate(parts):
        more = torch.tensor(ends[k] if k < 2 and terms > 1 else [0.0] * 6, dtype=dtype)
        parts[k] = torch.cat([c, more])
    some = torch.randint(len(parts[0]), (count,), generator=torch.Generator().manual_seed(count))
    return mcf.MCFTensor([c[some] for c in parts])


# Each task is a loop to compile.
EVERY_DAY = ("sort", "max", "amax", "cumsum", "prod")


def _check(
    dtype: torch.dtype, terms: int, shapes: Any, names: Iterable[str] = tuple(TASKS)
) -> None:
    for shape in shapes:
        x = _numbers(dtype, terms, math.prod(shape)).reshape(shape)
        with_nan = x.clone()
        with_nan.reshape(-1)[math.prod(shape) // 2] = math.nan
        for name in names:
            for given in (x, with_nan, x.mT if x.ndim > 1 else x.flip(0)):
                for dim in (-1, 0, 1)[: 2 * x.ndim - 1]:
                    for keep in (False, True):
                        with mcf.executor("torch"):
                            expected = TASKS[name](given, dim, keep)
                        for _ in range(2):
                            got = TASKS[name](given, dim, keep)
                            assert type(got) is type(expected)
                            assert_all_same_bits(_parts(got), _parts(expected), (name, shape))


def test_pairs() -> None:
    calls._calls.clear()
    _check(torch.float64, 2, [(5, 3)], EVERY_DAY)
    x = _numbers(torch.float64, 2, 24).reshape(2, 3, 4)
    for dims in ((0, 2), (-1, 0, 1), (1,)):
        with mcf.executor("torch"):
            expected = x.amin(dims), x.transpose(0, 1).amax(dims, True)
        got = x.amin(dims), x.transpose(0, 1).amax(dims, True)
        assert_all_same_bits(_parts(got), _parts(expected), dims)
    assert any(plan is not None for plan in calls._calls.values())


@pytest.mark.slow
@pytest.mark.parametrize("terms", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_other_formats(dtype: torch.dtype, terms: int) -> None:
    _check(dtype, terms, [(1,), (70,), (3, 40), (2, 3, 1)])


def test_results_are_new() -> None:
    x = _numbers(torch.float64, 2, 9)
    first = x.sort()
    kept = [c.clone() for c in _parts(tuple(first))]
    x.flip(0).contiguous().sort()
    assert_all_same_bits(_parts(tuple(first)), kept, "sort")


def test_what_has_no_place_is_refused() -> None:
    x = _numbers(torch.float64, 2, 4)
    for wrong in (lambda: x.sort(1), lambda: x.cumsum(1), lambda: x.max(-2), lambda: x.cummax(3)):
        with pytest.raises(IndexError, match="imension"):
            wrong()
    for k in (0, 5):
        with pytest.raises(RuntimeError, match="k must be 1 to 4"):
            x.kthvalue(k)


@pytest.mark.slow
def test_derivatives() -> None:
    x = _numbers(torch.float64, 2, 9)[:9].nan_to_num(posinf=3.0, neginf=-3.0)
    slopes = []
    for executor in ("torch", "numba"):
        with mcf.executor(executor):
            a: Any = x.detach().clone().requires_grad_()
            (
                a.sort().values * a.cumsum(0) + a.amax() * a.cummax(0).values + a.median()
            ).sum().backward()
            slopes.append(a.grad)
    assert_all_same_bits(slopes[1].components, slopes[0].components, "gradient")
