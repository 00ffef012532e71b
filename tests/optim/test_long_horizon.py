"""The end of a long schedule: a rate on a cosine from 4e-6 to 1e-6, weights of 1, 3000 steps.

A constant gradient and betas of 1/2, which bf16 moments take exactly, make every update of AdamW
its learning rate, 7.5e-3 in all. A low word in bf16 takes updates of 2^-18 and less only until it
is 2^-9, 0.26 of the way: there `kahan`, `light` and `plus` stall. What stores 16 more bits, or
rounds the low word stochastically, arrives.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn import Parameter

from mcf.optim import AdamW
from tests.optim.helpers import BF16, value

STEPS, N = 3000, 400
WAY = 7.5e-3


def gone(**options: Any) -> float:
    """Return the mean share of the way that weights have gone."""
    # A matrix, as vectors keep wider moments than codes.
    p = Parameter(torch.ones(20, N // 20, dtype=BF16))
    p.grad = torch.full_like(p, -1.0)
    optimizer = AdamW([p], 4e-6, (0.5, 0.5), weight_decay=0.0, **options)
    way = 0.0
    for t in range(STEPS):
        rate = 1e-6 + 3e-6 * (1 + math.cos(math.pi * t / STEPS)) / 2
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        way += rate
    return float((value(optimizer, p) - 1).mean()) / way


def spread(unit: float) -> float:
    """Return five standard deviations of the mean of N walks of steps of a unit."""
    return 5 * (WAY * unit / N) ** 0.5 / WAY


# Precision and rounding of low words, the share that weights go, and by how much it may differ.
# Weights are in units of 2^-7, low words and bytes of 2^-15 at most; no update is half a unit of
# a weight in 8 + 8 bits. Each of 3000 additions in 24 bits is off by 2^-24 at most. Moments of a
# constant gradient are numbers of every code once they are there.
STALLED = 2**-9 / WAY
ENDS: list[tuple[str, str, float, float]] = [
    *((p, "nearest", STALLED, 0.01) for p in ("kahan", "light", "plus")),
    *((p, "nearest", 0.0, 0.0) for p in ("plain", "fp32_states", "split8")),
    *((p, "nearest", 1.0, STEPS * 2**-24 / WAY) for p in ("split16", "master")),
    *((p, "stochastic", 1.0, spread(2**-15)) for p in ("kahan", "light", "plus")),
    *((p, "nearest", 1.0, spread(2**-7)) for p in ("stochastic", "bf16_sr", "8bit", "4bit")),
    *((p, "nearest", 1.0, spread(2**-15)) for p in ("split8_sr", "split8_8bit")),
]


@pytest.mark.filterwarnings("ignore:.* of the sampled updates")
@pytest.mark.sampled(every=6)
@pytest.mark.statistical
@pytest.mark.parametrize(("precision", "low", "share", "within"), ENDS)
def test_weights_go_the_share_that_their_storage_can_take(
    precision: str, low: str, share: float, within: float
) -> None:
    options = {"low": low} if low != "nearest" else {}
    assert abs(gone(precision=precision, **options) - share) <= within
