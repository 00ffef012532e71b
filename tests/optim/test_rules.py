"""The bits and values of every rule against models of its arithmetic (`models.py`).

*Exact*: with float64 parameters, after 60 steps the distance to the run without rounding is below
1e-13 of the distance travelled: each step rounds by some u = 1.1e-16 of the parameter and of the
update, and moments forget (measured: at most 2e-14).

*Registers*: in the default arithmetic all stored tensors have the bits of `Registers` after every
step: one rounding to the register per operation, one to 16 bits when stored.

*Strict*: with compute_dtype the parameter's 16-bit dtype, every state after every step has the
values of `Strict`. Leaving any single rounding of the model out makes it differ
(`test_every_rounding_counts`), so each rounding point is tested. Zero comes without its sign, which
the executors' own comparison covers.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from mcf.kernels import host
from mcf.kernels.formats import format_of
from mcf.optim import SGD, AdamW, Adan, Lion, ScheduleFreeAdamW, StableAdamW
from mcf.optim.rules import ademamix
from tests.helpers import count_different, numbers
from tests.helpers.draws import power_of_two
from tests.helpers.everyday import everyday
from tests.optim.arithmetics import AT_RANDOM, BF16, FP16, FP32, FP64, Case
from tests.optim.helpers import assert_same, parameter, random, steps, stored
from tests.optim.models import Exact, Registers, State, Strict, history
from tests.optim.variants import RECENT, VARIANTS, Variant, named, pairs

pytestmark = pytest.mark.usefixtures("on_torch")

_SGD = {**named("sgd-decoupled").options, "dampening": 0.0}
DECOUPLED = [
    Variant("sgd-decoupled-plain", SGD, {**_SGD, "momentum": 0.0}),
    Variant("sgd-decoupled-nesterov", SGD, {**_SGD, "nesterov": True}),
]
TOLERANCE = 1e-13


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("variant", [*VARIANTS, *DECOUPLED, *RECENT], ids=str)
def test_float64_run_is_exact(variant: Variant) -> None:
    p = Parameter(random(40, FP64, 1))
    start = p.detach().clone()
    exact = Exact(variant.rule, start, variant.options)
    optimizer: Any = variant.make([p], **variant.options)
    for t in range(60):
        # Sizes that fall and rise, so that a maximum is kept for a while.
        p.grad = random(40, FP64, 10 + t, 10.0 ** -(t % 7))
        exact.step(p.grad)
        optimizer.step()
    end = exact.state["param"]
    found = float((p.detach() - end.floats()).norm() / (end.floats() - start).norm())
    print(f"{variant}: {found:.2g}")
    assert found < TOLERANCE
    if variant.make is StableAdamW:
        # Some rates are divided, and some are not.
        assert 0 < sum(mean > 1 for mean in exact.means) < 60
    if variant.make is ScheduleFreeAdamW:
        optimizer.eval()
        # x of y = b1 x + (1 - b1) z.
        beta1 = exact.exactly(variant.options["betas"][0])
        x = (end - (1 - beta1) / beta1 * exact.state["z_minus_y"]).floats()
        assert float((p.detach() - x).norm() / (x - start).norm()) < TOLERANCE


# Scalars of some are not computed as the model computes them, which float64 registers would see.
_SCALARS = ("ademamix", "ademamix-from-0", "stable-adamw")
# What rounds at random is in test_stochastic.py.
PAIRS = [
    (v, case)
    for v, case in pairs([*VARIANTS, *RECENT], "cases", "full")
    if not case.strict
    and case.precision not in AT_RANDOM
    and (case.dtype != FP64 or v.name not in _SCALARS)
]


@pytest.mark.sampled(every=45)
@pytest.mark.parametrize(("variant", "case"), PAIRS, ids=str)
def test_default_arithmetic_has_the_bits_of_the_model(variant: Variant, case: Case) -> None:
    model = Registers("plain" if case.dtype in (FP32, FP64) else case.precision, case.dtype)
    start = random(500, case.dtype, 1)
    start[::4] = 0
    p = Parameter(start.clone())
    optimizer = variant.make([p], **variant.options, **case.options())
    registers = model.register(start)
    zero = np.zeros_like(registers)
    now: State = defaultdict(lambda: zero, param=registers, master_param=registers)
    if model.precision in ("kahan", "light", "plus"):
        now["param_lo"] = zero
    for t in range(1, 9):
        p.grad = random(500, case.dtype, 10 + t, 0.1)
        optimizer.step()
        now.update(model.after(variant.rule, now, model.register(p.grad), t=t, **variant.options))
        for name, found in {"param": p, **optimizer.state[p]}.items():
            if found.shape == p.shape:
                expected = torch.from_numpy(now[name].astype(model.kind)).to(found.dtype)
                assert count_different(found, expected) == 0, (name, t)


# -- strict arithmetic ---------------------------------------------------------------------------


def _chosen(variant: Variant, case: Case) -> bool:
    """AdamW with all arithmetics, rules in bf16 with most steps, their variants in fp16."""
    light = Case("light", FP16, FP16)
    return variant.name == "adamw" or case == (light if "-" in variant.name else variant.few()[1])


STRICT = everyday([(v, case) for v, case in pairs(VARIANTS, "cases") if case.strict], _chosen)

ADAMW = named("adamw")


def wide_numbers(dtype: torch.dtype, seed: int, n: int = 200) -> Tensor:
    """Numbers of many magnitudes, ordinary ones and zeros; within fp16's range for fp16."""
    exponent = random(n, torch.float64, seed + 7).abs() * (-8 if dtype == BF16 else -1)
    x = random(n, torch.float64, seed) * power_of_two(exponent.round())
    x[: n // 2] = random(n // 2, torch.float64, seed + 1, 0.3)
    x[::10] = 0
    return x.to(dtype)


def gradients(dtype: torch.dtype) -> list[Tensor]:
    # RAdam's second formula begins with the sixth step.
    return [wide_numbers(dtype, 100 + t) for t in range(7)]


def measured(variant: Variant, case: Case) -> list[list[State]]:
    """Return the states of each number after each step of the optimizer itself."""
    p = Parameter(wide_numbers(case.dtype, 3))
    optimizer = variant.make([p], **variant.options, **case.options())
    steps = []
    for g in gradients(case.dtype):
        p.grad = g
        optimizer.step()
        tensors = {"param": p, **optimizer.state[p]}
        columns = {n: numbers(t) for n, t in tensors.items() if t.shape == p.shape}
        rows = zip(*columns.values(), strict=True)
        steps.append([dict(zip(columns, row, strict=True)) for row in rows])
    return [list(states) for states in zip(*steps, strict=True)]


def modelled(variant: Variant, model: Strict, case: Case) -> Iterator[list[State]]:
    """Yield the states of each number after each step of the model."""
    columns = zip(*(numbers(g) for g in gradients(case.dtype)), strict=True)
    for x, gs in zip(numbers(wide_numbers(case.dtype, 3)), columns, strict=True):
        yield history(model, variant.rule, {"param": x}, list(gs), **variant.options)


def first_difference(truth: list[list[State]], model: Iterator[list[State]]) -> str:
    """Describe the first difference of optimizer and model; empty if there is none."""
    for k, (mine, theirs) in enumerate(zip(truth, model, strict=True)):
        for t, (a, b) in enumerate(zip(mine, theirs, strict=True), 1):
            for name in a.keys() | b.keys():
                x, y = a.get(name), b.get(name)
                if x != y:
                    return f"number {k}, step {t}, {name}: {x} in the optimizer, {y} in the model"
    return ""


@pytest.mark.sampled(every=24)
@pytest.mark.parametrize(("variant", "case"), STRICT, ids=str)
def test_strict_arithmetic_is_the_model(variant: Variant, case: Case) -> None:
    model = Strict(format_of(case.dtype), case.precision)
    assert not first_difference(measured(variant, case), modelled(variant, model, case))


# What follows from theorems, whatever the inputs: Fast2Sum's s - a is exact where a is the larger
# (Sterbenz), and so is the error that it ends with. Kahan's call has no such order.
EXACT = {"p s - a", "v s - a", "dp", "dv"}
# Lion uses the sign of a sum only. Rounding the sum keeps it; that of its terms is tested below.
EXACT |= {"x", "b1 x", "(1-b1) x"}


@pytest.mark.slow
@pytest.mark.sampled(every=9)
@pytest.mark.parametrize(
    ("variant", "precision"),
    # What plain and light round, plus rounds as well.
    [pytest.param(ADAMW, p, marks=pytest.mark.slow) for p in ("plain", "light")]
    + [(ADAMW, p) for p in ("kahan", "plus")]
    # Each formula once: these have every slot that a variant of them fills otherwise.
    + [(named(n), "plus") for n in ("adam-amsgrad", "nadam", "radam", "adamax")]
    + [(named("lion"), "light")],
    ids=str,
)
def test_every_rounding_counts(variant: Variant, precision: str) -> None:
    # Large, so that an update moves the parameter by many of its ulps and the last bits are seen.
    large = dataclasses.replace(variant, options={**variant.options, "lr": 0.3})
    case = Case(precision, BF16, BF16)
    truth = measured(large, case)
    complete = Strict(format_of(BF16), precision)
    assert not first_difference(truth, modelled(large, complete, case))
    unseen = {
        point
        for point in complete.points - EXACT
        if not first_difference(
            truth, modelled(large, Strict(format_of(BF16), precision, point), case)
        )
    }
    assert not unseen, "leaving these roundings out changes nothing"


def test_lion_rounds_what_it_takes_the_sign_of() -> None:
    # Products that cancel as rounded, and do not where one of them is left exact: sign(0) = 0.
    b1, rest = (torch.tensor(x, dtype=torch.float32) for x in (0.9, 1 - 0.9))
    m = torch.arange(128, 256).to(BF16).repeat_interleave(256)
    g = -(torch.arange(1024, 2304, 5).to(BF16)).repeat(128)
    exact_m, exact_g = b1.double() * m.double(), rest.double() * g.double()
    rounded_m, rounded_g = (b1 * m.float()).to(BF16).double(), (rest * g.float()).to(BF16).double()
    cancel = rounded_m + rounded_g == 0
    assert (cancel & (exact_m + rounded_g != 0)).sum() > 10
    assert (cancel & (rounded_m + exact_g != 0)).sum() > 10
    p = Parameter(torch.zeros(int(cancel.sum()), dtype=BF16))
    optimizer = Lion([p], 1.0, precision="plain", compute_dtype=BF16)
    p.grad = g[cancel]
    optimizer.step()
    p.data.zero_()
    optimizer.state[p]["exp_avg"].copy_(m[cancel])
    optimizer.step()
    assert (p == 0).all()


def test_moments_are_divided_by_their_corrections() -> None:
    # RN(m / c1) differs from RN(m RN(1 / c1)) in one number of 100,000: these are some of them.
    # With beta2 = 0, g = 1, eps = 0, lr = 1 and no decay the step is p - m / c1.
    beta1 = 0.999
    before = torch.cat([torch.arange(128, 256) * 2.0**e for e in range(-10, 1)])
    m = (torch.tensor(beta1) * before).to(BF16).float()
    m = (m + torch.tensor(1 - beta1).to(BF16).float()).to(BF16).float()
    seen = 0
    for t in range(2, 1500):
        correction = 1 - beta1**t
        divided = (m / torch.tensor(correction, dtype=torch.float32)).to(BF16)
        multiplied = (m * torch.tensor(1 / correction, dtype=torch.float32)).to(BF16)
        differ = divided != multiplied
        if not differ.any():
            continue
        seen += int(differ.sum())
        p = Parameter(torch.zeros(int(differ.sum()), dtype=BF16))
        p.grad = torch.ones_like(p)
        optimizer = AdamW([p], 1.0, (beta1, 0.0), 0.0, 0.0, precision="light", compute_dtype=BF16)
        optimizer.step()
        optimizer.state[p]["exp_avg"].copy_(before[differ])
        optimizer.state[p]["param_lo"].zero_()
        optimizer.state[p]["step"].fill_(t - 1)
        p.data.zero_()
        optimizer.step()
        assert torch.equal(-p.detach(), divided[differ])
    assert seen > 0


# -- recent ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "options", "more"),
    [
        (Adan, {"betas": (0.98, 0.92, 0.99)}, {}),
        (StableAdamW, {"betas": (0.9, 0.9)}, {"triton": False, "foreach": False}),
    ],
    ids=["adan", "stable-adamw"],
)
def test_float64_run_is_optimis(make: Any, options: dict[str, Any], more: dict[str, Any]) -> None:
    optimi = pytest.importorskip("optimi", reason="a peer of the benchmarks")
    mine, theirs = parameter(20, FP64), parameter(20, FP64)
    options = {"lr": 1e-2, "eps": 1e-6, "weight_decay": 0.02, **options}
    other = getattr(optimi, make.__name__)([theirs], kahan_sum=False, **options, **more)
    for optimizer in (make([mine], **options), other):
        for t in range(20):
            steps(optimizer, 1, seed=t, scale=10.0 ** (t % 3))
    # Each rounds by some 2**-53 in a step.
    assert (mine - theirs).abs().max() < 1e-13


def test_stable_adamw_by_a_gradient_that_is_not_finite_clips_nothing() -> None:
    """An infinity, a gradient of zeros, a tensor without elements: the other elements move on."""
    p, zero, nothing = parameter(4, BF16, 1), parameter(3, BF16, 2), parameter(0, BF16)
    optimizer = StableAdamW([p, zero, nothing], 0.01, eps=0.0, weight_decay=0.0)
    before = p.detach().clone(), zero.detach().clone()
    p.grad = torch.tensor([1.0, torch.inf, -1.0, 1.0], dtype=BF16)
    zero.grad, nothing.grad = torch.zeros(3, dtype=BF16), torch.zeros(0, dtype=BF16)
    optimizer.step()
    moved = p.detach().float() - before[0].float()
    assert moved[[0, 2, 3]].sign().tolist() == [-1.0, 1.0, -1.0]
    assert not moved[1].isfinite()


def test_one_minus_exp_is_within_16_units() -> None:
    """1 - e^x to 16 units in the last place (measured: 6) for x from -18 to -1e-16."""
    function = host.bind(ademamix.one_minus_exp)
    with mpmath.workprec(200):
        for k in range(500):
            x = -18.0 * 0.93**k
            right = -mpmath.expm1(mpmath.mpf(x))
            assert abs(function(x) / right - 1) < 16 * 2.0**-53
    assert ademamix.inverse_log(0.0) == 0.0


# -- low precision -----------------------------------------------------------------------------


def test_leading_bits_are_rounded_rates() -> None:
    """The first component of a rate is the rate rounded to the format."""
    split = host.bind(ademamix.leading_bits)
    for beta in (0.9999, 0.999, 0.875, 0.98765):
        for dtype, bits in ((BF16, 8), (FP16, 11)):
            high = split(beta, 2.0 ** (53 - bits) + 1)
            assert high == torch.tensor(beta, dtype=FP64).to(dtype).item()
    assert split(0.9999, 1.0) == 0.9999


# -- schedule-free: two modes ------------------------------------------------------------------


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("precision", ["plus", "light", "master", "split16", "bf16_sr", "8bit"])
def test_evaluation_changes_no_bit_of_training(precision: str) -> None:
    """Evaluation changes no bit of the training, also where it is saved and resumed in between."""
    runs = []
    for how in ("never", "between", "saved"):
        p, q = parameter((3, 4), BF16), parameter(5, FP32)
        optimizer = ScheduleFreeAdamW([p, q], 0.01, precision=precision)
        steps(optimizer, 4)
        before = stored(optimizer)
        if how != "never":
            optimizer.eval()
            optimizer.eval()
            assert not torch.equal(p, before["0.param"])
            with pytest.raises(RuntimeError, match=r"step\(\) in eval mode.*call train\(\)"):
                optimizer.step()
        if how == "saved":
            saved = copy.deepcopy(optimizer.state_dict())
            optimizer = ScheduleFreeAdamW([p, q], 0.01, precision=precision)
            optimizer.load_state_dict(saved)
        optimizer.train()
        assert_same(stored(optimizer), before)
        steps(optimizer, 3, seed=9)
        runs.append(stored(optimizer))
    for run in runs[1:]:
        assert_same(run, runs[0])
