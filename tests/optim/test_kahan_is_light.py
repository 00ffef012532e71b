"""Kahan's compensation is the special case of Collage-light, in bits, and where it is not.

Strict arithmetic: Grow starts with TwoSum(p, u), Kahan with dp + u and Fast2Sum. Both are exact,
and so the same, where |u| <= |p| and p, dp, u are multiples of a quantum q with |dp + u| <= 2^p q
(the low bits fit). Beyond, they differ. With float32 registers both round the same exact sum.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import mcf
from mcf.optim import SGD, AdamW, CollageAdamW
from tests.helpers import assert_same_bits, count_different
from tests.optim.helpers import BF16, FP16, random, stored

N = 2000


def pair(make: type, start: Tensor, **options: object) -> tuple[AdamW, AdamW]:
    """The same optimizer with Kahan's compensation and as Collage-light."""
    kahan, light = (
        make([torch.nn.Parameter(start.clone())], precision=precision, **options)
        for precision in ("kahan", "light")
    )
    return kahan, light


def advance(pair: tuple[AdamW, AdamW], gradients: list[Tensor]) -> None:
    with mcf.executor("torch"):
        for g in gradients:
            for optimizer in pair:
                (p,) = optimizer.param_groups[0]["params"]
                p.grad = g
                optimizer.step()


def differing(pair: tuple[AdamW, AdamW]) -> int:
    kahan, light = (stored(optimizer) for optimizer in pair)
    assert kahan.keys() == light.keys()
    return sum(count_different(kahan[name], light[name]) for name in kahan)


@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_same_bits_where_the_magnitudes_allow(dtype: torch.dtype) -> None:
    # p in [1, 2) has ulp 2^-7 (2^-10 in fp16). Gradients are multiples of q = ulp / 16 below 2 ulp;
    # after 100 steps |p| has moved by less than 1/4 in bf16, so |u| <= |p| and the bits fit.
    ulp = torch.finfo(dtype).eps
    start = (1.5 + random(N, dtype, 1).clamp(-1, 1) / 8).to(dtype)
    quantum = ulp / 16
    optimizers = pair(SGD, start, lr=1.0, compute_dtype=dtype)
    gradients = [
        (random(N, torch.float64, 10 + t, 8).round().clamp(-31, 31) * quantum).to(dtype)
        for t in range(100)
    ]
    advance(optimizers, gradients)
    for optimizer in optimizers:
        (p,) = optimizer.param_groups[0]["params"]
        lo = optimizer.state[p]["param_lo"]
        # Neither lost anything, so each holds the exact sum; and the low word is in use.
        exact = start.double() - torch.stack(gradients).double().sum(0)
        assert torch.equal(p.double() + lo.double(), exact)
        assert (lo != 0).float().mean() > 0.5
    assert differing(optimizers) == 0


def test_same_bits_for_adamw_where_the_magnitudes_allow() -> None:
    # betas and eps of 0 make the update +-lr, which is a quarter of an ulp of the parameters.
    optimizers = pair(
        AdamW, 1 + random(N, BF16, 1).abs().clamp(max=0.5), lr=2.0**-9, betas=(0.0, 0.0),
        eps=0.0, weight_decay=0.0, compute_dtype=BF16,
    )  # fmt: skip
    signs = [torch.sign(random(N, BF16, 10 + t)) for t in range(100)]
    advance(optimizers, signs)
    assert differing(optimizers) == 0
    (p,) = optimizers[0].param_groups[0]["params"]
    assert (optimizers[0].state[p]["param_lo"] != 0).any()


def test_differ_where_the_update_is_the_larger() -> None:
    # p = 2^-10, u = 1: Fast2Sum(p, u) has s = 1 and s - p = 1 - 2^-10, which rounds to 1, so that
    # Kahan drops p; TwoSum's error is p, and Grow keeps it in the low word.
    optimizers = pair(SGD, torch.tensor([2.0**-10], dtype=BF16), lr=1.0, compute_dtype=BF16)
    advance(optimizers, [torch.tensor([-1.0], dtype=BF16)])
    kahan, light = (stored(optimizer) for optimizer in optimizers)
    assert kahan["0.param"].item() == light["0.param"].item() == 1
    assert kahan["0.param_lo"].item() == 0
    assert light["0.param_lo"].item() == 2.0**-10


def test_differ_where_the_low_bits_do_not_fit() -> None:
    # Ordinary updates have 8 bits far below the low word's: dp + u rounds, and not where Grow does.
    optimizers = pair(SGD, 1 + random(N, BF16, 1).abs(), lr=1.0, compute_dtype=BF16)
    advance(optimizers, [random(N, BF16, 10 + t, 0.01) for t in range(20)])
    assert differing(optimizers) > 0


@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_same_bits_in_float32_registers(dtype: torch.dtype) -> None:
    # Zeros and tiny weights among them, so that |u| > |p| often.
    start = random(N, dtype, 1) * 10 ** (-4 * random(N, dtype, 2).abs())
    start[::4] = 0
    optimizers = pair(AdamW, start.to(dtype), lr=1e-2)
    advance(optimizers, [random(N, dtype, 10 + t, 0.1) for t in range(50)])
    assert differing(optimizers) == 0


def test_collage_modes_are_the_precisions() -> None:
    for mode in ("light", "plus", "kahan"):
        named, by_precision = (torch.nn.Parameter(random(50, BF16, 1)) for _ in range(2))
        optimizers = (
            CollageAdamW([named], 1e-2, mode=mode, compute_dtype=BF16),
            AdamW([by_precision], 1e-2, precision=mode, compute_dtype=BF16),
        )
        advance(optimizers, [random(50, BF16, 10 + t) for t in range(5)])
        for name, tensor in stored(optimizers[1]).items():
            assert_same_bits(stored(optimizers[0])[name], tensor, f"{mode} {name}")
