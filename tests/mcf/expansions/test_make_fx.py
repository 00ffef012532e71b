"""`make_fx` follows expansion tensors that are arguments, and no result is a constant in silence.

What is refused, and components, gave the first argument's result for every other one before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import mcf
from tests.helpers import assert_all_same_bits

MODES = ("real", "fake", "symbolic")


def _two() -> tuple[Any, Any]:
    low = torch.tensor([1.0, -3.0]).double() * 2.0**-60
    x = mcf.from_components([torch.tensor([3.0, 5.0]).double(), low])
    return x, x * 3


FOLLOWED: dict[str, Callable[[Any], Any]] = {
    "arithmetic": lambda x: x * x - x.exp(),
    "a plain tensor": lambda x: x * torch.tensor([2.0, 3.0]).double(),
    "components": lambda x: x.components[1] * 2 + x.components[0],
}


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "mode"),
    # Torch asks for fake tensors beside fake ones.
    [(n, m) for n in FOLLOWED for m in MODES if (n, m) != ("a plain tensor", "fake")],
)
@pytest.mark.usefixtures("on_torch")
def test_arguments_are_followed(name: str, mode: str) -> None:
    x, other = _two()
    graph = make_fx(FOLLOWED[name], tracing_mode=mode)(x)
    got, expected = (
        [*y.components] if isinstance(y, mcf.MCFTensor) else [y]
        for y in (graph(other), FOLLOWED[name](other))
    )
    assert_all_same_bits(got, expected, name)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.usefixtures("on_torch")
def test_others_are_refused(mode: str) -> None:
    x, y = _two()
    for f in (lambda a: a + y, lambda a: torch.cat([a, y]), lambda a: torch.where(a > 1, a, y)):
        with pytest.raises(RuntimeError, match="all expansion tensors as arguments"):
            make_fx(f, tracing_mode=mode)(x)
    graph = make_fx(lambda a, b: a + b)(x, y)
    assert_all_same_bits(graph(y, y).components, (y + y).components)
