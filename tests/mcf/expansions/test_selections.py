"""Exact: selections in one kernel have the bits that torch's selections give them.

Caught mutants: `larger` with < in place of <=, with NaN of the wrong side, with the sign of the
exchanged difference; a `where` of the leading components alone; a bound that its format rounds
taken as rounded; `signed` as x < 0; a truth value that is broadcast or is no bool by address.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import mcf
from mcf.expansions.launch import calls
from tests.helpers import assert_all_same_bits
from tests.helpers.modes import Seen
from tests.mcf.expansions.inputs import hard

SELECTIONS: dict[str, Callable[..., Any]] = {
    "maximum": lambda c, x, y: torch.maximum(x, y),
    "minimum": lambda c, x, y: torch.minimum(x, y),
    "fmax": lambda c, x, y: torch.fmax(x, y),
    "fmin": lambda c, x, y: torch.fmin(x, y),
    "clamp": lambda c, x, y: torch.clamp(x, y, y.flip(0)),
    "where": torch.where,
    "abs": lambda c, x, y: x.abs(),
    "copysign": lambda c, x, y: torch.copysign(x, y),
    "masked_fill": lambda c, x, y: x.masked_fill(c, 0.25),
}


@pytest.fixture(autouse=True)
def no_plans() -> Iterator[None]:
    calls._calls.clear()
    yield
    calls._calls.clear()


def _operands(dtype: torch.dtype, terms: int) -> tuple[Tensor, mcf.MCFTensor, mcf.MCFTensor]:
    """All pairs of hard numbers, zeros of both signs, infinities, NaN with payloads, and ties."""
    some = hard(dtype, terms, 16, 5)
    last = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, 1.0, -1.0], dtype=dtype)
    first = torch.cat([some[0], last])
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[first.element_size()]
    payload = torch.tensor([math.nan], dtype=dtype).view(whole) + 64
    parts = [torch.cat([first, payload.view(dtype)])]
    for c in some[1:]:
        low = torch.tensor([0, -0.0, 0, 0, 0, 2.0**-60, -(2.0**-60), 0, 0], dtype=torch.float64)
        parts.append(torch.cat([c, low.to(dtype) if len(parts) == 1 else torch.zeros(9).to(dtype)]))
    pairs = torch.tensor(list(itertools.product(range(len(parts[0])), repeat=2)))
    x, y = (mcf.MCFTensor([c[pairs[:, k]] for c in parts]) for k in range(2))
    return pairs.sum(1) % 3 == 0, x, y


def _check(dtype: torch.dtype, terms: int, names: Any) -> None:
    c, x, y = _operands(dtype, terms)
    short = mcf.MCFTensor(y.components[:1])
    for name in names:
        for a, b in ((x, y), (short, x), (x, short), (x, y.components[0])):
            with mcf.executor("torch"):
                expected = SELECTIONS[name](c, a, b)
            for _ in range(2):
                got = SELECTIONS[name](c, a, b)
                assert_all_same_bits(got.components, expected.components, name)
    assert any(plan is not None for plan in calls._calls.values())


@pytest.mark.slow
def test_pairs_of_float64() -> None:
    _check(torch.float64, 2, ["maximum", "fmin", "where", "abs", "copysign"])


@pytest.mark.slow
@pytest.mark.parametrize("terms", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_all_formats(dtype: torch.dtype, terms: int) -> None:
    _check(dtype, terms, SELECTIONS)


def test_float16_keeps_the_bits_of_nan() -> None:
    """A register would set a NaN's quiet bit."""
    nan = torch.tensor([0x7D01, 0x3C00], dtype=torch.int16).view(torch.float16)
    x = mcf.MCFTensor([nan, torch.zeros(2, dtype=torch.float16)])
    got = torch.where(torch.tensor([True, True]), x, x)
    assert_all_same_bits(got.components, x.components, "where")


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("bound", [0, -0.0, 0.1, 3, 2**60 + 1, math.inf, math.nan, 1e300])
def test_numbers(bound: float) -> None:
    """A bound that the tensor's format does not hold is compared as it is, and then rounded."""
    low, high = torch.tensor([0.1, 0.1, 1.0, -0.0]), torch.tensor([1e-9, 2.0**-33, 0, 0])
    x = mcf.MCFTensor([low, high])
    found = []
    for executor in ("torch", "numba"):
        with mcf.executor(executor):
            results = [torch.maximum(x, mcf.tensor(bound, 2)), torch.clamp(x, bound, 7)]
            results += [x.clamp_min(bound), x.masked_fill(x > 0.05, bound)]
            found.append([*results, torch.where(x < 1, bound, x)])
    for a, b in zip(*found, strict=True):
        assert_all_same_bits(b.components, a.components, "number")


def test_conditions_that_are_no_plans() -> None:
    x = mcf.MCFTensor(hard(torch.float64, 2, 12, 3)).reshape(3, 4)
    y = x.flip(0)
    row = torch.tensor([True, False, True, False])
    conditions = {
        "broadcast": row,
        "one": torch.tensor(True),
        "larger": row.expand(2, 3, 4),
        "not contiguous": row.expand(3, 4),
    }
    for name, c in conditions.items():
        got = torch.where(c, x, y)
        parts = zip(x.components, y.components, strict=True)
        assert_all_same_bits(got.components, [torch.where(c, a, b) for a, b in parts], name)


def test_derivatives_are_torchs() -> None:
    _, x, y = (t[:9] for t in _operands(torch.float64, 2))
    slopes = []
    for executor in ("torch", "numba"):
        with mcf.executor(executor):
            a, b = x.detach().clone().requires_grad_(), y.detach().clone().requires_grad_()
            chosen = torch.where(a.detach() > 0, torch.maximum(a, b), torch.minimum(a, b))
            chosen.sum().backward()
            slopes.append((a.grad, b.grad))
    for one, other in zip(*slopes, strict=True):
        assert_all_same_bits(one.components, other.components, "gradient")


def test_modes_see_torchs_selections() -> None:

    mode = Seen()

    c, x, y = (t[:9] for t in _operands(torch.float64, 2))
    expected = torch.where(c, x, y)
    with mode:
        got = torch.where(c, x, y)
    assert mode.seen.count(torch.ops.aten.where.self) == 2
    assert_all_same_bits(got.components, expected.components, "under a mode")
    by_vmap = torch.func.vmap(torch.where)(c, x, y)
    assert_all_same_bits(by_vmap.components, expected.components, "vmap")
