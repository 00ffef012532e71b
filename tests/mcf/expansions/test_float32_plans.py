"""Exact: few numbers of float32 by plan have the bits of their operators, which go without one.

Caught mutants: partial sums of float32 registers; a mean's quotient or a root after the rounding;
numbers of a variance that are widened and not made the nearest expansions; elements moved as if
they were float64; keys of three components that are not canonical; a plan of one choice of
registers for another.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import mcf
from mcf.expansions.launch import calls
from tests.mcf.expansions.inputs import hard

F = torch.nn.functional
CALLS: dict[str, Callable[[Any], list[Any]]] = {
    "sum": lambda x: [x.sum(), x.sum(0), x.mT.sum(0), x.trace()],
    "sums": lambda x: [
        x.sum(), x.sum(0), x.sum(1, True), x.mean(), x.mean(-1), x[:1, :1].sum(), x.mT.mean(0),
        x.trace(), x[0, 0].mean(), x[:, ::3].sum((0, 1)),
    ],
    "products": lambda x: [
        x @ x.mT, x @ x[0], x[0] @ x.mT, torch.addmm(x[:, :5], x, x.mT), F.linear(x, x),
        F.linear(x, x, x[:, 0]), torch.matmul(x, x.mT, out=x.new_empty(5, 5)),
    ],
    "moments": lambda x: [
        x.var(), x.std(), x.norm(), torch.dot(x[0], x[1]), x.var(0), x.std(1, keepdim=True),
        x.norm(dim=0), x[:1, :1].var(correction=0), x.mT.std(0, correction=0),
        x.var(1, correction=12), x[0, 0].std(correction=0),
    ],
    "rows": lambda x: [
        x.amax(), x.amin(0), *x.max(1), x.argmax(), x.argmin(1, True), *x.sort(0),
        *x.mT.sort(1, True), *x.topk(3), *x.median(0), *x.kthvalue(2, 1), *x.cummax(0),
        *x.cummin(1), x.argsort(1), x.cumsum(0), x.prod(1), x[0, 0].amax(), x.median(),
    ],
}  # fmt: skip


# Those whose kernels are few.
EVERYDAY = ("rows",)


def tensors(dtype: torch.dtype, terms: int) -> list[mcf.MCFTensor]:
    """Ties and gaps, the ends of the range, and what is no number."""
    found = []
    for k, rows in enumerate((slice(15, 75), slice(0, 60), slice(60, 120))):
        x = mcf.MCFTensor([c[rows].reshape(5, 12).clone() for c in hard(dtype, terms, 120, terms)])
        x[1, 3:5], x[:, 3] = x[1, 2], x[:, 8]
        if k == 2:
            x[2, 2], x[0, 1], x[0, 2], x[4, :3], x[4, 1] = math.nan, math.inf, -math.inf, 0.0, -0.0
        found.append(x)
    return found


def bits(x: Any) -> list[Tensor]:
    """As integers; which NaN there is is the processor's choice."""
    if not isinstance(x, mcf.MCFTensor):
        return [x]
    return [torch.where(c.isnan(), math.nan, c.double()).view(torch.int64) for c in x.components]


@pytest.mark.parametrize(
    ("name", "terms"),
    [
        pytest.param(name, terms, marks=[pytest.mark.slow] * (terms != 2 or name not in EVERYDAY))
        for name in CALLS
        for terms in (1, 2, 3, 4)
    ],
)
def test_plans_have_the_bits_of_operators(
    name: str, terms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = calls._calls
    kept.clear()
    xs = tensors(torch.float32, terms)
    got = [[CALLS[name](x), CALLS[name](x)][1] for x in xs]
    assert sum(plan is not None for plan in kept.values()) >= (0 if terms == 1 else 2)
    monkeypatch.setattr(calls, "watched", lambda: True)
    kept.clear()
    for x, found in zip(xs, got, strict=True):
        for k, (a, b) in enumerate(zip(found, CALLS[name](x), strict=True)):
            assert (type(a), a.dtype, a.shape) == (type(b), b.dtype, b.shape)
            for p, q in zip(bits(a), bits(b), strict=True):
                assert torch.equal(p, q), (name, terms, k)
    kept.clear()


@pytest.mark.usefixtures("on_torch")
def test_other_formats_registers_and_devices_have_no_plan() -> None:
    [x, *_] = tensors(torch.float32, 2)
    for each in (x[:1, :1].bfloat16(), x.to("meta")):
        calls._calls.clear()
        each.sum(), each @ each.mT, each.cummax(0)
        assert not any(call is not None for call in calls._calls.values())


@pytest.mark.slow
def test_registers_are_those_that_are_chosen() -> None:
    x = mcf.MCFTensor([torch.ones(3), torch.full((3,), 2.0**-40)])
    x.components[0][1] = 2.0**-24
    wide = [x.sum(), x.mean()]
    with mcf.registers("float32"):
        narrow = [x.sum(), x.mean()]
        with mcf.executor("torch"):
            expected = [x.sum(), x.mean()]
    for a, b in zip(narrow, expected, strict=True):
        assert all(map(torch.equal, bits(a), bits(b)))
    for a, b in zip(wide, [x.sum(), x.mean()], strict=True):
        assert all(map(torch.equal, bits(a), bits(b)))
    y = x.clone().requires_grad_()
    assert (y @ y).requires_grad
    assert y.var().requires_grad
    assert torch.equal(torch.func.vmap(torch.sum)(x[None]), wide[0][None])
