"""float64 parameters against the rules without rounding, over a run.

Contract: after 60 steps the distance to the exact run is below 1e-13 of the distance travelled:
each step rounds by some u = 1.1e-16 of the parameter and of the update, and moments forget
(measured: at most 2e-14).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import Parameter

from mcf.optim import ScheduleFreeAdamW, StableAdamW
from tests.optim.exact_rules import Exact, floats
from tests.optim.helpers import FP64, random
from tests.optim.variants import RECENT, VARIANTS, Variant, named

pytestmark = [
    pytest.mark.usefixtures("on_torch"),
    pytest.mark.filterwarnings("ignore:precision=.* has no effect"),
]

N, STEPS = 40, 60
_SGD = named("sgd-decoupled")
_PLAIN = {**_SGD.options, "dampening": 0.0}
DECOUPLED = [
    Variant("sgd-decoupled-plain", _SGD.make, {**_PLAIN, "momentum": 0.0}),
    Variant("sgd-decoupled-nesterov", _SGD.make, {**_PLAIN, "nesterov": True}),
]
TOLERANCE = 1e-13


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("variant", [*VARIANTS, *DECOUPLED, *RECENT], ids=str)
def test_float64_run_is_exact(variant: Variant) -> None:
    p = Parameter(random(N, FP64, 1))
    start = p.detach().clone()
    exact: Any = Exact(variant.rule, start, variant.options)
    optimizer: Any = variant.make([p], **variant.options)
    for t in range(STEPS):
        # Sizes that fall and rise, so that a maximum is kept for a while.
        p.grad = random(N, FP64, 10 + t, 10.0 ** -(t % 7))
        exact.step(p.grad)
        optimizer.step()
    end = floats(exact.p)
    found = float((p.detach() - end).norm() / (end - start).norm())
    print(f"{variant}: {found:.2g}")
    assert found < TOLERANCE
    if variant.make is StableAdamW:
        # Some rates are divided, and some are not.
        assert 0 < sum(exact.clipped) < STEPS
    if variant.make is ScheduleFreeAdamW:
        optimizer.eval()
        x = floats(exact.x)
        assert float((p.detach() - x).norm() / (x - random(N, FP64, 1)).norm()) < TOLERANCE


def test_amsgrad_keeps_its_maximum() -> None:
    # Else the rows above would not tell it from Adam.
    p = Parameter(random(N, FP64, 1))
    optimizer = named("adam-amsgrad").make([p], **named("adam-amsgrad").options)
    for scale in (1.0, 1e-3):
        p.grad = torch.full((N,), scale, dtype=FP64)
        optimizer.step()
    state = optimizer.state[p]
    assert (state["max_exp_avg_sq"] > state["exp_avg_sq"]).all()
