"""The end of a long schedule: a rate on a cosine from 4e-6 to 1e-6, weights of 1, 3000 steps.

A constant gradient and betas of 1/2, which bf16 moments take exactly, make every update of AdamW
its learning rate, 7.5e-3 in all. A low word in bf16 takes updates of 2^-18 and less only until it
is 2^-9, .26 of the way: there `kahan`, `light` and `plus` stall. What stores 16 more bits, or
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


def gone(**options: Any) -> float:
    """The mean share of the way that weights have gone."""
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


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("precision", ["kahan", "light", "plus"])
def test_low_words_stall(precision: str) -> None:
    assert abs(gone(precision=precision) - 2**-9 / 7.5e-3) < 0.01


@pytest.mark.filterwarnings("ignore:.* of the sampled updates")
@pytest.mark.slow
def test_weights_alone_do_not_move() -> None:
    assert gone(precision="plain") == gone(precision="fp32_states") == 0


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("precision", ["split16", "master"])
def test_float32_weights_arrive(precision: str) -> None:
    # Each of 3000 additions is off by 2^-24 at most.
    assert abs(gone(precision=precision) - 1) < STEPS * 2**-24 / 7.5e-3


@pytest.mark.slow
@pytest.mark.sampled(every=3)
@pytest.mark.statistical
@pytest.mark.parametrize("precision", ["kahan", "light", "plus"])
def test_stochastic_low_words_arrive(precision: str) -> None:
    # A unit of the low word is 2^-15 at most: five standard deviations of the mean of N walks.
    spread = (7.5e-3 * 2**-15 / N) ** 0.5
    assert abs(gone(precision=precision, low="stochastic") - 1) < 5 * spread / 7.5e-3


@pytest.mark.sampled(every=4)
@pytest.mark.statistical
@pytest.mark.parametrize("precision", ["stochastic", "bf16_sr", "8bit", "4bit"])
def test_stochastic_weights_arrive(precision: str) -> None:
    # Moments of a constant gradient are numbers of every code once they are there.
    spread = (7.5e-3 * 2**-7 / N) ** 0.5
    assert abs(gone(precision=precision) - 1) < 5 * spread / 7.5e-3


@pytest.mark.sampled(every=2)
@pytest.mark.statistical
@pytest.mark.parametrize("precision", ["split8_sr", "split8_8bit"])
def test_stochastic_bytes_arrive(precision: str) -> None:
    # A unit of the byte is 2^-15 at most.
    spread = (7.5e-3 * 2**-15 / N) ** 0.5
    assert abs(gone(precision=precision) - 1) < 5 * spread / 7.5e-3


@pytest.mark.slow
def test_split8_to_nearest_loses_the_smallest_updates() -> None:
    # Half a unit of a weight of 1 in 8 + 8 bits is 2^-16, above every update.
    assert gone(precision="split8") == 0
