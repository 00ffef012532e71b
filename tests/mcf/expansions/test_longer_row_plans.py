"""Exact: few numbers of three and four components by plan are sorted as the torch executor sorts.

Caught mutants: a tie in a second component whose third breaks it the other way taken for its own
key; an infinity's lower components compared.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import mcf
from mcf.expansions.launch import calls, row_functions
from tests.helpers import assert_all_same_bits
from tests.mcf.expansions.inputs import hard

# 1 + half a gap, less and more than what a fourth and a third component add, in several forms.
TIES = [
    [1.0, 2.0**-53, -(2.0**-110), 0.0],
    [1.0 + 2.0**-52, -(2.0**-53), -(2.0**-110), 0.0],
    [1.0, 2.0**-53, 2.0**-110, 0.0],
    [1.0 + 2.0**-52, -(2.0**-53), 2.0**-110, 0.0],
    [1.0, 2.0**-54, 2.0**-107, 2.0**-170],
    [1.0, 2.0**-54, 2.0**-107, -(2.0**-170)],
]

TASKS: list[Any] = [
    lambda x: tuple(x.sort()),
    lambda x: (x.amax(), x.argmax()),
    lambda x: tuple(x.cummax(0)),
    lambda x: (x.cumsum(0), x.median()),
]


def _values(parts: Any) -> list[Any]:
    return [p for t in parts for p in (t.components if isinstance(t, mcf.MCFTensor) else (t,))]


@pytest.mark.slow
@pytest.mark.parametrize("terms", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_order(terms: int) -> None:
    usual = mcf.MCFTensor([c[:8] for c in hard(torch.float64, terms, 24, 7)])
    usual = torch.where(usual.isfinite(), usual, 0)
    ties = mcf.MCFTensor([torch.tensor([t[k] for t in TIES]).double() for k in range(terms)])
    ended = torch.cat([usual, usual.new_tensor([math.inf, -math.inf, math.nan, -0.0])])
    calls._calls.clear()
    for x in (usual, torch.cat([ties, usual]), ended, usual.flip(0)):
        # Each is a loop to be compiled.
        for function in TASKS if terms == 4 else TASKS[:1]:
            got = function(x)
            with mcf.executor("torch"):
                expected = function(x)
            assert_all_same_bits(_values(got), _values(expected), (terms, x))
    assert any(plan is not None for plan in calls._calls.values())
    assert row_functions._are_keys(mcf.tensor([1.5, 2.5], terms=terms).components)
    assert not row_functions._are_keys(ties.components)
