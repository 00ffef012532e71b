"""Counts of steps: each parameter its own, exact for ever, and in the bias corrections."""

from __future__ import annotations

import pytest
import torch
from torch.nn import Parameter

from mcf.optim import AdamW
from tests.optim.helpers import (
    BF16,
    FP32,
    FP64,
    parameter,
    random,
    steps,
)

pytestmark = pytest.mark.usefixtures("on_torch")


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
def test_each_parameter_counts_its_own_steps() -> None:
    # Moments are corrected by the steps that a parameter has taken, as in torch.
    late, early = parameter(3, FP64, 1), parameter(3, FP64, 2)
    optimizer = AdamW([early, late], 1e-2)
    theirs = [Parameter(p.detach().clone()) for p in (early, late)]
    reference = torch.optim.AdamW(theirs, 1e-2, foreach=False)
    for t in range(6):
        for k, (p, q) in enumerate(zip((early, late), theirs, strict=True)):
            p.grad = q.grad = random(3, FP64, 10 * t + k) if k == 0 or t >= 3 else None
        optimizer.step()
        reference.step()
    assert [optimizer.state[p]["step"].item() for p in (early, late)] == [6, 3]
    torch.testing.assert_close(
        [early.data, late.data], [p.data for p in theirs], rtol=0, atol=1e-14
    )


@pytest.mark.parametrize("start", [255, 2**24 - 1, 2**24 + 2, 2**53 + 2])
@pytest.mark.parametrize("default", [FP32, BF16])
def test_counts_are_exact(start: int, default: torch.dtype) -> None:
    # A float32 counter stops at 2^24, a bf16 one at 256, a float64 one at 2^53.
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        p = parameter(3, BF16)
        optimizer = AdamW([p])
        steps(optimizer, 1)
        optimizer.state[p]["step"].fill_(start)
        steps(optimizer, 3)
        assert optimizer.state[p]["step"].item() == start + 3
        assert optimizer.state[p]["step"].dtype == torch.int64
        assert torch.isfinite(p).all()
    finally:
        torch.set_default_dtype(before)


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
def test_bias_correction_late_in_training() -> None:
    # With beta2 = 1 - 1e-9 the correction 1 - beta2^t still matters at t = 2^24 + 3: it is .0166.
    beta2, t = 1 - 1e-9, 2**24 + 3
    p = Parameter(torch.zeros(1, dtype=FP64))
    p.grad = torch.zeros_like(p)
    optimizer = AdamW([p], 1.0, betas=(0.0, beta2), eps=0.0, weight_decay=0.0)
    optimizer.step()
    optimizer.state[p]["exp_avg_sq"].fill_(1.0)
    optimizer.state[p]["step"].fill_(t - 1)
    p.grad = torch.ones_like(p)
    p.data.zero_()
    optimizer.step()
    assert -p.item() == pytest.approx((1 - beta2**t) ** 0.5, rel=1e-12)
