"""Indexing by, of and with tensors of no dimension and of no element, against torch in float64.

Values, gradients and refusals: each function takes what torch takes, and raises where it does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import mcf
from tests.helpers.draws import bell

pytestmark = [
    pytest.mark.usefixtures("on_torch"),
    pytest.mark.filterwarnings("ignore:index_reduce.. is in beta"),
]

# Each function takes a tensor and an index.
TAKING: dict[str, Callable[..., Any]] = {
    "gather": lambda x, i, s: torch.gather(x, 0, i),
    "take_along_dim": lambda x, i, s: torch.take_along_dim(x, i, 0),
    "take_along_dim of all": lambda x, i, s: torch.take_along_dim(x, i),
    "take": lambda x, i, s: torch.take(x, i),
    "index_select": lambda x, i, s: torch.index_select(x, 0, i),
    "x[i]": lambda x, i, s: x[i],
    "scatter of a number": lambda x, i, s: torch.scatter(x, 0, i, 2.0),
    "index_fill": lambda x, i, s: torch.index_fill(x, 0, i, 2.0),
    "masked_select": lambda x, i, s: torch.masked_select(x, i == 0),
}
# And of a source.
PUTTING: dict[str, Callable[..., Any]] = {
    "scatter": lambda x, i, s: torch.scatter(x, 0, i, s),
    "scatter_add": lambda x, i, s: torch.scatter_add(x, 0, i, s),
    **{
        f"scatter_reduce {r} {own}": lambda x, i, s, r=r, own=own: torch.scatter_reduce(
            x, 0, i, s, r, include_self=own
        )
        for r, own in (("sum", True), ("prod", True), ("mean", False), ("amax", False))
    },
    "index_add": lambda x, i, s: torch.index_add(x, 0, i, s),
    "index_copy": lambda x, i, s: torch.index_copy(x, 0, i, s),
    "index_reduce": lambda x, i, s: torch.index_reduce(x, 0, i, s, "prod"),
    "index_put": lambda x, i, s: torch.index_put(x, (i,), s),
    "index_put accumulated": lambda x, i, s: torch.index_put(x, (i,), s, accumulate=True),
    "put": lambda x, i, s: x.put(i, s),
    "put accumulated": lambda x, i, s: x.put(i, s, True),
    "masked_scatter": lambda x, i, s: torch.masked_scatter(x, i == 0, s),
}
SHAPES, INDICES = ((), (2,), (0,)), ((), (1,), (0,), (2, 0))
SOURCES = ((), (1,), (0,), (2, 0))


def outcome(function: Any, x: Any, index: Any, source: Any) -> Any:
    """The shape, values and gradients, or that an error was raised."""
    x, source = (t.clone().requires_grad_() for t in (x, source))
    try:
        y = function(x, index, source)
    except (RuntimeError, IndexError):
        return "refused"
    weights = torch.arange(1.0, y.numel() + 1, dtype=torch.float64).reshape(y.shape)
    try:
        (y * weights).sum().backward()
    except (RuntimeError, IndexError):
        return "no derivative"
    grads = [None if t.grad is None else (t.grad.shape, t.grad.tolist()) for t in (x, source)]
    return y.shape, y.tolist(), grads


@pytest.mark.parametrize("name", [*TAKING, *PUTTING])
def test_indexing_of_few_dimensions_is_torchs(name: str) -> None:
    sources = SOURCES if name in PUTTING else SOURCES[:1]
    function = {**TAKING, **PUTTING}[name]
    taken = 0
    for shape, i, s in itertools.product(SHAPES, INDICES, sources):
        index = torch.zeros(i, dtype=torch.int64)
        plain = bell(shape, 1), bell(s, 2)
        wanted = outcome(function, plain[0], index, plain[1])
        found = outcome(
            function, *(mcf.tensor(t, 2, torch.float64) if t.is_floating_point() else t
                        for t in (plain[0], index, plain[1])),
        )  # fmt: skip
        # torch refuses some not before the derivative.
        assert found == wanted or wanted == "no derivative", (shape, i, s)
        taken += isinstance(wanted, tuple)
    assert taken >= 3
