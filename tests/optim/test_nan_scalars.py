"""A scalar that is NaN makes NaN of weights and states on every executor, whichever NaN it is."""

from __future__ import annotations

import pytest
import torch

import mcf
from mcf.optim import AdamW
from tests.optim.helpers import BF16, assert_same, parameter, random, stored

# GPUs make the first; the others have a payload in bits that bf16 does not keep, and a sign.
PATTERNS = (0x7FFFFFFF, 0x7F80FFFF, -1)


def scaled(precision: str, executor: str, pattern: int) -> dict[str, torch.Tensor]:
    """What is stored after a step whose gradients are scaled by a NaN."""
    p = parameter((4, 64), BF16, 1)
    optimizer = AdamW([p], 1e-2, precision=precision)
    p.grad = random((4, 64), BF16, 2)
    optimizer.grad_scale = torch.tensor(pattern, dtype=torch.int32).view(torch.float32)
    with mcf.executor(executor):
        optimizer.step()
    return stored(optimizer)


@pytest.mark.parametrize("pattern", PATTERNS, ids="{:#x}".format)
@pytest.mark.parametrize("precision", ["plain", "bf16_sr"])
def test_nan_of_a_scalar_stays_nan(precision: str, pattern: int) -> None:
    found = scaled(precision, "numba", pattern)
    assert found["0.param"].isnan().all()
    assert_same(found, scaled(precision, "torch", pattern))
