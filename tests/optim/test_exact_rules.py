"""float64 parameters against the rules without rounding, over a run.

Contract: after 60 steps the distance to the exact run is below 1e-13 of the distance travelled:
each step rounds by some u = 1.1e-16 of the parameter and of the update, and moments forget
(measured: at most 2e-14). What a wrong formula does: `test_another_rule_is_rejected`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import Parameter

import mcf
from tests.optim.exact_adamw import floats
from tests.optim.exact_rules import Exact
from tests.optim.helpers import FP64, random
from tests.optim.variants import VARIANTS, Variant, named

N, STEPS = 40, 60
_SGD = named("sgd-decoupled")
_PLAIN = {**_SGD.options, "dampening": 0.0}
DECOUPLED = [
    Variant("sgd-decoupled-plain", _SGD.make, {**_PLAIN, "momentum": 0.0}),
    Variant("sgd-decoupled-nesterov", _SGD.make, {**_PLAIN, "nesterov": True}),
]
TOLERANCE = 1e-13


def compared(
    variant: Variant, model: type[Exact] = Exact, rule: str | None = None, **wrong: Any
) -> tuple[float, Any, Any]:
    """The relative distance from a rule without rounding, the optimizer's and the exact run's end.

    Args:
        variant: the optimizer.
        model: the exact rules.
        rule: another than the variant's.
        **wrong: options that only the exact rule has.
    """
    p = Parameter(random(N, FP64, 1))
    start = p.detach().clone()
    exact = model(rule or variant.rule, start, {**variant.options, **wrong})
    optimizer = variant.make([p], **variant.options)
    for t in range(STEPS):
        # Sizes that fall and rise, so that a maximum is kept for a while.
        p.grad = random(N, FP64, 10 + t, 10.0 ** -(t % 7))
        exact.step(p.grad)
        optimizer.step()
    end = floats(exact.p)
    return float((p.detach() - end).norm() / (end - start).norm()), optimizer, exact


def distance(variant: Variant, rule: str) -> float:
    """The relative distance between the optimizer and a rule without rounding."""
    with mcf.executor("torch"):
        return compared(variant, rule=rule)[0]


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("variant", [*VARIANTS, *DECOUPLED], ids=str)
def test_float64_is_exact(variant: Variant) -> None:
    found = distance(variant, variant.rule)
    print(f"{variant}: {found:.2g}")
    assert found < TOLERANCE


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
def test_another_rule_is_rejected() -> None:
    assert distance(named("adam"), "adamw") > 1e9 * TOLERANCE
    assert distance(named("radam"), "adam") > 1e9 * TOLERANCE
    with mcf.executor("torch"):
        # The penalty in the gradient, which is the same without a momentum.
        for variant in (named("adamax-decoupled"), named("sgd-decoupled"), DECOUPLED[1]):
            assert compared(variant, decoupled_weight_decay=False)[0] > 1e9 * TOLERANCE


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
def test_amsgrad_keeps_its_maximum() -> None:
    # Else the rows above would not tell it from Adam.
    p = Parameter(random(N, FP64, 1))
    optimizer = named("adam-amsgrad").make([p], **named("adam-amsgrad").options)
    for scale in (1.0, 1e-3):
        p.grad = torch.full((N,), scale, dtype=FP64)
        optimizer.step()
    state = optimizer.state[p]
    assert (state["max_exp_avg_sq"] > state["exp_avg_sq"]).all()
