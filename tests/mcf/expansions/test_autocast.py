"""Autocast leaves expansion tensors alone: the same bits inside as outside.

Caught mutant: functions called under autocast as torch calls them, products in bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mcf
from mcf.reductions.modular import multiply
from tests.helpers import assert_all_same_bits
from tests.helpers.draws import bell

# Values; the executors have the same bits by other tests.
pytestmark = pytest.mark.usefixtures("on_torch")

F = torch.nn.functional
W = mcf.randn(4, 4, terms=2)
PLAIN = bell((4, 4), 0, torch.float32)

CASES: dict[str, Callable[[Any], Any]] = {
    "mm": lambda w: w @ w,
    "mixed product": lambda w: PLAIN @ w,
    "linear": lambda w: F.linear(PLAIN, w),
    "einsum": lambda w: torch.einsum("ij,jk->ik", w, w),
    "softmax": lambda w: torch.softmax(w, 0),
    "power": lambda w: w.abs() ** 2.5,
    "sum": lambda w: w.sum(),
    "accurate sum": lambda w: mcf.sum(w * 3),
    "fma": lambda w: mcf.fma(w, w, w),
    "solve": lambda w: torch.linalg.solve(w, w + 1),
    "layer_norm": lambda w: F.layer_norm(w, (4,)),
    "attention": lambda w: mcf.nn.functional.attention(w, w, w),
    "gradient": lambda w: torch.autograd.grad((w @ w).sum(), w)[0],
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_changes_no_bit(name: str, dtype: torch.dtype) -> None:
    w = W.detach().clone().requires_grad_()
    want = CASES[name](w).detach()
    with torch.autocast("cpu", dtype=dtype):
        got = CASES[name](w).detach()
    assert (got.dtype, got.terms) == (want.dtype, want.terms)
    assert_all_same_bits(got.components, want.components)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_of_residues_in_floats_are_left_alone(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on processors without units for int8; the sums were rounded to 16 bits."""
    monkeypatch.setattr(multiply, "_units", lambda device: False)
    x = mcf.arange(1, 301, terms=2, dtype=torch.float64).reshape(3, 100) / 7
    want = mcf.matmul(x, x.mT, reproducible=True)
    with torch.autocast("cpu", dtype=dtype):
        got = mcf.matmul(x, x.mT, reproducible=True)
    assert_all_same_bits(got.components, want.components)
