"""Operands on two devices, as in torch: without dimensions they come along, others are refused.

The device "meta" stands for one beside the CPU: it has shapes, dtypes and no numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mcf

X = mcf.tensor([0.5, 2.0], terms=2)
FAR = X.to("meta")
ONE = mcf.tensor("0.1", terms=2)
SPARSE = torch.tensor([0.0, 1.0]).to_sparse()

Pair = Callable[[Any, Any], Any]
OPERATIONS: dict[str, Pair] = {
    "add": lambda x, y: x + y,
    "power": lambda x, y: x**y,
    "less": lambda x, y: x < y,
    "equal": lambda x, y: x == y,
    "unequal": lambda x, y: x != y,
    "maximum": torch.maximum,
    "atan2": torch.atan2,
    "remainder": lambda x, y: x % y,
    "where": lambda x, y: torch.where(torch.ones(2, dtype=torch.bool, device=x.device), x, y),
    "lerp": lambda x, y: torch.lerp(x, x, y),
    "in place": lambda x, y: x.clone().mul_(y),
    "fma": lambda x, y: mcf.fma(x, y, x),
}
each = pytest.mark.parametrize("name", OPERATIONS)


@each
def test_no_dimensions_come_along(name: str) -> None:
    for one in (ONE, ONE.to_plain()):
        assert OPERATIONS[name](FAR, one).device.type == "meta"


@each
def test_dimensions_do_not(name: str) -> None:
    # A TypeError would make `==` say False, and `<` say that there is none.
    with pytest.raises(RuntimeError, match="device"):
        OPERATIONS[name](X, FAR)


def test_results_are_not_moved() -> None:
    for write in (
        lambda: torch.add(X, X, out=FAR.clone()),
        lambda: torch.log(X, out=FAR.clone()),
        lambda: ONE.clone().mul_(FAR[0]),
    ):
        with pytest.raises(RuntimeError, match="moved silently"):
            write()


@pytest.mark.parametrize("name", ["add", "equal", "less"])
def test_sparse_operands_are_named(name: str) -> None:
    with pytest.raises(RuntimeError, match=r"sparse_coo; .*to_dense"):
        OPERATIONS[name](X, SPARSE)
