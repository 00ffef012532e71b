"""torch.compile of functions that read components and numbers, and of what comes after these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mcf
from tests.helpers import assert_all_same_bits

READS: dict[str, Callable[[Any], Any]] = {
    "components of an operand": lambda x: x * x.components[0] + x.components[1],
    "components of a result": lambda x: x * (x * 3).components[1],
    # The rest runs operator by operator, each a graph of its own: the sum was the product's again.
    "a count": lambda x: x * len((x + 1).components) + 2 - 1 / x,
    "terms of a result": lambda x: x + (x * 2).terms,
    "item of an operand": lambda x: x * x[:1].item(),
    "item of a result": lambda x: x * x.sum().item() - x,
    "float": lambda x: float((x * 3).sum()) * x,
    "bool": lambda x: x * 2 if bool(x.sum() > 0) else x,
    # Operator by operator too, and torch.compile looked into ours.
    "a mask": lambda x: x[x > 4] * 2,
    "unique": lambda x: x.unique() * 2,
}


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("name", READS)
@pytest.mark.usefixtures("on_torch")
def test_what_reads_numbers_ends_a_graph(name: str) -> None:
    torch._dynamo.reset()
    x = mcf.from_components(
        [torch.tensor([3.0, 5.0, 7.0]).double(), torch.tensor([1.0, -3.0, 5.0]).double() * 2.0**-60]
    )
    got = torch.compile(READS[name], backend="eager")(x)
    assert_all_same_bits(got.components, READS[name](x).components, name)
    torch._dynamo.reset()
