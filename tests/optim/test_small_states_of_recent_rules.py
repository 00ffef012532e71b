"""Moments in codes of AdEMAMix, Adan, schedule-free AdamW and StableAdamW.

What of them a code can be relative to the root of v is decided by bounds: Adan's averages and its
gradient of before have one, which the tests reach and never pass; AdEMAMix's slow average has none.
A step computes with what is stored, in float32, and stores one of the two neighbours.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

import mcf
from mcf.optim import Adan, AdEMAMix, Precision, ScheduleFreeAdamW, StableAdamW, convert
from mcf.optim.storage import codes
from tests.helpers import assert_same_bits
from tests.helpers.everyday import everyday
from tests.optim.helpers import BF16, FP64, assert_same, parameter, random, steps, stored

pytestmark = pytest.mark.usefixtures("on_torch")

SHAPE = (3, 40)
RULES: dict[str, Any] = {
    "stable": lambda p, **o: StableAdamW(p, 1e-2, (0.9, 0.99), 1e-6, 0.1, **o),
    "ademamix": lambda p, **o: AdEMAMix(p, 1e-2, (0.9, 0.99, 0.999), 2.0, weight_decay=0.1, **o),
    "adan": lambda p, **o: Adan(p, 1e-2, (0.98, 0.92, 0.99), weight_decay=0.1, **o),
    "schedule-free": lambda p, **o: ScheduleFreeAdamW(p, 1e-2, (0.9, 0.99), **o),
}
# Each rule with each precision that it has.
PAIRS = [
    (name, precision)
    for name in RULES
    for precision in ("8bit", "4bit", "split8_8bit")
    if (name, precision) != ("schedule-free", "4bit")
]


# -- what is bounded by the root of v ------------------------------------------------------------


def responses(betas: tuple[float, float, float], count: int) -> dict[str, list[float]]:
    """What Adan's states have of each of the last `count` numbers a = g + b2 d, the last first.

    v is the average of their squares, and g = (a + b2 g_before) / (1 + b2).
    """
    b1, b2, _ = betas
    g = m = n = 0.0
    found: dict[str, list[float]] = {"exp_avg": [], "exp_avg_diff": [], "previous_grad": []}
    for k in range(count):
        before, g = g, ((1.0 if k == 0 else 0.0) + b2 * g) / (1 + b2)
        m, n = b1 * m + (1 - b1) * g, b2 * n + (1 - b2) * (g - before)
        for name, x in (("exp_avg", m), ("exp_avg_diff", n), ("previous_grad", g)):
            found[name].append(x)
    return found


@pytest.mark.parametrize(
    ("betas", "expected"),
    [
        ((0.98, 0.92, 0.99), (1.15, 0.47, 5.94)),
        ((0.9, 0.9, 0.999), (6.86, 1.86, 18.9)),
        ((0.0, 0.0, 0.9999), (100.0, 141.4, 100.0)),
    ],
)
def test_adans_bounds(betas: Any, expected: tuple[float, ...]) -> None:
    """|m|, |n| and |g| are at most c sqrt(v), c^2 the sum of c_k^2 / ((1 - b3) b3^k); Cauchy's.

    So 8 bits hold them (112 u) but for n with betas of 0; the gradient of before is no average, and
    above the 3 u of 4 bits.
    """
    b3 = betas[2]
    for (name, parts), right in zip(responses(betas, 4000).items(), expected, strict=True):
        c = sum(x * x / ((1 - b3) * b3**k) for k, x in enumerate(parts)) ** 0.5
        assert abs(c / right - 1) < 0.01, (name, c)
        if name == "previous_grad" and betas[0]:
            assert 5 < c
        if betas[0]:
            assert c < 112


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", ["exp_avg", "exp_avg_diff", "previous_grad"])
def test_adans_bounds_are_reached(name: str) -> None:
    """By the gradients for which Cauchy's inequality is an equation; by the optimizer's states."""
    betas, count = (0.9, 0.9, 0.99), 300
    parts = responses(betas, count)[name]
    c = sum(x * x / (0.01 * 0.99**k) for k, x in enumerate(parts)) ** 0.5
    p = Parameter(torch.zeros(1, dtype=FP64))
    optimizer = Adan([p], 0.0, betas)
    g = 0.0
    for k in reversed(range(count)):
        a = parts[k] / 0.99**k
        # d is 0 in the first step.
        g = a if k == count - 1 else (a + 0.9 * g) / 1.9
        p.grad = torch.full((1,), g, dtype=FP64)
        optimizer.step()
    state = optimizer.state[p]
    found = float(state[name].abs() / state["exp_avg_sq"].sqrt())
    assert 0.999 * c < found <= c * (1 + 1e-9)


def test_a_slow_average_has_no_bound() -> None:
    """AdEMAMix's, once gradients become small: v forgets at .999, n at .9999."""
    n = v = 0.0
    for t in range(40_000):
        g = 1.0 if t < 20_000 else 0.0
        n, v = 0.9999 * n + 1e-4 * g, 0.999 * v + 1e-3 * g * g
    assert n > 1000 * v**0.5


# -- a step --------------------------------------------------------------------------------------


def read(name: str, state: dict[str, Tensor]) -> Tensor:
    return (codes.read(name, state) if codes.holds(name, state) else state[name]).double()


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(("rule", "precision"), PAIRS)
def test_what_is_stored(rule: str, precision: str) -> None:
    """Of 10 steps each from the numbers that the one before has stored, and one of the neighbours.

    StableAdamW's rate and the parameter: `test_a_step_is_that_of_the_stored_numbers`.
    """
    p = parameter(SHAPE, BF16)
    optimizer = RULES[rule]([p], precision=precision)
    before: dict[str, Tensor] = {}
    for t in range(10):
        p.grad = g = random(SHAPE, BF16, t, 0.1)
        g = g.double()
        optimizer.step()
        state = optimizer.state[p]
        found = {n: read(n, state) for n, x in state.items() if n != "param_bits" and x.dim()}
        was = before or {n: torch.zeros(SHAPE, dtype=FP64) for n in found}
        right = averages(rule, was, g, t)
        v = found["exp_avg_sq"]
        # The power of two in (sqrt(v), 2 sqrt(v)].
        u = torch.ldexp(torch.ones_like(v), v.sqrt().frexp().exponent).double()
        for name, x in right.items():
            kept = state[name]
            if kept.dtype == BF16:
                off = x.abs() * 2.0**-7
            elif name == "exp_avg_sq":
                off = x / 4
            elif kept.shape != p.shape:
                # What is above 3 u is cut.
                size, off = x.abs(), u / 16
                for least, more in (
                    (u / 8, u / 8),
                    (u / 2, u / 2),
                    (u, 2 * u),
                    (3 * u, size - 3 * u),
                ):
                    off = torch.where(size < least, off, more)
            else:
                off = x.abs() / 8 + 2.0**-10 * v.sqrt()
            assert ((found[name] - x).abs() <= off * (1 + 1e-5) + 1e-12).all(), (name, t)
        before = found


def averages(rule: str, was: dict[str, Tensor], g: Tensor, t: int) -> dict[str, Tensor]:
    """States after a gradient, without those that follow from the rate."""
    ahead, found = g, {}
    if rule == "adan":
        d = g - was["previous_grad"] if t else g - g
        ahead = g + 0.92 * d
        found = {"exp_avg_diff": 0.92 * was["exp_avg_diff"] + 0.08 * d, "previous_grad": g}
    if rule == "ademamix":
        found = {"exp_avg_slow": 0.999 * was["exp_avg_slow"] + 0.001 * g}
    if rule != "schedule-free":
        b1 = 0.98 if rule == "adan" else 0.9
        found["exp_avg"] = b1 * was["exp_avg"] + (1 - b1) * g
    return {**found, "exp_avg_sq": 0.99 * was["exp_avg_sq"] + 0.01 * ahead * ahead}


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.parametrize("rule", RULES)
def test_a_step_is_that_of_the_stored_numbers(rule: str) -> None:
    """The weight before its rounding: that of float64 from the same numbers.

    So StableAdamW's sums decode v, too: half of its steps here are clipped.
    """
    options = {"precision": "split16_8bit"}
    p = parameter(SHAPE, BF16)
    optimizer = RULES[rule]([p], **options)
    for t in range(6):
        q = Parameter(optimizer.master_weight(p).double())
        other = RULES[rule]([q])
        p.grad = random(SHAPE, BF16, t, 0.1 * 8.0 ** (t % 2))
        q.grad = p.grad.double()
        if t:
            state = optimizer.state[p]
            kept = {n: x for n, x in state.items() if n != "param_bits"}
            other.state[q] = {n: read(n, state) if x.dim() else x.clone() for n, x in kept.items()}
        optimizer.step()
        other.step()
        # 24 bits of precision, and float32 registers: some of their units of the update.
        off = (optimizer.master_weight(p).double() - q.detach()).abs()
        assert (off <= q.detach().abs() * 2.0**-24 + 1e-2 * 2.0**-17).all(), t


# -- the same bits, checkpoints, conversion -----------------------------------------------------


def _executors() -> list[Any]:
    usual = {
        ("stable", "8bit"): "numba",
        ("adan", "4bit"): "triton",
        ("ademamix", "8bit"): "triton",
    }
    return everyday(
        [(r, p, e) for r, p in PAIRS for e in ("numba", "triton")],
        lambda r, p, e: usual.get((r, p)) == e,
    )


@pytest.mark.parametrize(("rule", "precision", "executor"), _executors())
def test_executors_agree(rule: str, precision: str, executor: str) -> None:
    found = []
    for each in ("torch", executor):
        with mcf.executor(each):
            params = [parameter((5, 8), BF16, 1), parameter((3, 7), BF16, 2)]
            optimizer = RULES[rule](params, precision=precision)
            steps(optimizer, 3)
            found.append(stored(optimizer))
    assert_same(*found)


@pytest.mark.sampled
@pytest.mark.parametrize(("rule", "precision"), PAIRS)
def test_checkpoints_and_conversion(rule: str, precision: str) -> None:
    p = parameter(SHAPE, BF16)
    optimizer = RULES[rule]([p], precision=precision)
    steps(optimizer, 3)
    other = RULES[rule]([Parameter(p.detach().clone())], precision=precision)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    before = {n: t.clone() for n, t in optimizer.state[p].items()}
    # float32 holds every number of a code, and codes take them back.
    wide, report = convert(optimizer, "master", params=[Parameter(p.detach().clone())])
    assert report.exact, str(report)
    (q,) = wide.param_groups[0]["params"]
    back, report = convert(wide, precision, params=[Parameter(q.detach().clone())])
    assert report.exact, str(report)
    (r,) = back.param_groups[0]["params"]
    for name, t in before.items():
        assert_same_bits(back.state[r][name], t, name)
    for o in (optimizer, other):
        steps(o, 2, seed=9)
    assert_same(stored(other), stored(optimizer))


def test_schedule_free_has_no_first_moment() -> None:
    p = [parameter(SHAPE, BF16)]
    with pytest.raises(ValueError, match="precision='4bit' keeps a first moment in 4"):
        ScheduleFreeAdamW(p, precision="4bit")
    precision = Precision(exp_avg="ratio4", exp_avg_sq="ue6m2")
    with pytest.raises(
        ValueError, match="a first moment in 4 bits, and ScheduleFreeAdamW has none"
    ):
        ScheduleFreeAdamW(p, precision=precision)


def test_modes() -> None:
    """Evaluation changes no bit of schedule-free training."""
    p = parameter(SHAPE, BF16)
    optimizer = ScheduleFreeAdamW([p], 0.01, precision="8bit")
    steps(optimizer, 4)
    before = stored(optimizer)
    optimizer.eval()
    assert not torch.equal(p, before["0.param"])
    optimizer.train()
    assert_same(stored(optimizer), before)
