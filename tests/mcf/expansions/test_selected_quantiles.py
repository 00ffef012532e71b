"""Exact: quantiles of one row by rank have the bits and derivatives of those of the row in order.

Caught mutants: a rank that is one off; the derivative lost; elements that are NaN counted.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mcf.expansions.ops.order import ranks
from mcf.expansions.ops.reductions import quantiles
from tests.helpers import assert_all_same_bits
from tests.mcf.expansions.test_ranks import _crowd, _numbers

NAN = float("nan")


def _found(x: Any) -> list[Any]:
    """Values and derivatives of some quantiles, and an index."""
    y = x.clone().requires_grad_()
    several = torch.tensor([0.125, 0.75], dtype=torch.float64)
    found = [y.quantile(0.3), y.nanquantile(several), y.nanmedian(), y.nanmedian(0).values]
    kept = y.nanquantile(0.5, dim=0, keepdim=True, interpolation="higher")
    (grad,) = torch.autograd.grad(sum(f.sum() for f in (*found, kept)), y)
    return [*found, kept, grad, y.nanmedian(0, keepdim=True).indices]


@pytest.mark.usefixtures("on_torch")
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_quantiles(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MANY", 32), ("SAMPLE", 16), ("MARGIN", 0)):
        monkeypatch.setattr(ranks, name, value)
    x: Any = (_numbers, _crowd)[seed](torch.float64, 2, seed)
    x = x[x.isfinite()]
    with_nan = torch.cat([x[:40], x[:3] * NAN, x[40:]])
    for given in (with_nan, *((x, x[:50] * NAN) if seed else ())):
        expected = _found(given)
        with monkeypatch.context() as patch:
            patch.setattr(quantiles, "MANY", 32)
            for got, want in zip(_found(given), expected, strict=True):
                parts = [getattr(t, "components", [t]) for t in (got, want)]
                assert_all_same_bits(*parts, "by rank")
