"""torch.amp.GradScaler beside these optimizers: it hands its scale to the step and looks for inf.

Scales are powers of two, as GradScaler's are by default: then unscaling is exact, and a step on
scaled gradients has the bits of a step on unscaled ones.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import Parameter

import mcf
import mcf.optim
from mcf.optim import SGD, AdamW
from tests.helpers import assert_same_bits
from tests.optim.arithmetics import BF16, FP16, FP32, FP64, Case, cases
from tests.optim.helpers import (
    assert_same,
    parameter,
    random,
    scaler,
    steps,
    stored,
    without_gradients,
)

pytestmark = pytest.mark.usefixtures("on_torch")


@pytest.mark.sampled
@pytest.mark.parametrize("make", [AdamW, SGD])
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32, FP64], ids=str)
def test_scaled_steps_are_unscaled_steps(make: Any, dtype: torch.dtype) -> None:
    results = []
    for scale in (1.0, 2.0**10):
        p = parameter((5, 7), dtype)
        optimizer = make([p], 1e-2, fused=True)
        amp = scaler(scale)
        for t in range(3):
            # Multiples of 2**-6 up to 2: exact in every format, scaled and not.
            g = (random((5, 7), FP64, t + 1) * 8).round().clamp(-16, 16) / 8
            p.grad = (g * scale).to(dtype)
            assert optimizer.state.get(p, {}).get("step", torch.tensor(0)).item() == t
            amp.step(optimizer)
            amp.update()
            assert_same_bits(p.grad, (g * scale).to(dtype), "the gradient is left as it was")
        results.append(without_gradients(stored(optimizer)))
        assert not hasattr(optimizer, "found_inf")
    assert_same(*results)


SUPPORT: list[tuple[str, Any, bool]] = [
    ("as torch's default", lambda: AdamW([parameter(3, BF16)]), False),
    ("foreach", lambda: SGD([parameter(3, FP32)], foreach=True), False),
    ("as torch's fused", lambda: AdamW([parameter(3, BF16)], fused=True), True),
    ("fused=False", lambda: AdamW([parameter(3, BF16)], fused=False), False),
    ("float16, which torch does not divide", lambda: SGD([parameter(3, FP16)]), True),
    ("expansions", lambda: AdamW([Parameter(mcf.tensor([1.0], terms=2, dtype=BF16))]), True),
    ("capturable", lambda: AdamW([parameter(3, FP32)], capturable=True), True),
    ("plugin", lambda: mcf.optim.collage(torch.optim.SGD, [parameter(3, BF16)]), False),
    ("fused plugin",
     lambda: mcf.optim.collage(torch.optim.SGD, [parameter(3, BF16)], fused=True), True),
    ("float16 plugin", lambda: mcf.optim.collage(torch.optim.SGD, [parameter(3, FP16)]), True),
]  # fmt: skip


@pytest.mark.parametrize(("what", "make", "supports"), SUPPORT, ids=[s[0] for s in SUPPORT])
def test_who_divides_by_the_scale(what: str, make: Any, supports: bool) -> None:
    # Lightning, whose "bf16-mixed" needs no scaler, clips no gradients where the step would.
    optimizer = make()
    assert getattr(optimizer, "_step_supports_amp_scaling", False) is supports


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_either_way_the_bits_are_the_same(dtype: torch.dtype) -> None:
    results = []
    for fused in (None, True):
        p = parameter((5, 7), dtype)
        optimizer = AdamW([p], 1e-2, fused=fused, max_grad_norm=1.0)
        amp = scaler()
        for t in range(3):
            p.grad = random((5, 7), dtype, t + 1) * 2.0**10
            if t == 1:
                p.grad[0, 0] = torch.inf
            amp.step(optimizer)
            amp.update(2.0**10)
        assert optimizer.state[p]["step"].item() == 2
        results.append(without_gradients(stored(optimizer)))
    assert_same(*results)


def test_lightning_clips() -> None:
    pytest.importorskip("lightning", reason="lightning is not installed")
    from lightning.pytorch.plugins import MixedPrecision

    p = parameter(4, FP32)
    optimizer = AdamW([p], 1e-2)
    p.grad = torch.full_like(p, 8.0)
    MixedPrecision("bf16-mixed", "cpu").clip_gradients(optimizer, clip_val=1.0)
    assert p.grad.norm().item() < 1.001
    with pytest.raises(RuntimeError, match="does not allow for gradient clipping"):
        MixedPrecision("bf16-mixed", "cpu").clip_gradients(AdamW([p], fused=True), clip_val=1.0)


@pytest.mark.sampled(every=9)
@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("case", cases(), ids=str)
def test_a_skipped_step_changes_no_bit(case: Case, bad: float) -> None:
    for before_steps in (0, 2):
        params = [parameter((3, 4), case.dtype, 1), parameter(5, case.dtype, 2)]
        optimizer = AdamW(params, 1e-2, eps=1e-4, fused=True, **case.options())
        if before_steps:
            steps(optimizer, before_steps)
        for p in params:
            p.grad = torch.ones_like(p)
        params[1].grad[3] = bad
        before = stored(optimizer)
        amp = scaler()
        amp.step(optimizer)
        assert_same(stored(optimizer), before)
        amp.update()
        assert amp.get_scale() == 2.0**9
        # The next one is a step as if nothing had been.
        params[1].grad[3] = 1
        amp.step(optimizer)
        assert all(optimizer.state[p]["step"].item() == before_steps + 1 for p in params)


def test_unscaled_before_as_for_clipping() -> None:
    # The documented order of torch: unscale_, clip_grad_norm_, step.
    results = []
    for scale in (1.0, 2.0**8):
        p = parameter(50, FP32)
        optimizer = AdamW([p], 1e-2)
        amp = scaler(scale)
        for t in range(3):
            p.grad = random(50, FP32, t + 1) * scale
            amp.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_([p], 0.5)
            amp.step(optimizer)
            amp.update()
        results.append(stored(optimizer))
    assert_same(*results)
    # And where unscale_ found an infinity, nothing changes.
    p.grad = torch.full_like(p, torch.inf)
    before = without_gradients(stored(optimizer))
    amp.unscale_(optimizer)
    amp.step(optimizer)
    assert_same(without_gradients(stored(optimizer)), before)


@pytest.mark.parametrize("own", [4.0, torch.tensor(4.0), torch.tensor([4.0])])
def test_a_scale_of_ones_own_divides_every_step(own: Any) -> None:
    results = []
    for scale in (None, own):
        p = Parameter(torch.ones(5, dtype=BF16))
        optimizer = AdamW([p], 1e-2)
        if scale is not None:
            optimizer.grad_scale = scale
        p.grad = torch.full_like(p, 1.0 if scale is None else 4.0)
        optimizer.step()
        results.append(without_gradients(stored(optimizer)))
    assert_same(*results)


@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
def test_scale_that_is_no_power_of_two(dtype: torch.dtype) -> None:
    # 1 / scale is rounded once to the registers, and so is its product with the gradient: what
    # torch's unscale_ of a float32 copy of the gradient does.
    g = random(1000, dtype, 1, 100.0)
    p = Parameter(torch.zeros(1000, dtype=dtype))
    optimizer = SGD([p], 0.5, precision="master", fused=True)
    amp = scaler(768.1)
    p.grad = g
    amp.step(optimizer)
    copy = Parameter(torch.zeros(1000))
    reference = torch.optim.SGD([copy], 0.5)
    copy.grad = g.float()
    again = scaler(768.1)
    again.step(reference)
    assert_same_bits(optimizer.state[p]["master_param"], copy)
