"""What torch says of arguments' dimensions and kinds is said of expansions, too.

Caught mutants: a product that is broadcast to what is added to it; vectors beside matrices in
`cross`; `renorm` of a vector; a bound that torch takes for a number, rounded to one or refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mcf
from tests.helpers import assert_alike

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("on_torch")]

PLAIN = (torch.arange(6.0, dtype=torch.float64) - 2).reshape(2, 3)
OURS = mcf.tensor(PLAIN, 2, PLAIN.dtype)

CALLS: dict[str, Callable[[Any], Any]] = {
    "addmm 0": lambda x: torch.addmm(x[0, 0], x, x.T),
    "addmm 1": lambda x: torch.addmm(x[0, :2], x, x.T),
    "addmm 3": lambda x: torch.addmm(x[None, :, :2], x, x.T),
    "addmm other": lambda x: torch.addmm(x, x, x.T),
    "addmm left": lambda x: torch.addmm(x[:, :2], x[None], x.T),
    "addmm_": lambda x: x[0, :2].clone().addmm_(x, x.T),
    "addmv 1": lambda x: torch.addmv(x[:, 0], x, x[1]),
    "addmv 2": lambda x: torch.addmv(x[:1, :2], x, x[1]),
    "addbmm 2": lambda x: torch.addbmm(x[:, :1], x[None], x.T[None]),
    "addbmm 3": lambda x: torch.addbmm(x[None, :, :2], x[None], x.T[None]),
    "baddbmm 2": lambda x: torch.baddbmm(x[:, :2], x[None], x.T[None]),
    "baddbmm 4": lambda x: torch.baddbmm(x[None, None, :, :2], x[None], x.T[None]),
    "addr 1": lambda x: torch.addr(x[0], x[:, 0], x[1]),
    "addr 3": lambda x: torch.addr(x[None], x[:, 0], x[1]),
    "addr of a matrix": lambda x: torch.addr(x, x[:, :1], x[1]),
    "cross 1": lambda x: torch.linalg.cross(x[:1], x),
    "cross vector": lambda x: torch.linalg.cross(x[0], x),
    "cross vector behind": lambda x: torch.cross(x, x[1], dim=1),
    "cross dim": lambda x: torch.linalg.cross(x, x, dim=2),
    "cross two": lambda x: torch.linalg.cross(x, x, dim=0),
    "cross of numbers": lambda x: torch.linalg.cross(x[0, 0], x[0, 0]),
    "old cross": lambda x: torch.cross(x, x[:1]),
    "old cross of the input": lambda x: torch.cross(x.new_ones(1, 3), x.new_ones(3, 3)),
    "old cross of the other": lambda x: torch.cross(x.new_ones(3, 3), x.new_ones(1, 3)),
    "old cross of none": lambda x: torch.cross(x[:, :2], x[:, :2]),
    "renorm 0": lambda x: torch.renorm(x[0, 0], 2, 0, 1.0),
    "renorm 1": lambda x: x[0].renorm(2, 0, 1.0),
    "renorm_ 1": lambda x: x[0].clone().renorm_(2, 0, 1.0),
    "renorm_": lambda x: x.clone().renorm_(2, 0, 1.0),
    "where of numbers": lambda x: torch.where(x, x, x),
    "x.where of numbers": lambda x: x.where(x, 0.5),
    "masked_fill of numbers": lambda x: x.masked_fill(x, 0.5),
    "masked_fill_ of numbers": lambda x: x.clone().masked_fill_(x, 0.5),
    "copy_ of a number": lambda x: x.clone().copy_(0.1),
    "copy_ of True": lambda x: x.clone().copy_(True),
    "copy_ of a list": lambda x: x.clone().copy_([1.0, 2.0, 3.0]),
    "clamp vector and number": lambda x: x.clamp(x[0], 2),
    "clamp number and vector": lambda x: torch.clamp(x, 0.0, max=x[0]),
    "clamp": lambda x: x.clamp(x[0, 1], 2),
    "clamp by name": lambda x: torch.clamp(x, min=-1, max=x[0, 1]),
    "clip_": lambda x: x.clone().clip_(x[0, 1], 2.5),
    "clamp out": lambda x: torch.clamp(x, x[0, 1], 2.5, out=torch.empty_like(x)),
    "clamp recorded": lambda x: x.clone().requires_grad_().clamp(x[0, 1], 2.5).detach(),
    "clamp by a recorded number": lambda x: x.clamp(x[0, 1].clone().requires_grad_(), 2),
}


WHOLE = torch.tensor([[1, 2, 0], [3, 0, 5]])
# Beside whole numbers and truths, which become the nearest expansion.
BESIDE: dict[str, Callable[[Any, Any], Any]] = {
    "xlogy": torch.xlogy,
    "xlogy behind": lambda x, i: torch.xlogy(i, x.abs()),
    "xlog1py": torch.special.xlog1py,
}


@pytest.mark.parametrize("name", BESIDE)
def test_whole_numbers_stand_beside(name: str) -> None:
    for whole in (WHOLE, WHOLE > 1):
        got = BESIDE[name](OURS, whole).to_plain()
        # torch has no float64 result of some pairs of kinds.
        expected = BESIDE[name](PLAIN, whole.to(torch.float64))
        assert torch.allclose(got, expected, 1e-14, 0.0, equal_nan=True)


def _said(call: Callable[[Any], Any], x: Any) -> Any:
    try:
        return call(x)
    except (RuntimeError, IndexError, TypeError) as error:
        return type(error)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", CALLS)
def test_shapes_and_errors_are_torchs(name: str) -> None:
    got, expected = (_said(CALLS[name], x) for x in (OURS, PLAIN))
    if isinstance(expected, type):
        assert got is expected
    else:
        assert_alike(got.to_plain(), expected, name)


def test_a_bound_beside_a_number_keeps_all_components() -> None:
    low = mcf.tensor("0.1", 2, torch.float64)
    x = mcf.tensor(["0.01", "0.5"], 2, torch.float64)
    for y in (x, x.clone().requires_grad_()):
        for got in (y.clamp(low, 2), torch.clip(y, min=low, max=2.0), y.clamp(0, low)):
            assert low.components[1].item() in got.detach().components[1].tolist()
