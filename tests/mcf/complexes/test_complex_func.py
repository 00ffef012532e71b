"""Complex expansions in the transforms of torch.func: a tree of their parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mcf
from tests.helpers.complexes import numbers

pytestmark = pytest.mark.usefixtures("on_torch")
F64 = torch.float64


def test_gradients_and_lanes() -> None:
    z, w = numbers(F64, 2, 3), numbers(F64, 2, 3, seed=1)

    def loss(z: Any) -> Any:
        return abs(torch.exp(z) * w / (z + 2)).sum()

    want = z.clone().requires_grad_()
    loss(want).backward()
    found = torch.func.grad(loss)(z)
    assert isinstance(found, mcf.MCFComplexTensor)
    assert torch.allclose(found, want.grad, rtol=2.0**-98)
    lanes = torch.func.vmap(lambda z, w: torch.sqrt(z) / w - 1j)(z, w)
    assert torch.equal(lanes, torch.sqrt(z) / w - 1j)
    # Of parts, which are made complex inside.
    real = torch.func.grad(lambda x: (mcf.complex(x, z.imag) * 2j).imag.sum())(z.real)
    assert bool((real == 2).all())
