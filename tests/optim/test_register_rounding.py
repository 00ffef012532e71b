"""Default arithmetic: one rounding to the register per operation, one to 16 bits when stored.

Contract: after every step all stored tensors have the bits of `tests.optim.register_model`, written
from the documentation in NumPy. A model that fuses a product and a sum (what a compiler's FMA would
do) is rejected by the same comparison.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import mcf
from mcf.optim import SGD, AdamW
from tests.helpers import assert_same_bits, count_different
from tests.optim.helpers import BF16, FULL, Case, cases, random
from tests.optim.register_model import Registers, State

STEPS = 8
N = 500

ADAMW = {"lr": 3e-3, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}
MOMENTUM = {"lr": 0.03, "momentum": 0.9, "dampening": 0.25, "weight_decay": 0.1, "nesterov": False}
NESTEROV = {**MOMENTUM, "dampening": 0.0, "nesterov": True}
BARE = {**MOMENTUM, "momentum": 0.0, "dampening": 0.0}

WIDE = [c for c in cases() if not c.strict] + FULL
WIDE_SGD = [c for c in cases(("plain", "kahan", "light", "master")) if not c.strict]


def model_of(case: Case, **options: Any) -> Registers:
    return Registers("plain" if case in FULL else case.precision, case.dtype, **options)


def differing(make: Any, case: Case, options: dict[str, Any], model: Registers) -> int:
    """Elements of all stored tensors and steps in which optimizer and model differ."""
    start = random(N, case.dtype, 1)
    start[::4] = 0
    p = torch.nn.Parameter(start.clone())
    optimizer = make([p], **options, **case.options())
    registers = start.to(torch.float64).numpy().astype(model.kind)
    zero = np.zeros_like(registers)
    names = ("param_lo", "exp_avg", "exp_avg_sq", "exp_avg_sq_lo", "momentum_buffer")
    now: State = {"param": registers, "master_param": registers, **dict.fromkeys(names, zero)}
    if model.precision not in ("kahan", "light", "plus"):
        del now["param_lo"]
    step = model.adamw if make is AdamW else model.sgd
    wrong = 0
    for t in range(1, STEPS + 1):
        g = random(N, case.dtype, 10 + t, 0.1)
        p.grad = g
        with mcf.executor("torch"):
            optimizer.step()
        register = g.to(torch.float64).numpy().astype(model.kind)
        now = {**now, **step(now, register, t=t, **options)}  # type: ignore[operator]
        for name, stored in {"param": p, **optimizer.state[p]}.items():
            if name != "step":
                expected = torch.from_numpy(now[name].astype(model.kind)).to(stored.dtype)
                wrong += count_different(stored, expected)
    return wrong


@pytest.mark.parametrize("case", WIDE, ids=str)
def test_adamw_is_the_model(case: Case) -> None:
    assert differing(AdamW, case, ADAMW, model_of(case)) == 0


@pytest.mark.parametrize(
    "options", [BARE, MOMENTUM, NESTEROV], ids=["bare", "momentum", "nesterov"]
)
@pytest.mark.parametrize("case", WIDE_SGD, ids=str)
def test_sgd_is_the_model(case: Case, options: dict[str, Any]) -> None:
    assert differing(SGD, case, options, model_of(case)) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sgd_of_full_precision_is_the_model(dtype: torch.dtype) -> None:
    case = Case("light", dtype, torch.float32)
    assert differing(SGD, case, NESTEROV, Registers("plain", dtype)) == 0


@pytest.mark.parametrize("make", [AdamW, SGD])
def test_fused_model_is_rejected(make: Any) -> None:
    case = Case("master", BF16, torch.float32)
    options = ADAMW if make is AdamW else MOMENTUM
    assert differing(make, case, options, model_of(case)) == 0
    assert differing(make, case, options, model_of(case, fused=True)) > N


def test_registers_are_not_rounded_before_they_are_used() -> None:
    # One step from zero moments: m = (1 - b1) g and v = (1 - b2) g^2 enter the update unrounded,
    # so that m^ / sqrt(v^) is 1 to float32; from the stored bf16 moments it would be off by 2^-9.
    p = torch.nn.Parameter(torch.zeros(N, dtype=BF16))
    p.grad = random(N, BF16, 3)
    optimizer = AdamW([p], lr=1.0, eps=0.0, weight_decay=0.0, precision="master")
    optimizer.step()
    stored = optimizer.state[p]["master_param"]
    torch.testing.assert_close(stored.abs(), torch.ones(N), rtol=1e-6, atol=0)

    plain = torch.nn.Parameter(torch.zeros(N, dtype=BF16))
    plain.grad = p.grad
    AdamW([plain], lr=1.0, eps=0.0, weight_decay=0.0, precision="plain").step()
    assert_same_bits(plain, stored.to(BF16))
