"""Default arithmetic: one rounding to the register per operation, one to 16 bits when stored.

Contract: after every step all stored tensors have the bits of `tests.optim.register_model`, written
from the documentation in NumPy.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
import torch

import mcf
from mcf.optim import AdamW
from tests.helpers import assert_same_bits, count_different
from tests.optim.formulas import State
from tests.optim.helpers import AT_RANDOM, BF16, Case, random
from tests.optim.register_model import Registers
from tests.optim.variants import RECENT, VARIANTS, Variant, pairs

STEPS = 8
N = 500

# What rounds at random is in tests/optim/test_stochastic.py.
# Scalars of some are not computed as the model computes them, which float64 registers would see.
_SCALARS = ("ademamix", "ademamix-from-0", "stable-adamw")
PAIRS = [
    (v, case)
    for v, case in pairs([*VARIANTS, *RECENT], "cases", "full")
    if not case.strict
    and case.precision not in AT_RANDOM
    and (case.dtype != torch.float64 or v.name not in _SCALARS)
]


@pytest.mark.sampled(every=45)
@pytest.mark.parametrize(("variant", "case"), PAIRS, ids=str)
def test_optimizer_is_the_model(variant: Variant, case: Case) -> None:
    full = case.dtype in (torch.float32, torch.float64)
    model = Registers("plain" if full else case.precision, case.dtype)
    start = random(N, case.dtype, 1)
    start[::4] = 0
    p = torch.nn.Parameter(start.clone())
    optimizer = variant.make([p], **variant.options, **case.options())
    registers = start.to(torch.float64).numpy().astype(model.kind)
    zero = np.zeros_like(registers)
    now: State = defaultdict(lambda: zero, param=registers, master_param=registers)
    if model.precision in ("kahan", "light", "plus"):
        now["param_lo"] = zero
    step = getattr(model, variant.rule)
    for t in range(1, STEPS + 1):
        g = random(N, case.dtype, 10 + t, 0.1)
        p.grad = g
        with mcf.executor("torch"):
            optimizer.step()
        register = g.to(torch.float64).numpy().astype(model.kind)
        now.update(step(now, register, t=t, **variant.options))
        for name, stored in {"param": p, **optimizer.state[p]}.items():
            if stored.shape == p.shape:
                expected = torch.from_numpy(now[name].astype(model.kind)).to(stored.dtype)
                assert count_different(stored, expected) == 0, (name, t)


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
