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
from mcf.optim import (
    SGD,
    Adam,
    AdamW,
    CollageAdamW,
    GradientAccumulator,
    GradientRelease,
    MomentAccumulator,
)
from tests.helpers import assert_same_bits
from tests.helpers.everyday import everyday
from tests.helpers.executors import on_each_executor
from tests.optim.arithmetics import BF16, FP16, FP32, FP64
from tests.optim.helpers import (
    assert_same,
    give,
    parameter,
    parameters,
    random,
    scaler,
    stored,
    without_gradients,
)

pytestmark = pytest.mark.usefixtures("on_torch")


# The bound of the sum, for each gradient that is added.
BOUND = {BF16: 2.0**-17, FP16: 2.0**-22, FP32: 2.0**-46, FP64: 2.0**-104}


def accumulate(p: Parameter, gradients: list[Tensor]) -> tuple[Any, GradientAccumulator]:
    optimizer = SGD([p], 1.0)
    accumulator = GradientAccumulator(optimizer)
    for g in gradients:
        p.backward(g.clone())
    return optimizer, accumulator


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
        plain.backward(g.clone())
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
                    p.backward(g.to(dtype))
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
        p.backward(random(9, BF16, 1))
        assert not accumulated or len(accumulator.components(p)) == 1
        optimizer.step()
        results.append(stored(optimizer))
    assert_same(*results)


RESETS: dict[str, Any] = {
    "optimizer": lambda o, layer: o.zero_grad(),
    "optimizer to zero": lambda o, layer: o.zero_grad(set_to_none=False),
    "model": lambda o, layer: layer.zero_grad(),
    "model to zero": lambda o, layer: layer.zero_grad(set_to_none=False),
    "None": lambda o, layer: setattr(layer.weight, "grad", None),
}


@pytest.mark.parametrize("how", RESETS)
def test_reset_gradients_begin_a_new_sum(how: str) -> None:
    layer = nn.Linear(3, 1, bias=False).to(BF16)
    p = layer.weight
    optimizer = SGD([p], 1.0)
    accumulator = GradientAccumulator(optimizer)
    for value in (1.0, 2.0**-9):
        p.backward(torch.full((1, 3), value, dtype=BF16))
    assert [c[0, 0].item() for c in accumulator.components(p)] == [1.0, 2.0**-9]
    RESETS[how](optimizer, layer)
    for _ in range(2):
        p.backward(torch.full((1, 3), 4.0, dtype=BF16))
    total = sum(c.double() for c in accumulator.components(p))
    assert_same_bits(total, torch.full((1, 3), 8.0, dtype=FP64))


def test_sums_go_on_without_zero_grad_and_end_with_close() -> None:
    # As in torch: gradients add up until they are reset.
    p = Parameter(torch.zeros(1, dtype=BF16))
    small = torch.full((1,), 2.0**-9, dtype=BF16)
    optimizer, accumulator = accumulate(p, [torch.ones(1, dtype=BF16)] * 2)
    optimizer.step()
    p.backward(small)
    assert [c.item() for c in accumulator.components(p)] == [2.0, 2.0**-9]
    accumulator.close()
    for _ in range(2):
        p.backward(small)
    assert p.grad.item() == 2.0
    assert accumulator.components(p) == (p.grad,)


def test_a_sum_that_overflows_is_an_infinity() -> None:
    """The error of 3e38 + 3e38 would be the other infinity, and the sum of both NaN."""
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
        p.backward(torch.tensor([1.0, value, 1.0], dtype=BF16))
    assert_same_bits(p.grad, torch.tensor([3.0, bad, 3.0], dtype=BF16))
    amp = scaler()
    amp.step(optimizer)
    assert_same(without_gradients(stored(optimizer)), before)


def test_scaled_gradients_are_unscaled_in_both_components() -> None:
    results = []
    for scale in (1.0, 2.0**6):
        p = parameter(20, BF16)
        optimizer = AdamW([p], 1e-2)
        GradientAccumulator(optimizer)
        for k in range(4):
            p.backward(random(20, BF16, k) * scale)
        scaler(scale).step(optimizer)
        results.append(without_gradients(stored(optimizer)))
    assert_same(*results)


@pytest.mark.parametrize("how", ["unscale", "clip", "mul"])
def test_changes_in_place_are_refused(how: str) -> None:
    p = parameter(20, FP32)
    optimizer = AdamW([p], 1e-2)
    GradientAccumulator(optimizer)
    for k in range(2):
        p.backward(random(20, FP32, k))
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


def test_unfit_optimizers_are_refused() -> None:
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


# -- moments ---------------------------------------------------------------------------------------


def model() -> nn.Module:
    net = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)).to(BF16)
    with torch.no_grad():
        for k, p in enumerate(net.parameters()):
            p.copy_(random(p.shape, BF16, k))
    return net


def train(
    accumulated: bool, count: int = 1, make: Any = AdamW, **options: Any
) -> dict[str, Tensor]:
    """Four steps of so many backward passes each, with a schedule."""
    net = model()
    halves = [list(net[0].parameters()), [*net[1].parameters(), *net[2].parameters()]]
    optimizer = make([{"params": halves[0]}, {"params": halves[1], "lr": 0.1}], 0.01, **options)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    if accumulated:
        MomentAccumulator(optimizer)
    for t in range(4):
        for k in range(count):
            net(random((4, 8), BF16, count * t + k)).float().square().mean().backward()
            assert accumulated == all(p.grad is None for p in parameters(optimizer))
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    assert {int(s["step"]) for s in optimizer.state.values()} == {4}
    return stored(optimizer)


STRICT = {"compute_dtype": BF16, "betas": (0.9, 0.95)}


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (AdamW, {"precision": "master"}),
        (AdamW, {"precision": "fp32_states", "amsgrad": True, "max_grad_value": 1e-2}),
        (AdamW, {"precision": "plus", **STRICT}),
        (AdamW, {"precision": "light", **STRICT, "maximize": True, "decouple_lr": True}),
        (Adam, {"precision": "master"}),
        (Adam, {"precision": "plus", "amsgrad": True, "weight_decay": 0.1,
                "decoupled_weight_decay": True, **STRICT}),
        (CollageAdamW, {"mode": "plus", **STRICT}),
    ],
    ids=["master", "amsgrad", "plus", "light", "adam", "adam-amsgrad", "collage"],
)  # fmt: skip
def test_one_gradient_is_a_step(make: Any, options: dict[str, Any]) -> None:
    # Moments that are stored as they are computed: all bits of the step in one piece.
    assert_same(train(True, make=make, **options), train(False, make=make, **options))


def right(p: Tensor, steps: list[list[Tensor]], lr: float, decay: float) -> list[Tensor]:
    """AdamA on float32 numbers, each operation rounded once."""
    b1, b2, eps = 0.75, 0.96875, 2.0**-20
    m, v, one = torch.zeros_like(p), torch.zeros_like(p), torch.float64
    for t, gradients in enumerate(steps, 1):
        for k, g in enumerate(gradients):
            keep1, keep2 = (b1, b2) if k == 0 else (1, 1)
            m = m * keep1 + g * (1 - b1)
            v = v * keep2 + (g * g) * (1 - b2)
        inverse1, inverse2 = (1 / (1 - torch.tensor(b, dtype=one) ** t) for b in (b1, b2))
        root = (v * inverse2.to(FP32)).sqrt() + eps
        p = p - ((m * inverse1.to(FP32)) / root + p * decay) * lr
    return [p, m, v]


def test_the_formula() -> None:
    # Scalars are exact in float32, powers of the betas in float64.
    p, lr, decay = parameter(64, FP32), 2.0**-7, 0.125
    steps = [[random(64, FP32, 10 * t + k) for k in range(3)] for t in range(4)]
    expected = right(p.detach().clone(), steps, lr, decay)
    optimizer = AdamW([p], lr, (0.75, 0.96875), 2.0**-20, decay)
    MomentAccumulator(optimizer)
    for gradients in steps:
        for g in gradients:
            p.backward(g)
        optimizer.step()
    state = optimizer.state[p]
    for found, exact in zip(
        (p.detach(), state["exp_avg"], state["exp_avg_sq"]), expected, strict=True
    ):
        assert_same_bits(found, exact)


CASES = everyday(
    [
        ("numba", "8bit"),
        *[("numba", p) for p in ("plus", "bf16_sr", "4bit", "split8")],
        *[("triton", p) for p in ("plus", "bf16_sr", "8bit", "4bit", "split8")],
    ],
    [("numba", "8bit")],
)


@pytest.mark.slow
@pytest.mark.parametrize(("executor", "precision"), CASES)
def test_same_bits_on_each_executor(executor: str, precision: str) -> None:
    expected = train(True, 3, precision=precision)
    with mcf.executor(executor):
        assert_same(train(True, 3, precision=precision), expected)


def test_each_gradient_has_random_numbers_of_its_own() -> None:
    # 1, and twice half an ulp: rounded alike both times every element would be 1 or two ulps above.
    p = nn.Parameter(torch.zeros(4096, dtype=BF16))
    optimizer = AdamW([p], 0.0, betas=(0.5, 0.5), weight_decay=0.0, precision="bf16_sr")
    MomentAccumulator(optimizer)
    optimizer.init_state()
    optimizer.state[p]["exp_avg"].fill_(2.0)
    for _ in range(2):
        p.backward(torch.full_like(p, 2.0**-7))
    ulps = ((optimizer.state[p]["exp_avg"].double() - 1) * 2.0**7).tolist()
    # A binomial number of mean 2048 and standard deviation 32.
    assert abs(ulps.count(1.0) - 2048) < 200
    assert {*ulps} == {0.0, 1.0, 2.0}


def test_forward_passes_before_backward_passes() -> None:
    # As a pipeline has them: what the second backward pass reads must not count as written.
    net = model()
    optimizer = AdamW(net.parameters(), precision="plus")
    MomentAccumulator(optimizer)
    for _ in range(2):
        losses = [net(random((4, 8), BF16, k)).sum() for k in range(2)]
        for loss in losses:
            loss.backward()
        optimizer.step()


def test_parameters_without_gradients_stay() -> None:
    ps = [parameter(5, BF16, k) for k in range(3)]
    optimizer = AdamW(ps[:2], 0.1)
    MomentAccumulator(optimizer)
    optimizer.add_param_group({"params": [ps[2]]})
    before = [p.detach().clone() for p in ps]
    ps[0].sum().backward()
    optimizer.step()
    assert [torch.equal(p, q) for p, q in zip(ps, before, strict=True)] == [False, True, True]
    # Of a later group a gradient is a gradient; one that is put there by hand is taken.
    ps[2].sum().backward()
    assert ps[2].grad is not None
    ps[1].grad = torch.ones_like(ps[1])
    optimizer.step()
    assert ps[1].grad is None
    assert [int(optimizer.state[p]["step"]) for p in ps] == [1, 1, 1]
    assert not any(torch.equal(p, q) for p, q in zip(ps, before, strict=True))


def test_in_the_middle_of_a_step() -> None:
    p = parameter(5, BF16)
    optimizer = AdamW([p], 0.1)
    accumulator = MomentAccumulator(optimizer)
    optimizer.init_state()
    saved = optimizer.state_dict()
    p.sum().backward()
    moment = optimizer.state[p]["exp_avg"].clone()
    for what in (optimizer.zero_grad, optimizer.state_dict, accumulator.close):
        with pytest.raises(RuntimeError, match="in the middle of a step: the moments of 1 param"):
            what()
    assert_same_bits(optimizer.state[p]["exp_avg"], moment)
    # Other moments have taken nothing.
    optimizer.load_state_dict(saved)
    before = p.detach().clone()
    optimizer.step()
    assert_same_bits(p.detach(), before)
    accumulator.close()
    p.sum().backward()
    assert p.grad is not None


def test_closure_brings_gradients() -> None:
    results = []
    for accumulated in (False, True):
        p = parameter(5, BF16)
        optimizer = AdamW([p], 0.1, precision="master")
        if accumulated:
            MomentAccumulator(optimizer)
        optimizer.step(lambda p=p: p.sum().backward())
        optimizer.zero_grad()
        results.append(stored(optimizer))
    assert_same(*results)


UNFIT: list[tuple[Any, dict[str, Any], str]] = [
    (AdamW, {"max_grad_norm": 1.0}, "does not go with max_grad_norm"),
    (AdamW, {"nonfinite": "skip"}, "does not go with nonfinite='skip'"),
    (AdamW, {"track_metrics": True}, "does not go with track_metrics"),
    (AdamW, {"precision": "eco"}, "does not go with precision='eco' of params"),
    (Adam, {"weight_decay": 0.1}, "would be taken once for each micro-batch; allowed are 0"),
    (SGD, {"lr": 0.1}, "allowed are Adam, AdamW and CollageAdamW"),
    (torch.optim.AdamW, {}, "allowed are Adam, AdamW and CollageAdamW"),
]


@pytest.mark.parametrize(("make", "options", "words"), UNFIT)
def test_optimizers_without_moments_to_add_to_are_refused(
    make: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        MomentAccumulator(make([parameter(4, BF16)], **options))


def test_companions_that_exclude_each_other_are_refused() -> None:
    for first, words in (
        (GradientAccumulator, "does not go with another accumulator"),
        (GradientRelease, "does not go with gradient release"),
    ):
        optimizer = AdamW([parameter(4, BF16)])
        first(optimizer)
        with pytest.raises(ValueError, match=words):
            MomentAccumulator(optimizer)
    with pytest.raises(TypeError, match="is an expansion; allowed are plain tensors"):
        MomentAccumulator(AdamW([nn.Parameter(mcf.zeros(3, terms=2, dtype=BF16))]))
    p = parameter(4, BF16)
    mine = Adam([p])
    MomentAccumulator(mine)
    for make in (GradientRelease, GradientAccumulator, MomentAccumulator):
        with pytest.raises(ValueError, match=r"accumulator"):
            make(mine)
    with pytest.raises(RuntimeError, match="under a GradScaler"):
        scaler().step(mine)
    # Set later: said by the backward pass, before a moment has changed.
    mine.param_groups[0]["weight_decay"] = 0.1
    with pytest.raises(ValueError, match="would be taken once for each micro-batch"):
        p.sum().backward()
    assert not mine.state
