"""Gradients accumulated in two components: the bound, the step, and who else reads them.

Mutants these tests catch: the second component not read by the step, not counted in the norm, kept
beside a zeroed first one, made NaN by an infinity, or lost when a backward pass adds in place.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import Parameter

import mcf
from mcf.optim import SGD, AdamW, GradientAccumulator
from tests.helpers import assert_same_bits
from tests.helpers.executors import on_each_executor
from tests.optim.helpers import BF16, FP16, FP32, FP64, assert_same, parameter, random, stored
from tests.optim.test_amp import scaler, without_gradients
from tests.optim.test_gradient_forms import give

pytestmark = pytest.mark.usefixtures("on_torch")

# The bound of the sum, for each gradient that is added.
BOUND = {BF16: 2.0**-17, FP16: 2.0**-22, FP32: 2.0**-46, FP64: 2.0**-104}


def backward(p: Tensor, g: Tensor) -> None:
    """A backward pass that brings exactly this gradient."""
    p.backward(g)


def accumulate(p: Parameter, gradients: list[Tensor]) -> tuple[Any, GradientAccumulator]:
    optimizer = SGD([p], 1.0)
    accumulator = GradientAccumulator(optimizer)
    for g in gradients:
        backward(p, g.clone())
    return optimizer, accumulator


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.sampled(every=6)
@on_each_executor
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32, FP64], ids=str)
def test_error(dtype: torch.dtype, executor: str) -> None:
    gradients = [random(64, dtype, k).abs() for k in range(50)]
    with mcf.executor(executor):
        p = parameter(64, dtype)
        _, accumulator = accumulate(p, gradients)
    plain = parameter(64, dtype)
    for g in gradients:
        backward(plain, g.clone())
    high, low = accumulator.components(p)
    assert p.grad is high
    worst = Fraction(0)
    for k in range(64):
        exact = sum(Fraction(g[k].item()) for g in gradients)
        found = Fraction(high[k].item()) + Fraction(low[k].item())
        assert abs(found - exact) <= len(gradients) * Fraction(BOUND[dtype]) * exact
        worst = max(worst, abs(Fraction(plain.grad[k].item()) - exact) / exact)
    # What it is for: the plain sum is off by more than a hundred times the bound of this one.
    assert worst > 100 * BOUND[dtype]


@pytest.mark.sampled
@pytest.mark.parametrize("make", [AdamW, SGD])
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
def test_the_step_is_that_of_the_sum_in_float32(make: Any, dtype: torch.dtype) -> None:
    # Multiples of 2**-7 below 2: sums of eight have at most 12 bits, so both are exact.
    results = []
    for accumulated in (True, False):
        p = parameter(100, dtype)
        optimizer = make([p], 1e-2, max_grad_norm=0.5)
        accumulator = GradientAccumulator(optimizer) if accumulated else None
        for t in range(3):
            parts = [((random(100, FP64, 10 * t + k) * 64).round() / 128).clamp(-1, 1)
                     for k in range(8)]  # fmt: skip
            if accumulated:
                for g in parts:
                    backward(p, g.to(dtype))
                assert len(accumulator.components(p)) == 2
            else:
                give(p, sum(parts).float())
            optimizer.step()
            optimizer.zero_grad()
            assert p.grad is None
        results.append(stored(optimizer))
    assert_same(*results)


def test_one_gradient_is_left_as_it_is() -> None:
    # No second component, and the same kernel as without an accumulator.
    results = []
    for accumulated in (True, False):
        p = parameter(9, BF16)
        optimizer = AdamW([p], 1e-2)
        if accumulated:
            accumulator = GradientAccumulator(optimizer)
        backward(p, random(9, BF16, 1))
        assert not accumulated or len(accumulator.components(p)) == 1
        optimizer.step()
        results.append(stored(optimizer))
    assert_same(*results)


@pytest.mark.parametrize(
    "how", ["optimizer", "optimizer to zero", "model", "model to zero", "None"]
)
def test_a_new_sum(how: str) -> None:
    layer = nn.Linear(3, 1, bias=False).to(BF16)
    p = layer.weight
    optimizer = SGD([p], 1.0)
    accumulator = GradientAccumulator(optimizer)
    for value in (1.0, 2.0**-9):
        backward(p, torch.full((1, 3), value, dtype=BF16))
    assert [c[0, 0].item() for c in accumulator.components(p)] == [1.0, 2.0**-9]
    {
        "optimizer": lambda: optimizer.zero_grad(),
        "optimizer to zero": lambda: optimizer.zero_grad(set_to_none=False),
        "model": lambda: layer.zero_grad(),
        "model to zero": lambda: layer.zero_grad(set_to_none=False),
        "None": lambda: setattr(p, "grad", None),
    }[how]()
    for _ in range(2):
        backward(p, torch.full((1, 3), 4.0, dtype=BF16))
    total = sum(c.double() for c in accumulator.components(p))
    assert_same_bits(total, torch.full((1, 3), 8.0, dtype=FP64))


def test_without_zero_grad_it_goes_on() -> None:
    # As in torch: gradients add up until they are reset.
    p = Parameter(torch.zeros(1, dtype=BF16))
    optimizer, accumulator = accumulate(p, [torch.ones(1, dtype=BF16)] * 2)
    optimizer.step()
    backward(p, torch.full((1,), 2.0**-9, dtype=BF16))
    assert [c.item() for c in accumulator.components(p)] == [2.0, 2.0**-9]


def test_a_sum_that_overflows_is_an_infinity() -> None:
    """What is left of 3e38 + 3e38 - infinity would be the other infinity, and both NaN."""
    p = Parameter(torch.zeros(2, dtype=BF16))
    accumulator = GradientAccumulator(SGD([p], 1.0))
    for _ in range(2):
        (p * torch.tensor([3e38, 1.0], dtype=BF16)).sum().backward()
    high, low = accumulator.components(p)
    assert high.tolist() == [torch.inf, 2.0]
    assert low.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
def test_infinities_stay_and_a_scaler_finds_them(bad: float) -> None:
    p = parameter(3, BF16)
    optimizer = AdamW([p], 1e-2)
    GradientAccumulator(optimizer)
    before = without_gradients(stored(optimizer))
    for value in (1.0, bad, 1.0):
        backward(p, torch.tensor([1.0, value, 1.0], dtype=BF16))
    assert_same_bits(p.grad, torch.tensor([3.0, bad, 3.0], dtype=BF16))
    amp = scaler()
    amp.step(optimizer)
    assert_same(without_gradients(stored(optimizer)), before)


def test_scaled_gradients() -> None:
    results = []
    for scale in (1.0, 2.0**6):
        p = parameter(20, BF16)
        optimizer = AdamW([p], 1e-2)
        GradientAccumulator(optimizer)
        for k in range(4):
            backward(p, random(20, BF16, k) * scale)
        scaler(scale).step(optimizer)
        results.append(without_gradients(stored(optimizer)))
    assert_same(*results)


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.parametrize("how", ["unscale", "clip", "mul"])
def test_changes_in_place_are_refused(how: str) -> None:
    p = parameter(20, FP32)
    optimizer = AdamW([p], 1e-2)
    GradientAccumulator(optimizer)
    for k in range(2):
        backward(p, random(20, FP32, k))
    before = stored(optimizer)
    amp = scaler(4.0)
    step = optimizer.step
    if how == "unscale":
        amp.unscale_(optimizer)
        step = lambda: amp.step(optimizer)  # noqa: E731
    elif how == "clip":
        torch.nn.utils.clip_grad_norm_([p], 0.1)
    else:
        p.grad.mul_(2)
    with pytest.raises(RuntimeError, match=r"shape \[20\] was changed in place"):
        step()
    assert_same(without_gradients(stored(optimizer)), without_gradients(before))


def test_refused() -> None:
    p = parameter(3, BF16)
    with pytest.raises(TypeError, match="AdamW; allowed are optimizers of"):
        GradientAccumulator(torch.optim.AdamW([p]))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"params\[0\].*compute_dtype=torch.float32"):
        GradientAccumulator(AdamW([p], compute_dtype=BF16))
    optimizer = AdamW([p])
    accumulator = GradientAccumulator(optimizer)
    with pytest.raises(ValueError, match="has an accumulator"):
        GradientAccumulator(optimizer)
    accumulator.close()
    GradientAccumulator(optimizer)


def test_closed() -> None:
    p = Parameter(torch.zeros(1, dtype=BF16))
    optimizer, accumulator = accumulate(p, [torch.ones(1, dtype=BF16)])
    accumulator.close()
    for _ in range(2):
        backward(p, torch.full((1,), 2.0**-9, dtype=BF16))
    assert p.grad.item() == 1.0
    assert accumulator.components(p) == (p.grad,)
    optimizer.step()
    assert p.item() == -1.0


@pytest.mark.parametrize("how", ["close", "zero_grad"])
def test_after_a_step_that_raised(how: str) -> None:
    # The second components that step had in hand are no part of later gradients.
    p = Parameter(torch.ones(4, dtype=BF16))
    optimizer = AdamW([p], max_grad_norm=1.0)
    accumulator = GradientAccumulator(optimizer)
    for scale in (1.0, 2.0**-9):
        (p * scale).sum().backward()
    assert len(accumulator.components(p)) == 2
    optimizer.max_grad_norm = -1.0
    with pytest.raises(ValueError, match="Invalid max_grad_norm"):
        optimizer.step()
    optimizer.max_grad_norm = None
    if how == "close":
        accumulator.close()
    else:
        optimizer.zero_grad()
    assert optimizer._grad_low == {}
