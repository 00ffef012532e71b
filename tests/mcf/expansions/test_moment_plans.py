"""Exact: moments of few numbers by plan are those of the operators, bit for bit.

Caught mutants: a variance over the count, a root that is not scaled back, an exponent of the
smallest, a scaling of infinities, dimensions of which one is left out, the mean of one row for all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import mcf
from mcf.expansions.launch import calls
from tests.helpers import assert_all_same_bits
from tests.mcf.expansions.inputs import hard

MOMENTS: dict[str, Callable[[Any], Any]] = {
    "var": lambda x: x.var(correction=0),
    "var of 1.5": lambda x: x.var(None, correction=1.5),
    "std": lambda x: x.std(correction=0),
    "std kept": lambda x: x.std(tuple(range(x.ndim)), keepdim=True, correction=0.5),
    "std of all": lambda x: x.std(),
    "std of one dimension": lambda x: x.std(0, correction=0),
    "var and mean": lambda x: torch.var_mean(x, correction=0)[0],
    "norm": lambda x: x.norm(),
    "vector_norm": lambda x: torch.linalg.vector_norm(x, dim=-1, keepdim=True),
    "norm of columns": lambda x: torch.linalg.norm(x, dim=0),
    "var of another layout": lambda x: x.transpose(0, -1).var(-1, keepdim=True),
    "norm of another layout": lambda x: x.transpose(0, -1).norm(),
    "dot": lambda x: torch.dot(x.reshape(-1), x.flip(0).reshape(-1)),
}


def _check(terms: int, shapes: Any) -> None:
    for shape in shapes:
        count = math.prod(shape)
        parts = [c[:count] for c in hard(torch.float64, terms, max(count, 8), count)]
        kinds = {
            "hard": mcf.MCFTensor(parts),
            "usual": mcf.MCFTensor([c.clamp(-(2.0**30), 2.0**30) for c in parts]),
            "moderate": mcf.MCFTensor([c.clamp(-1, 1) * 2.0**-50 for c in parts]),
            "small": mcf.MCFTensor([c.clamp(-1, 1) * 2.0**-1000 for c in parts]),
            "zero": mcf.MCFTensor([c * 0 for c in parts]),
        }
        for last in (math.inf, math.nan):
            kinds[str(last)] = kinds["usual"].clone()
            kinds[str(last)][-1] = last
        for kind, x in kinds.items():
            for name, function in MOMENTS.items():
                with mcf.executor("torch"):
                    expected = function(x.reshape(shape))
                for _ in range(2):
                    got = function(x.reshape(shape))
                    assert got.shape == expected.shape
                    assert_all_same_bits(got.components, expected.components, (name, kind, shape))


def test_pairs() -> None:
    calls._calls.clear()
    _check(2, [(1,), (9,), (3, 4)])
    assert any(plan is not None for plan in calls._calls.values())


@pytest.mark.slow
@pytest.mark.parametrize("terms", [1, 3, 4])
def test_other_terms(terms: int) -> None:
    _check(terms, [(1,), (300,), (3, 4)])


@pytest.mark.slow
def test_derivatives() -> None:
    slopes = []
    for executor in ("torch", "numba"):
        with mcf.executor(executor):
            x: Any = mcf.tensor(["1.1", "2.3", "-4"]).requires_grad_()
            (x.var() + x.std() + x.norm() + torch.dot(x, x)).backward()
            slopes.append(x.grad)
    assert_all_same_bits(slopes[1].components, slopes[0].components, "gradient")


def test_plans_of_inference_mode_serve_outside() -> None:
    calls._calls.clear()
    x: Any = mcf.tensor(["1.1", "2.3", "-4"], 2, torch.float64)
    for function in MOMENTS.values():
        with torch.inference_mode():
            inside = function(x)
        assert_all_same_bits(function(x).components, inside.components, "outside")
