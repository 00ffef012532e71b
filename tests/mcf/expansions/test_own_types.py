"""Exact: results of a user's own type of expansion tensors have that type, as torch's have.

Caught mutants: results as they are; what is written to, or an operand among a list, made another
type; a gradient, which somebody else has stored, converted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mcf
from tests.helpers import assert_alike

pytestmark = pytest.mark.usefixtures("on_torch")


class Own(mcf.MCFTensor):
    """A type of its own."""


class Plain(torch.Tensor):
    """One of torch's."""


NUMBERS = torch.tensor([[1.0, 2.0], [3.0, 5.0]], dtype=torch.float64)
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "s + x": lambda s, x: s + x,
    "x + s": lambda s, x: x + s,
    "1 - s": lambda s, x: 1 - s,
    "s / x": lambda s, x: s / x,
    "x / s": lambda s, x: x / s,
    "exp": lambda s, x: s.exp(),
    "view": lambda s, x: s.T,
    "index": lambda s, x: s[0],
    "sum": lambda s, x: s.sum(),
    "named": lambda s, x: s.max(0).values,
    "named, of no operator": lambda s, x: torch.histogram(s, 3).bin_edges,
    "list": lambda s, x: s.unbind()[1],
    "cat": lambda s, x: torch.cat([x, s]),
    "where": lambda s, x: torch.where(NUMBERS > 1, x, s),
    "like": lambda s, x: torch.zeros_like(s),
    "to": lambda s, x: s.to(torch.float32),
    "detach": lambda s, x: s.detach(),
    "in place": lambda s, x: s.clone().mul_(2),
    "others in place": lambda s, x: x.clone().mul_(s),
    "back": lambda s, x: torch.atleast_1d((x, s))[0],
    "itself": lambda s, x: s.contiguous(),
    "linear algebra": lambda s, x: torch.linalg.det(s),
    "norm": lambda s, x: s.norm(),
    "split": lambda s, x: s.split(1)[0],
    "gelu": lambda s, x: torch.nn.functional.gelu(s),
}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", CALLS)
def test_results_have_the_type(name: str) -> None:
    x = mcf.tensor(NUMBERS, dtype=torch.float64)
    found = CALLS[name](Own(x.components), x)
    assert type(found) is Own
    assert type(x) is mcf.MCFTensor
    assert type(CALLS[name](NUMBERS.as_subclass(Plain), NUMBERS)) is Plain
    expected = CALLS[name](x, x)
    assert_alike(mcf.MCFTensor(found.components), mcf.MCFTensor(expected.components), "")


def test_a_graph_and_its_gradient() -> None:
    x = mcf.tensor(NUMBERS, dtype=torch.float64)
    s = Own(x.components).requires_grad_()
    total = (s * s).sum()
    assert type(total) is Own
    total.backward()
    # As torch's: it is what was stored, not the result of a function of s.
    assert type(s.grad) is mcf.MCFTensor
    assert_alike(s.grad, 2 * x, "")


def test_what_is_written_to_keeps_its_type() -> None:
    x = mcf.tensor(NUMBERS, dtype=torch.float64)
    s, kept = Own(x.components), x.clone()
    kept.add_(s)
    assert type(kept) is mcf.MCFTensor
    torch.add(x, s, out=kept)
    assert type(kept) is mcf.MCFTensor
    assert_alike(kept, 2 * x, "")
