"""Adamax's norm decays where it is stored as an expansion, and not in one bf16 number.

After a gradient of 1 and then gradients of 2^-10, the norm is beta2^t exactly: with beta2 = .999,
.999^500 = .606. In bf16, RN(.999 n) = n for n in [1, 2), and with 1 = n it is 255/256 or 1.
"""

from __future__ import annotations

import pytest
import torch

import mcf
from mcf.optim import Adamax
from tests.optim.helpers import BF16, FP32, STRICT, Case


def norm(case: Case) -> float:
    p = torch.nn.Parameter(torch.zeros(1, dtype=BF16))
    optimizer = Adamax([p], eps=0.0, **case.options())
    with mcf.executor("torch"):
        for t in range(501):
            p.grad = torch.full((1,), 1.0 if t == 0 else 2.0**-10, dtype=BF16)
            optimizer.step()
    state = optimizer.state[p]
    low = state.get("exp_inf_lo", torch.zeros(1))
    return float(state["exp_inf"].double() + low.double())


CASES = [Case(p, BF16, FP32) for p in ("plain", "kahan", "light", "plus", "fp32_states")]
CASES += [Case(p, BF16, BF16) for p in STRICT]


@pytest.mark.slow
@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_norm_after_500_steps(case: Case) -> None:
    found = norm(case)
    if case.precision in ("plus", "fp32_states"):
        # In strict arithmetic a product of pairs is off by up to 5 u^2 = 2^-13.7, at each step.
        assert found == pytest.approx(0.999**500, rel=500 * 2**-13.7 if case.strict else 1e-3)
    else:
        assert found > 0.99
