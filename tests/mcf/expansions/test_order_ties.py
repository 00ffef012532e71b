"""Exact: sorts by value, stable, however many elements agree in how many components.

Caught mutants: runs of equal first components left as they are; runs that go on into the next row;
an unstable exchange; one pass of exchanges too few; the lower components not turned for a
descending order; NaN at the wrong end of `topk`.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch

import mcf
from mcf.expansions.ops.order import order

# Other executors have a loop, which `tests/kernels/test_sorting.py` compares with this.
pytestmark = pytest.mark.usefixtures("on_torch")


def _tensor(shape: tuple[int, ...], terms: int, values: int, seed: int) -> mcf.MCFTensor:
    """Few different components, so that most elements are tied in some; both forms of a tie."""
    g = torch.Generator().manual_seed(seed)
    whole = torch.randint(-values, values + 1, shape, generator=g).double()
    parts = [whole]
    for k in range(1, terms):
        low = torch.randint(-2, 3, shape, generator=g).double() * 2.0 ** (-60 * k)
        parts.append(torch.where(parts[0] == 0, 0.0 * low, low))
    if terms > 1:
        # 1 and half an ulp, the same number from both sides.
        for value, low in ((1.0, 2.0**-53), (1 + 2.0**-52, -(2.0**-53))):
            here = torch.randint(0, 9, shape, generator=g) == 0
            parts[0] = torch.where(here, value, parts[0])
            parts[1] = torch.where(here, low, parts[1])
            parts[2:] = [torch.where(here, 0.0, c) for c in parts[2:]]
    for special in (math.nan, math.inf, -math.inf, -0.0):
        here = torch.randint(0, 20, shape, generator=g) == 0
        parts = [torch.where(here, special if c is parts[0] else 0.0, c) for c in parts]
    return mcf.MCFTensor([c.contiguous() for c in parts])


def _value(x: mcf.MCFTensor, k: int) -> Any:
    c = [p[k].item() for p in x.components]
    if not math.isfinite(c[0]):
        return (1 if c[0] > 0 else -1, 0) if math.isinf(c[0]) else (2, 0)
    return 0, mcf.MCFTensor([p[k] for p in x.components]).to_fractions()


def _expected(row: mcf.MCFTensor, descending: bool) -> list[int]:
    values = [_value(row, k) for k in range(row.shape[0])]

    def compare(a: int, b: int) -> int:
        less = -1 if values[a] < values[b] else int(values[a] > values[b])
        return (-less if descending else less) or a - b

    return sorted(range(len(values)), key=functools.cmp_to_key(compare))


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("short", [0, 16])
@pytest.mark.parametrize("terms", [1, 2, 3])
def test_ties(terms: int, short: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way to sort runs, along each dimension."""
    monkeypatch.setattr(order, "_SHORT", short or -1)
    # Runs of some ten elements, and of two or three.
    for seed, values in enumerate((2, 40)):
        x = _tensor((3, 90), terms, values, seed)
        for descending in (False, True):
            want = torch.tensor([_expected(row, descending) for row in x])
            for tensor, dim, wanted in ((x, -1, want), (x.mT, 0, want.mT)):
                found = tensor.sort(dim=dim, descending=descending)
                assert torch.equal(found.indices, wanted)
                assert torch.equal(tensor.argsort(dim, descending), wanted)
                kept = [c.gather(dim, wanted) for c in tensor.components]
                for got, c in zip(found.values.components, kept, strict=True):
                    assert torch.equal(
                        got.contiguous().view(torch.int64), c.contiguous().view(torch.int64)
                    )
            for k in (1, 3, 9, 11):
                for row, order_of_row in zip(x, want, strict=True):
                    top = row.topk(k, largest=descending)
                    assert torch.equal(top.indices, order_of_row[:k])
        for row in x:
            number = row[~row.isnan()]
            assert number.argmin() == _expected(number, False)[0]
            assert number.argmax() == _expected(number, True)[0]


def test_topk_among_nan() -> None:
    first = torch.full((40,), math.nan).double()
    first[5], first[7] = 1.0, 2.0
    x = mcf.MCFTensor([first, torch.zeros(40).double()])
    assert x.topk(3).indices.tolist() == [0, 1, 2]
    assert x.topk(3, largest=False).indices.tolist() == [5, 7, 0]
    assert x.topk(5, largest=False).indices.tolist() == x.argsort()[:5].tolist()


def test_under_vmap() -> None:
    x = _tensor((3, 40), 2, 3, 7)
    assert torch.equal(torch.func.vmap(lambda row: row.argsort())(x), x.argsort(-1))
    assert torch.equal(torch.func.vmap(lambda row: row.argmax())(x), x.argmax(-1))
