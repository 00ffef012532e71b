"""Where codes of moments end: v at 0, too large, loss scaling, eps, betas of 0, maxima."""

from __future__ import annotations

import pytest
import torch
from torch.nn import Parameter

from mcf.optim import AdamW
from mcf.optim.storage import codes
from tests.helpers import assert_same_bits
from tests.optim.helpers import BF16, assert_same, parameter, random, stored
from tests.optim.test_small_states import SHAPE, moments

pytestmark = pytest.mark.usefixtures("on_torch")

each = pytest.mark.parametrize("precision", ["8bit", "4bit"])


@each
def test_a_loss_that_is_scaled(precision: str) -> None:
    """A scaler's factor is taken out before the moments: the same bits, where v would be cut."""
    results = []
    for scale in (1.0, 2.0**16):
        p = parameter(SHAPE, BF16)
        optimizer = AdamW([p], 1e-2, precision=precision)
        for t in range(3):
            p.grad = random(SHAPE, BF16, t, 0.1) * scale
            optimizer.grad_scale = torch.tensor(scale)
            optimizer.found_inf = torch.tensor(0.0)
            optimizer.step()
        p.grad = None
        results.append(stored(optimizer))
    assert_same(*results)
    p = parameter(SHAPE, BF16)
    optimizer = AdamW([p], 1e-2, precision=precision)
    p.grad = random(SHAPE, BF16, 0, 0.1) * 2.0**16
    optimizer.step()
    assert (moments(optimizer)[1] == 10).any(), "a gradient that nobody unscales"


@each
def test_v_at_zero(precision: str) -> None:
    """Weights without gradients stay, and so do those whose squares are below float32's range."""
    p = parameter(SHAPE, BF16)
    before = p.detach().clone()
    optimizer = AdamW([p], 1e-2, weight_decay=0.0, precision=precision)
    for t in range(3):
        p.grad = random(SHAPE, BF16, t, 0.1)
        p.grad[1] = 0
        p.grad[2] = 2.0**-100
        optimizer.step()
    m, v = moments(optimizer)
    assert_same_bits(p[1:], before[1:])
    assert not m[1].any()
    assert not v[1:].any()
    # m of the others is relative to 2**-63, the least power of two.
    assert (m[2].abs() <= 112 * 2.0**-63).all()


@each
def test_eps_below_the_least_root(precision: str) -> None:
    """v is 0 or at least 2**-60: no quotient is larger than with the root of that."""
    p = Parameter(torch.ones(SHAPE, dtype=BF16))
    optimizer = AdamW([p], 1.0, (0.9, 0.95), 1e-30, 0.0, precision=precision)
    for _ in range(3):
        p.grad = torch.full(SHAPE, 2.0**-45, dtype=BF16)
        optimizer.step()
    # From the second step on; the first divides by what it has computed itself, as AdamW's does.
    assert (moments(optimizer)[1] == 2.0**-60).all()
    assert (p >= -0.01).all()


@each
def test_without_a_first_beta(precision: str) -> None:
    """What is stored of m has no part in the next step: weights are those of exact moments."""
    results = []
    for name in (precision, "stochastic"):
        p = parameter(SHAPE, BF16)
        optimizer = AdamW([p], 1e-2, (0.0, 0.0), precision=name)
        for t in range(4):
            p.grad = random(SHAPE, BF16, t, 0.1)
            optimizer.step()
        results.append(p.detach())
    assert_same_bits(*results)


@each
def test_maxima(precision: str) -> None:
    """AMSGrad's maximum is the largest v that was stored, beside which m is cut or not."""
    p = parameter(SHAPE, BF16)
    optimizer = AdamW([p], 1e-2, (0.9, 0.6), precision=precision, amsgrad=True)
    largest = torch.zeros(SHAPE)
    for t in range(12):
        p.grad = random(SHAPE, BF16, t, 0.1)
        optimizer.step()
        state = optimizer.state[p]
        largest = torch.maximum(largest, codes.read("exp_avg_sq", state))
        assert_same_bits(codes.read("max_exp_avg_sq", state), largest)


@pytest.mark.sampled(every=4)
@each
@pytest.mark.parametrize("size", [2.0**-33, 2.0, 100.0, 1e18])
def test_steps_of_any_size(precision: str, size: float) -> None:
    """30 steps of a constant gradient: each update in its direction, and within the bound."""
    lr, c = 2.0**-6, 7.3
    p = Parameter(torch.ones(SHAPE, dtype=BF16))
    optimizer = AdamW([p], lr, (0.9, 0.999), 1e-30, 0.0, precision=f"split16_{PARTS[precision]}")
    for _ in range(30):
        before = optimizer.master_weight(p)
        p.grad = torch.full(SHAPE, size, dtype=BF16)
        optimizer.step()
        update = before - optimizer.master_weight(p)
        assert (update > 0).all()
        assert (update <= c * lr * (1 + 2**-3)).all()


PARTS = {"8bit": "ratio8_ue6m2", "4bit": "ratio4_ue6m2"}
