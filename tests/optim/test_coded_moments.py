"""Moments in codes of 8 or 4 bits, and moments in bf16, rounded stochastically: numbers and steps.

The bound of |m| / sqrt(v), by which a first moment needs no scale, is reached by the gradients that
Cauchy's inequality names and never passed. A step computes with the stored numbers, in float32, and
stores one of the two neighbours of each result.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.nn import Parameter

import mcf
from mcf.kernels import layouts
from mcf.optim import (
    SGD,
    Adamax,
    AdamW,
    Adan,
    Lion,
    Precision,
    ScheduleFreeAdamW,
    collage,
    convert,
    set_index_offset,
)
from mcf.optim.sharding import shards
from mcf.optim.storage import codes
from tests.helpers import assert_same_bits
from tests.helpers.executors import EXECUTORS
from tests.optim.arithmetics import BF16, FP16, FP64
from tests.optim.coded_moments import (
    ALONE,
    PAIRS,
    RULES,
    SHAPE,
    averages,
    distance,
    moments,
    number,
    numbers,
    unit,
)
from tests.optim.helpers import assert_same, parameter, random, steps, stored, through_file

pytestmark = pytest.mark.usefixtures("on_torch")


each = pytest.mark.parametrize("precision", ["8bit", "4bit"])


# -- bounds of first moments by the root of the second ------------------------------------------


def responses(make: Any, count: int) -> dict[str, list[float]]:
    """Return the share of the last `count` numbers a in each state, last first.

    v is the average of the squares of a, which is the gradient g; with Adan it is g + b2 d, so that
    g = (a + b2 g_before) / (1 + b2). |state| is at most c sqrt(v), c^2 the sum of share_k^2 /
    ((1 - b3) b3^k), by Cauchy's inequality.
    """
    g = m = n = 0.0
    found: dict[str, list[float]] = {"exp_avg": [], "exp_avg_diff": [], "previous_grad": []}
    for k in range(count):
        before, first = g, 1.0 if k == 0 else 0.0
        g = (first + 0.9 * g) / 1.9 if make is Adan else first
        m, n = 0.9 * m + 0.1 * g, 0.9 * n + 0.1 * (g - before)
        for name, x in (("exp_avg", m), ("exp_avg_diff", n), ("previous_grad", g)):
            found[name].append(x)
    return found


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("make", "name"),
    [(AdamW, "exp_avg"), (Adan, "exp_avg"), (Adan, "exp_avg_diff"), (Adan, "previous_grad")],
)
def test_bounds_of_states_by_the_root_of_v_are_reached(make: Any, name: str) -> None:
    """8 bits hold 112 u, and so each of these."""
    count = 300
    parts = responses(make, count)[name]
    c = sum(x * x / (0.01 * 0.99**k) for k, x in enumerate(parts)) ** 0.5
    p = Parameter(torch.zeros(1, dtype=FP64))
    optimizer = make([p], 0.0, (0.9, 0.9, 0.99) if make is Adan else (0.9, 0.99))
    g = 0.0
    for k in reversed(range(count)):
        a = parts[k] / 0.99**k
        # d is 0 in the first step.
        g = (a + 0.9 * g) / 1.9 if make is Adan and k < count - 1 else a
        p.grad = torch.full((1,), g, dtype=FP64)
        optimizer.step()
    state = optimizer.state[p]
    found = float(state[name].abs() / state["exp_avg_sq"].sqrt())
    print(f"{make.__name__} {name}: {c:.3g}")
    assert 0.999 * c < found <= c * (1 + 1e-9)
    assert c < 112


# -- what a step stores, and what it computes with ------------------------------------------------


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(("rule", "precision"), PAIRS)
def test_stored_numbers_are_neighbours_of_averages(rule: str, precision: str) -> None:
    """In 10 steps, each from the numbers that the one before has stored."""
    p = parameter(SHAPE, BF16)
    optimizer = RULES[rule]([p], precision=precision)
    was: dict[str, Tensor] = {}
    for t in range(10):
        p.grad = random(SHAPE, BF16, t, 0.1)
        optimizer.step()
        state = optimizer.state[p]
        found = numbers(state)
        was = was or {n: torch.zeros(SHAPE, dtype=FP64) for n in found}
        for name, x in averages(rule, was, p.grad.double(), t).items():
            if rule in ALONE:
                off = x.abs() / 4 + 2.0**-28
            elif state[name].dtype == BF16:
                off = x.abs() * 2.0**-7
            elif name in ("exp_avg_sq", "exp_inf"):
                off = x / 4
            else:
                # Relative to the power of two above sqrt(v), or to the one below Adamax's norm.
                second = found.get("exp_avg_sq", found.get("exp_inf"))
                assert second is not None
                u = unit(second if rule != "adamax" else second**2 / 4)
                packed = state[name].shape != p.shape
                off = distance(x, u) if packed else x.abs() / 8 + 2.0**-10 * u
            assert ((found[name] - x).abs() <= off * (1 + 1e-5) + 1e-12).all(), (name, t)
        was = found
    if rule in ALONE:
        held = [p, p.grad, *(x for x in state.values() if x.dim())]
        assert sum(x.nbytes for x in held) == 5 * p.numel()


@pytest.mark.parametrize("rule", [r for r in RULES if r not in ALONE])
def test_step_is_that_of_the_stored_numbers(rule: str) -> None:
    """The weight before its rounding: that of float64 from the same numbers.

    So StableAdamW's sums decode v, too: half of its steps here are clipped.
    """
    p = parameter(SHAPE, BF16)
    optimizer = RULES[rule]([p], precision="split16_8bit")
    for t in range(6):
        q = Parameter(optimizer.master_weight(p).double())
        other = RULES[rule]([q])
        p.grad = random(SHAPE, BF16, t, 0.1 * 8.0 ** (t % 2))
        q.grad = p.grad.double()
        if t:
            state = optimizer.state[p]
            scalars = {n: x.clone() for n, x in state.items() if not x.dim()}
            other.state[q] = {**numbers(state), **scalars}
        optimizer.step()
        other.step()
        # 24 bits of precision, and float32 registers: some of their units of the update.
        off = (optimizer.master_weight(p).double() - q.detach()).abs()
        assert (off <= q.detach().abs() * 2.0**-24 + 1e-2 * 2.0**-17).all(), t


# -- limits of the formats ------------------------------------------------------------------------


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("executor", EXECUTORS)
@each
def test_weights_without_gradients_stay(executor: str, precision: str) -> None:
    """So do those whose squares are below float32's range."""
    with mcf.executor(executor):
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
    # m of the others is relative to 2**-63, the smallest power of two.
    assert (m[2].abs() <= 112 * 2.0**-63).all()


@pytest.mark.sampled(every=8)
@pytest.mark.parametrize("executor", EXECUTORS)
@each
@pytest.mark.parametrize("size", [2.0**-40, 2.0**-33, 2.0, 100.0, 1e18])
def test_steps_of_any_size_are_bounded(executor: str, precision: str, size: float) -> None:
    """Keep v at 2**-60 or 10 under constant gradients beyond these."""
    lr, c = 2.0**-6, 7.3
    p = Parameter(torch.ones(SHAPE, dtype=BF16))
    name = f"split16_ratio{precision[0]}_ue6m2"
    optimizer = AdamW([p], lr, (0.9, 0.999), 1e-30, 0.0, precision=name)
    for _ in range(30):
        before = optimizer.master_weight(p)
        p.grad = torch.full(SHAPE, size, dtype=BF16)
        with mcf.executor(executor):
            optimizer.step()
        update = before - optimizer.master_weight(p)
        # Under a gradient below 2**-30 the update becomes smaller, down to nothing.
        assert (update > 0).all() if size > 2.0**-34 else (update >= 0).all()
        # Bias corrections of the first steps: at most (1 - b2^t)^.5 / (1 - b1^t) < 1.
        assert (update <= c * lr * (1 + 2**-3)).all()
    _, v = moments(optimizer)
    assert (v >= 2.0**-60).all()
    assert (v == 10).all() if size >= 100 else (v <= 10).all()


@each
def test_eps_below_the_smallest_root_divides_by_that(precision: str) -> None:
    p = Parameter(torch.ones(SHAPE, dtype=BF16))
    optimizer = AdamW([p], 1.0, (0.9, 0.95), 1e-30, 0.0, precision=precision)
    for _ in range(3):
        p.grad = torch.full(SHAPE, 2.0**-45, dtype=BF16)
        optimizer.step()
    # From the second step on; the first divides by its computed v, as AdamW's does.
    assert (moments(optimizer)[1] == 2.0**-60).all()
    assert (p >= -0.01).all()


@each
def test_beta1_of_0_steps_as_exact_moments(precision: str) -> None:
    """The stored m has no part in the next step."""
    results = []
    for name in (precision, "stochastic"):
        p = parameter(SHAPE, BF16)
        optimizer = AdamW([p], 1e-2, (0.0, 0.0), precision=name)
        for t in range(4):
            p.grad = random(SHAPE, BF16, t, 0.1)
            optimizer.step()
        results.append(p.detach())
    assert_same_bits(*results)


def test_first_steps_in_4_bits_cut_large_moments() -> None:
    """Cut m above 3 u: |m| is up to 6.5 sqrt(v) under constant gradients at beta2 = 0.999."""
    p = Parameter(torch.ones(SHAPE, dtype=BF16))
    optimizer = AdamW([p], 2.0**-6, (0.9, 0.999), precision="4bit")
    for t in range(1, 40):
        p.grad = torch.full(SHAPE, 0.5, dtype=BF16)
        optimizer.step()
        m, v = moments(optimizer)
        assert (m <= 3 * unit(v)).all()
        if t == 10:
            assert (m == 3 * unit(v)).float().mean() > 0.5
            # Still the direction of the gradient, at half of its length.
            assert m.mean() >= 0.5 * 0.5 * (1 - 0.9**t)


@pytest.mark.parametrize("precision", ["bf16_sr", "8bit", "4bit"])
def test_amsgrad_keeps_the_largest_stored_number(precision: str) -> None:
    p = parameter(SHAPE, BF16)
    optimizer = AdamW([p], 1e-2, (0.9, 0.6), precision=precision, amsgrad=True)
    largest = torch.zeros(SHAPE, dtype=FP64)
    for t in range(12):
        p.grad = random(SHAPE, BF16, t, 0.1)
        optimizer.step()
        state = optimizer.state[p]
        largest = torch.maximum(largest, number("exp_avg_sq", state))
        assert_same_bits(number("max_exp_avg_sq", state), largest)


@pytest.mark.sampled(every=12)
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(
    ("rule", "precision"),
    [*(("adamw", p) for p in ("bf16_sr", "8bit", "4bit", "split8_8bit")), ("sgd", "8bit")],
)
def test_damage_stays_in_its_element(executor: str, rule: str, precision: str) -> None:
    """NaN and infinity reach parameter and moments of their element, and stay."""
    more = {"amsgrad": True} if rule == "adamw" else {}
    with mcf.executor(executor):
        p = parameter(SHAPE, BF16)
        optimizer = RULES[rule]([p], precision=precision, **more)
        for t in range(4):
            p.grad = random(SHAPE, BF16, t, 0.1)
            if t == 1:
                p.grad[0, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
            optimizer.step()
    assert p[0, :3].isnan().all()
    assert p.isnan().sum() == 3
    for name, found in numbers(optimizer.state[p]).items():
        assert not found[0, :3].isfinite().any(), name
        assert found.isfinite().sum() == p.numel() - 3, name


# -- means and variances --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("precision", ["bf16_sr", "8bit"])
def test_moments_of_a_constant_gradient_arrive(precision: str) -> None:
    """After 2000 steps the mean of v is the square, of which nearest rounding stops short."""
    n = 4096
    results = {}
    for name in (precision, "stochastic"):
        p = Parameter(torch.ones(2, n, dtype=BF16))
        optimizer = AdamW([p], 0.0, (0.9, 0.999), precision=name)
        p.grad = torch.full((2, n), 0.5, dtype=BF16)
        with mcf.executor("numba"):
            for _ in range(2000):
                optimizer.step()
        results[name] = moments(optimizer)
    m, v = results[precision]
    exact = 0.25 * (1 - 0.999**2000)
    # The spread of a rounding to 3 bits, kept for a thousand steps: at most v / 8 sqrt(500).
    error = max(v.std().item() / (2 * n) ** 0.5, 1e-6)
    assert abs(v.mean().item() - exact) < 4 * error
    assert abs(m.mean().item() - 0.5) < 4 * m.std().item() / (2 * n) ** 0.5 + 1e-6
    assert results["stochastic"][1].max() < 0.7 * exact, "to nearest it stops"


# The variance of v over v^2 that docs/optimizers.md predicts.
PREDICTED = {"8bit": 0.09, "bf16_sr": 0.0027}


@pytest.mark.sampled(every=4)
@pytest.mark.statistical
@pytest.mark.parametrize("precision", PREDICTED)
@pytest.mark.parametrize("beta2", [0.95, 0.99, pytest.param(0.999, marks=pytest.mark.slow)])
def test_variance_of_a_stored_second_moment_is_predicted(precision: str, beta2: float) -> None:
    """Compare the variance with the exact one (printed), and the mean.

    A step moves v by (1 - b2)(g^2 - v) from a number of the format, and rounding adds that size
    times the distance d of neighbours: d E|g^2 - v| / 2 in the long run, and less where
    (1 - b2) v is not well below d.
    """
    shape = (10, 400)
    p = Parameter(torch.zeros(shape, dtype=BF16))
    optimizer = AdamW([p], 0.0, (0.9, beta2), precision=precision)
    m = v = torch.zeros(shape, dtype=torch.float64)
    with mcf.executor("numba"):
        for t in range(round(6 / (1 - beta2))):
            p.grad = random(shape, BF16, t, 0.1)
            optimizer.step()
            g = p.grad.double()
            m, v = 0.9 * m + 0.1 * g, beta2 * v + (1 - beta2) * g**2
    found_m, found_v = moments(optimizer)
    error = (found_v - v) / v.mean()
    variance, share = error.var().item(), ((found_m - m).var() / m.var()).item()
    print(f"{precision} {beta2}: of v^2 {variance:.2g}, of m's variance {share:.2g}")
    # The sample's own spread, and that d / v is 2^-2 to 2^-2.3.
    assert variance < 1.15 * PREDICTED[precision]
    assert variance > (0.5 if precision == "8bit" else 0.01) * PREDICTED[precision]
    assert abs(error.mean().item()) < 4 * (variance / error.numel()) ** 0.5
    assert share < 0.01


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("momentum", "share"), [(0.9, 0.03), pytest.param(0.99, 0.4, marks=pytest.mark.slow)]
)
def test_variance_of_a_stored_momentum_is_predicted(momentum: float, share: float) -> None:
    """A slow momentum moves by little beside its size, so that each rounding is felt long.

    Of the buffer's own variance: a few hundredths at 0.9, four tenths at Lion's 0.99.
    """
    shape = (10, 200)
    p = Parameter(torch.zeros(shape, dtype=BF16))
    optimizer = SGD([p], 0.0, momentum, precision="8bit")
    b = torch.zeros(shape, dtype=torch.float64)
    for t in range(round(4 / (1 - momentum))):
        p.grad = random(shape, BF16, t, 0.1)
        optimizer.step()
        b = momentum * b + p.grad.double()
    found = codes.read("momentum_buffer", optimizer.state[p]).double()
    measured = ((found - b).var() / b.var()).item()
    print(f"momentum {momentum}: {measured:.3f} of the buffer's variance")
    assert 0.7 * share < measured < 1.5 * share
    assert abs((found - b).mean().item()) < 4 * (found - b).std().item() / p.numel() ** 0.5


# -- use -------------------------------------------------------------------------------------------


@pytest.mark.sampled
@pytest.mark.parametrize(("rule", "precision"), PAIRS)
def test_checkpoints_and_conversion_keep_all_bits(rule: str, precision: str) -> None:
    """A code's number is exact in every wider storage, and becomes that code again."""
    p = parameter(SHAPE, BF16)
    optimizer = RULES[rule]([p], precision=precision, seed=3)
    steps(optimizer, 3)
    other = RULES[rule]([Parameter(p.detach().clone())], precision=precision)
    other.load_state_dict(through_file(optimizer.state_dict()))
    before = {n: t.clone() for n, t in optimizer.state[p].items()}
    targets = ["master", "plain", "bf16_sr"] if precision == "8bit" else ["master"]
    for target in targets:
        wide, report = convert(optimizer, target, params=[Parameter(p.detach().clone())])
        assert report.exact, (target, str(report))
        (q,) = wide.param_groups[0]["params"]
        for name in before.keys() & wide.state[q].keys() - {"param_lo"}:
            if before[name].dtype == torch.uint8:
                assert_same_bits(wide.state[q][name].double(), number(name, optimizer.state[p]))
        back, report = convert(wide, precision, params=[Parameter(q.detach().clone())])
        assert report.exact, (target, str(report))
        (r,) = back.param_groups[0]["params"]
        for name, t in before.items():
            assert_same_bits(back.state[r][name], t, name)
    for o in (optimizer, other):
        steps(o, 2, seed=9)
    assert_same(stored(other), stored(optimizer))


@pytest.mark.parametrize("precision", ["8bit", "4bit"])
def test_conversion_rounds_to_nearest(precision: str) -> None:
    p = parameter(SHAPE, BF16)
    optimizer = AdamW([p], 1e-2, (0.9, 0.95), precision="master")
    steps(optimizer, 4)
    state = optimizer.state[p]
    m, v = (state[name].double() for name in ("exp_avg", "exp_avg_sq"))
    made, report = convert(optimizer, precision)
    assert {r.what for r in report.rounded} == {"param", "exp_avg", "exp_avg_sq"}
    found_m, found_v = moments(made)
    assert ((found_v - v).abs() <= v / 8).all()
    off = m.abs() / 16 + 2**-11 * found_v.sqrt()
    if precision == "4bit":
        off = distance(m, unit(found_v)) / 2 * (1 + 1e-6)
    assert ((found_m - m).abs() <= off).all()


# -- which storage a parameter has ----------------------------------------------------------------


def test_vectors_and_odd_matrices_have_wider_moments() -> None:
    results = {}
    for precision in ("4bit", "8bit", "bf16_sr"):
        params = [parameter(s, BF16, k) for k, s in enumerate(((4, 6), (4, 7), (24,), (), (0, 6)))]
        optimizer = AdamW(params, 1e-2, precision=precision, seed=3)
        steps(optimizer, 3)
        results[precision] = stored(optimizer)
    assert results["4bit"]["0.exp_avg"].shape == (4, 3)
    assert results["4bit"]["4.exp_avg"].shape == (0, 3)
    assert results["8bit"]["0.exp_avg"].dtype == torch.uint8
    for narrow, wide, same in (("4bit", "8bit", "123"), ("8bit", "bf16_sr", "23")):
        for name, expected in results[wide].items():
            if name[0] in same:
                assert_same_bits(results[narrow][name], expected, name)
    for momentum, shape, dtype in ((0.9, (41,), BF16), (0.0, SHAPE, None)):
        q = parameter(shape, BF16)
        sgd = SGD([q], 1e-2, momentum, precision="8bit")
        steps(sgd, 1)
        assert (sgd.state[q]["momentum_buffer"].dtype if momentum else None) == dtype


# -- layouts, and other ways to step --------------------------------------------------------------


def test_slabs_end_with_whole_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are copied in parts, and parts where the upper word of the index changes."""
    results = []
    for size, dense in ((layouts.SLAB, False), (7, False), (layouts.SLAB, True)):
        monkeypatch.setattr(layouts, "SLAB", size)
        view = random((3, 44), BF16, 1)[:, ::2]
        p = Parameter(view.contiguous() if dense else view)
        set_index_offset(p, 2**32 - 32)
        optimizer = AdamW([p], 1e-2, precision="4bit")
        steps(optimizer, 2)
        results.append(stored(optimizer))
    for other in results[1:]:
        assert_same(other, results[0])


@pytest.mark.parametrize("make", [AdamW, Adamax])
def test_metrics_count_codes_that_stay(make: Any) -> None:
    p = parameter(SHAPE, BF16)
    optimizer = make([p], 1e-2, (0.9, 0.999), precision="8bit", track_metrics=True)
    steps(optimizer, 5)
    name = "exp_avg_sq" if make is AdamW else "exp_inf"
    before = optimizer.state[p][name].clone(), p.detach().clone()
    steps(optimizer, 1, seed=77)
    found = optimizer.metrics()
    stayed = (before[1] == p.detach()).double().mean().item()
    assert found["lost_param"] == pytest.approx(stayed, abs=1e-12)
    if make is AdamW:
        v, g = number(name, {name: before[0]}), p.grad.double()
        lost = (before[0] == optimizer.state[p][name]) & (g * g != v)
        assert found["lost_exp_avg_sq"] == pytest.approx(lost.double().mean().item(), abs=1e-12)
        assert 0.2 < found["lost_exp_avg_sq"] < 1, "many of them, and none on average"


# -- refusals -------------------------------------------------------------------------------------


def odd_offset() -> Any:
    p = parameter(SHAPE, BF16)
    set_index_offset(p, 3)
    AdamW([p], precision="8bit")
    return AdamW([p], precision="4bit")


def state_of_another_shape() -> None:
    optimizer = AdamW([parameter(SHAPE, BF16)], 1e-2, precision="4bit")
    steps(optimizer, 1)
    AdamW([parameter((3, 42), BF16)], precision="4bit").load_state_dict(optimizer.state_dict())


def _p(dtype: torch.dtype = BF16) -> list[Parameter]:
    return [parameter(SHAPE, dtype)]


REFUSED: list[tuple[Any, str]] = [
    (lambda: AdamW(_p(FP16), precision="8bit"), "allowed is torch.bfloat16"),
    (lambda: AdamW(_p(FP16), precision="4bit"), "allowed is torch.bfloat16"),
    (lambda: AdamW(_p(), precision="8bit", compute_dtype=BF16), "compute_dt"),
    (lambda: AdamW(_p(), precision="4bit", compute_dtype=BF16), "compute"),
    (
        lambda: Lion(_p(), precision=Precision(exp_avg="ratio8")),
        "second moment, which Lion has not",
    ),
    (lambda: Lion(_p(), precision="4bit"), "precision='4bit' keeps a first moment in 4 bits"),
    (lambda: SGD(_p(), momentum=0.9, precision="4bit"), "'4bit' keeps a first moment in 4"),
    (lambda: SGD(_p(), precision=Precision(exp_avg="ratio8")), "which SGD has not.*'se5m2'"),
    (lambda: AdamW(_p(), precision=Precision(exp_avg="se5m2")), "allowed are 'ratio8'"),
    (lambda: ScheduleFreeAdamW(_p(), precision="4bit"), "'4bit' keeps a first moment in 4"),
    (
        lambda: ScheduleFreeAdamW(_p(), precision=Precision(exp_avg="ratio4", exp_avg_sq="ue6m2")),
        "a first moment in 4 bits, and ScheduleFreeAdamW has none",
    ),
    (
        lambda: collage(torch.optim.AdamW, _p(), lr=1e-3, precision="8bit"),
        "those of a wrapped class are not known to be",
    ),
    (lambda: Precision(exp_avg="ue6m2"), "exp_avg='ue6m2'"),
    (lambda: Precision(exp_avg_sq="ratio8"), "exp_avg_sq='ratio8'"),
    (lambda: Precision(exp_avg_sq="ratio4"), "exp_avg_sq='ratio4'"),
    (lambda: Precision(param="ratio8"), "param of Precision must be one of .*, got 'ratio8'"),
    (lambda: Precision(param="ratio4"), "param of Precision must be one of .*, got 'ratio4'"),
    (odd_offset, re.escape("begins at the odd index 3")),
    (state_of_another_shape, r"needs torch.uint8 and \[3, 21\]"),
]


@pytest.mark.parametrize("k", range(len(REFUSED)))
def test_unfit_precision_is_refused(k: int) -> None:
    make, message = REFUSED[k]
    with pytest.raises(ValueError, match=message):
        make()


def test_cuts_through_bytes_are_found() -> None:
    for shape, mesh, places, expected in (
        ((8, 6), (3,), (Shard(0),), True),
        ((8, 6), (3,), (Shard(1),), True),
        ((8, 6), (2,), (Shard(1),), False),
        ((8, 6), (2,), (Replicate(),), True),
        ((8, 10), (4,), (Shard(1),), False),
        # 4, 4, 2 and nothing.
        ((8, 10), (3,), (Shard(1),), True),
        ((8, 8), (2, 2), (Shard(1), Shard(1)), True),
        ((8, 12), (2, 2), (Shard(1), Shard(1)), False),
        # Whole pairs for all processes but the last two.
        ((8, 10), (3, 2), (Shard(1), Shard(1)), False),
        ((8, 8), (2, 2), (_StridedShard(1, split_factor=2), Shard(1)), True),
        ((8, 12), (2, 2), (_StridedShard(1, split_factor=2), Shard(1)), False),
    ):
        assert shards._whole_pairs(shape, mesh, places) == expected, (shape, places)
