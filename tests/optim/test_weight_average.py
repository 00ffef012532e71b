"""Averages of weights against exact arithmetic, and what is averaged of each precision.

Proven bounds, of one update of an average a by a weight w with c = 1 - decay: what the components
round, and the float32 registers' few roundings of c (w - a).
"""

from __future__ import annotations

import copy
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import Parameter

import mcf
from mcf.kernels import registry
from mcf.kernels.elementwise import Elementwise
from mcf.kernels.formats import FORMATS
from mcf.optim import SGD, AdamW, GradientRelease, WeightAverage
from mcf.optim.companions import weight_average
from mcf.optim.storage.base import SINGLE, Storage
from mcf.optim.storage.pair import PAIR
from tests.helpers import assert_same_bits
from tests.helpers.executors import on_each_executor
from tests.optim.arithmetics import BF16, FP16, FP32, FP64
from tests.optim.helpers import assert_same, parameter, random, steps, stored
from tests.optim.models import Fixed

pytestmark = pytest.mark.usefixtures("on_torch")


# Of the average: what its components round; and of c (|w| + |a|) what registers round.
STORED = {
    (BF16, 1): 2.0**-8, (FP16, 1): 2.0**-11, (FP32, 1): 2.0**-24,
    (BF16, 2): 2.0**-17, (FP16, 2): 2.0**-22, (FP32, 2): 2.0**-46, (FP64, 2): 2.0**-104,
}  # fmt: skip
REGISTERS = {torch.float32: 2.0**-22, torch.float64: 2.0**-51}


def spec(weights: Storage, stored: list[torch.dtype], kept: int, dtype: torch.dtype) -> Elementwise:
    formats = tuple(FORMATS[d] for d in stored)
    return weight_average.kernel(weights, formats, {1: SINGLE, 2: PAIR}[kept], FORMATS[dtype])


def exact(tensors: list[Tensor], k: int) -> Fraction:
    return sum((Fraction(t[k].item()) for t in tensors), Fraction(0))


def excess(made: Elementwise, kept: list[Tensor], weight: list[Tensor], c: float) -> float:
    """The largest error of one update, as a multiple of the bound."""
    before = [t.clone() for t in kept]
    registry.run(made, [[*kept, *weight]], torch.tensor([[c]], dtype=FP64))
    # The weight is a number of the registers.
    wide = FP64 if kept[0].dtype == FP64 else FP32
    share = Fraction(torch.tensor(c, dtype=FP64).to(wide).item())
    worst = 0.0
    for k in range(kept[0].numel()):
        a, w, found = exact(before, k), exact(weight, k), exact(kept, k)
        right = a + share * (w - a)
        bound = Fraction(STORED[kept[0].dtype, len(kept)]) * abs(right)
        bound += Fraction(REGISTERS[wide]) * share * (abs(w) + abs(a))
        # Where components underflow.
        bound += FORMATS[kept[0].dtype].min_subnormal
        worst = max(worst, float(abs(found - right) / bound))
    return worst


def pair(x: Tensor, dtype: torch.dtype, count: int) -> list[Tensor]:
    """A float64 tensor in components."""
    found = []
    for _ in range(count):
        found.append(x.to(dtype))
        x = x - found[-1].double()
    return found


@pytest.mark.sampled
@pytest.mark.parametrize(("dtype", "kept"), list(STORED), ids=str)
def test_one_update_is_within_its_bound(dtype: torch.dtype, kept: int) -> None:
    made = spec(PAIR, [dtype, dtype], kept, dtype)
    worst = 0.0
    for seed, (size, c) in enumerate([(1.0, 1.0), (1.0, 1e-3), (2.0**-6, 0.1), (2.0**-10, 1e-4)]):
        w = random(256, FP64, 2 * seed + 1)
        # From far away, and near the weight.
        a = w + size * random(256, FP64, 2 * seed)
        worst = max(worst, excess(made, pair(a, dtype, kept), pair(w, dtype, 2), c))
    print(f"{dtype} {kept}: {worst:.2g}")
    assert worst <= 1


def walked(count: int, dtype: torch.dtype, kept: int, decay: float) -> float:
    """Return how far the average of float32 weights that walk is from the exact one."""
    n = 16
    made = spec(SINGLE, [FP32], kept, dtype)
    w = random(n, FP32, 0)
    found = [w.to(dtype), *([(w - w.to(dtype).float()).to(dtype)] if kept == 2 else [])]
    start = true = sum((Fixed.of(t) for t in found), Fixed(0))
    share = torch.tensor(1 - decay, dtype=FP32).item()
    table = torch.tensor([[1 - decay]], dtype=FP64)
    for t in range(count):
        # A drift, and noise around it.
        w = w + (random(n, FP32, 1 + t, 2.0**-6) + 2.0**-9)
        registry.run(made, [[*found, w]], table)
        true = true + share * (Fixed.of(w) - true)
    away = sum((Fixed.of(t) for t in found), Fixed(0)) - true
    return float(away.floats().norm() / (true - start).floats().norm())


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(
    ("dtype", "kept", "least", "most"),
    [
        pytest.param(BF16, 1, 0.6, 1.0, id="bf16"),
        pytest.param(BF16, 2, 0.0, 2e-4, id="pair"),
        pytest.param(FP32, 1, 0.0, 2e-6, id="float32"),
    ],
)
def test_a_long_average(dtype: torch.dtype, kept: int, least: float, most: float) -> None:
    """A bf16 number misses most of the way of an average of decay 0.999."""
    error = walked(600, dtype, kept, 0.999)
    print(f"{dtype} x {kept}: {error:.2g} of the way")
    assert least <= error <= most


# -- what is averaged --------------------------------------------------------------------------


def trained(precision: str, of: torch.dtype = BF16, **options: Any) -> Any:
    """An optimizer after steps, and the average that followed it."""
    optimizer = AdamW([parameter((4, 5), of, 1)], 1e-2, precision=precision)
    found = WeightAverage(optimizer, **options)
    true = []
    for k in range(3):
        steps(optimizer, 1, seed=k)
        (p,) = optimizer.param_groups[0]["params"]
        true.append(optimizer.master_weight(p).double())
    return optimizer, found, p, true


@pytest.mark.parametrize("precision", mcf.optim.PRECISIONS)
def test_true_weights_are_averaged(precision: str) -> None:
    """Whatever is stored beside the parameter; rounded as the docstring says."""
    _, found, p, true = trained(precision, decay=0.75)
    expected = true[0]
    for w in true[1:]:
        expected = expected + 0.25 * (w - expected)
    assert (found.weight(p) - expected).abs().max() < 2.0**-15
    # Of bf16 numbers alone it would not be.
    high, low = found.weight(p, exact=True)
    assert high.dtype == low.dtype == BF16
    assert low.count_nonzero()


@pytest.mark.parametrize(("dtype", "kept"), [(FP16, 2), (FP32, 2), (FP64, 2), (BF16, 1)], ids=str)
def test_equal_weights(dtype: torch.dtype, kept: int) -> None:
    options = {"components": kept, "dtype": FP32 if dtype == BF16 else None}
    _, found, p, true = trained("light", dtype, decay=None, **options)
    error = (found.weight(p, exact=True)[0].double() - sum(true) / 3).abs().max()
    assert error < {FP16: 2.0**-10, FP32: 2.0**-23, FP64: 2.0**-50, BF16: 2.0**-22}[dtype]
    # In float32 a mean of bf16 numbers has more bits than one.
    assert found.weight(p, exact=True)[0].dtype == (FP32 if dtype == BF16 else dtype)


def test_groups_and_parameters_added_later() -> None:
    first, frozen, later = (parameter(3, BF16, k) for k in range(3))
    frozen.requires_grad_(False)
    optimizer = AdamW([{"params": [first], "precision": "master"}, {"params": [frozen]}], 0.01)
    found = WeightAverage(optimizer, None)
    steps_of([first], optimizer)
    optimizer.add_param_group({"params": [later], "precision": "split16"})
    steps_of([first, later], optimizer)
    frozen.requires_grad_(True)
    steps_of([first, later], optimizer)
    counts = {k: entry["n_averaged"] for k, entry in found.state_dict()["state"].items()}
    assert counts == {0: 3, 1: 1, 2: 2}
    assert torch.equal(found.weight(frozen).to(BF16), frozen)


def steps_of(params: list[Parameter], optimizer: Any) -> None:
    for p in params:
        p.grad = random(p.shape, p.dtype, 7)
    optimizer.step()


def test_every_and_update() -> None:
    p = parameter(3, BF16)
    optimizer = AdamW([p], 0.1)
    never, third = WeightAverage(optimizer, every=None), WeightAverage(optimizer, every=3)
    steps(optimizer, 5)
    assert never.state_dict()["state"] == {}
    assert torch.equal(never.weight(p), optimizer.master_weight(p))
    assert third.state_dict()["state"][0]["n_averaged"] == 1
    never.update()
    third.close()
    steps(optimizer, 5)
    assert never.state_dict()["state"][0]["n_averaged"] == 1
    assert third.state_dict()["state"][0]["n_averaged"] == 1


# -- bits --------------------------------------------------------------------------------------


@on_each_executor
@pytest.mark.parametrize("precision", ["plus", pytest.param("split16", marks=pytest.mark.slow)])
def test_executors_agree(executor: str, precision: str) -> None:
    def run() -> dict[str, Tensor]:
        # Not contiguous, one element, none.
        wide = parameter((4, 6), BF16).t()
        params = [Parameter(wide.detach()), parameter(1, BF16), parameter(0, BF16)]
        optimizer = AdamW(params, 1e-2, precision=precision)
        kinds = [{}, {"decay": None, "components": 1}, {"components": 1, "dtype": FP32}]
        found = [WeightAverage(optimizer, **kind) for kind in kinds]
        with mcf.executor("torch"):
            # What is under test is not the step.
            steps(optimizer, 1)
        for a in found:
            a.update()
        return {
            f"{j}.{k}.{i}": t
            for j, a in enumerate(found)
            for k, p in enumerate(params)
            for i, t in enumerate(a.weight(p, exact=True))
        }

    right = run()
    with mcf.executor(executor):
        assert_same(run(), right)


# -- use -------------------------------------------------------------------------------------------


def made(precision: str = "plus", **options: Any) -> tuple[Any, WeightAverage, list[Parameter]]:
    """An optimizer and its average after some steps."""
    params = [parameter((3, 4), BF16, 1), parameter(5, FP32, 2)]
    optimizer = AdamW(params, 0.01, precision=precision)
    average = WeightAverage(optimizer, **{"decay": 0.9, **options})
    steps(optimizer, 3)
    return optimizer, average, params


def averages(average: WeightAverage, params: list[Parameter]) -> dict[str, torch.Tensor]:
    found = [average.weight(p, exact=True) for p in params]
    return {f"{k}.{i}": t.clone() for k, some in enumerate(found) for i, t in enumerate(some)}


@pytest.mark.parametrize("precision", ["plus", "split16", "master", "8bit"])
def test_swapped_out_and_in_again(precision: str) -> None:
    """The run goes on with the bits of one that was never swapped, and nobody is warned."""
    runs = []
    for swaps in (True, False):
        optimizer, average, params = made(precision)
        if swaps:
            before = stored(optimizer)
            with average.swapped():
                for k, p in enumerate(params):
                    assert_same_bits(p.detach(), average.weight(p).to(p.dtype))
                    assert not torch.equal(p, before[f"{k}.param"])
            assert_same(stored(optimizer), before)
        steps(optimizer, 2, seed=5)
        runs.append({**stored(optimizer), **averages(average, params)})
    assert_same(*runs)


def test_swapped_is_undone_after_errors_and_takes_no_training() -> None:
    optimizer, average, params = made()
    before = stored(optimizer)
    with average.swapped():
        for forbidden in (optimizer.step, average.update, average.copy_to_weights):
            with pytest.raises(RuntimeError, match=r"\(\) inside swapped\(\)"):
                forbidden()
        with pytest.raises(RuntimeError, match=r"inside swapped\(\)"), average.swapped():
            pass
    with pytest.raises(KeyError), average.swapped():
        raise KeyError
    assert_same(stored(optimizer), before)
    average.update()
    with pytest.raises(RuntimeError, match="weights were written inside swapped"):
        with average.swapped(), torch.no_grad():
            params[0].add_(1)
    assert_same(stored(optimizer), before)


def test_autograd_knows_of_a_swap() -> None:
    """A backward pass must not multiply by weights that are not those of the forward pass."""
    _, average, (p, _) = made()
    loss = (p * p).sum()
    with average.swapped():
        pass
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("precision", ["light", "master", "split8", "plain"])
def test_copied_for_good(precision: str) -> None:
    """The average goes into the weights and all bits stored next to them."""
    optimizer, average, (p, q) = made(precision)
    before, moments = average.weight(p), optimizer.state[p]["exp_avg"].clone()
    average.copy_to_weights()
    found = optimizer.master_weight(p)
    expected = before.to(BF16).float() if precision == "plain" else before
    # 16 bits of the 17 that a pair may have.
    assert ((found - expected) / before).abs().max() <= (2.0**-16 if precision == "split8" else 0)
    assert torch.equal(optimizer.master_weight(q), average.weight(q))
    assert_same_bits(optimizer.state[p]["exp_avg"], moments)
    steps(optimizer, 1)


def test_the_averages_of_a_model_in_float32() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).to(BF16)
    optimizer = SGD(model.parameters(), 0.1)
    average = WeightAverage(optimizer, None)
    for k in range(2):
        model(random((4, 3), BF16, k)).square().sum().backward()
        optimizer.step()
    found = average.float32_weights(model)
    assert found.keys() == model.state_dict().keys()
    assert_same_bits(found["0.weight"], average.weight(model[0].weight))
    assert found["1.running_mean"].dtype == BF16
    assert not torch.equal(found["0.weight"], optimizer.master_weight(model[0].weight))


# -- checkpoints -------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"decay": None, "components": 1, "dtype": FP32}], ids=str)
def test_a_resumed_run_has_the_same_bits(tmp_path: Path, options: dict[str, Any]) -> None:
    optimizer, average, params = made(every=2, **options)
    torch.save([optimizer.state_dict(), average.state_dict(), params], tmp_path / "run")
    steps(optimizer, 3, seed=5)
    with torch.serialization.safe_globals([Parameter]):
        one, two, weights = torch.load(tmp_path / "run", weights_only=True)
    resumed = AdamW(weights, 0.01)
    follows = WeightAverage(resumed, **options)
    resumed.load_state_dict(one)
    follows.load_state_dict(two)
    assert follows.every == 2
    steps(resumed, 3, seed=5)
    assert_same(averages(follows, weights), averages(average, params))


def test_a_checkpoint_is_copied() -> None:
    optimizer, average, params = made()
    other = WeightAverage(optimizer, decay=0.5)
    other.load_state_dict(average.state_dict())
    assert other.decay == average.decay
    before = averages(other, params)
    other.close()
    steps(optimizer, 1)
    assert_same(averages(other, params), before)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.pop("calls"), r"state_dict has \['components', .*allowed are"),
        (lambda s: s.update(components=1), "components=1; this average has 2"),
        (lambda s: s.update(calls=-1), "calls is -1; allowed is a whole number"),
        (lambda s: s.update(decay=2.0), r"Invalid decay: 2.0; allowed is \[0.0, 1.0\)"),
        (lambda s: s["state"].update({7: {}}), "an average of parameter 7; the optimizer has 2"),
        (lambda s: s["state"][0].pop("average_lo"), "parameter 0 has .*'n_averaged'"),
        (
            lambda s: s["state"][0].update(average=torch.zeros(2, dtype=BF16)),
            r"average of the average of parameter 0 has shape \[2\] .*\[3, 4\]",
        ),
        (
            lambda s: s["state"][1].update(average=torch.zeros(5, dtype=FP64)),
            "dtype torch.float64; its parameter has .* averages here are torch.float32",
        ),
        (lambda s: s["state"][1].update(n_averaged=0.5), "n_averaged of .* is 0.5"),
    ],
)
def test_another_checkpoint_is_refused(change: Any, words: str) -> None:
    _, average, params = made()
    saved = copy.deepcopy(average.state_dict())
    change(saved)
    before = averages(average, params)
    with pytest.raises((ValueError, TypeError), match=words):
        average.load_state_dict(saved)
    assert_same(averages(average, params), before)
    assert average.decay == 0.9


# -- what is refused, and what it goes with ----------------------------------------------------


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (AdamW, {"decay": 1.0}, r"Invalid decay: 1.0; allowed is \[0.0, 1.0\)"),
        (AdamW, {"decay": "x"}, "decay must be a number, got str"),
        (AdamW, {"components": 3}, "Invalid components: 3; allowed are 1 and 2"),
        (AdamW, {"dtype": BF16}, "Invalid dtype: torch.bfloat16; allowed are None and torch.float"),
        (AdamW, {"every": 0}, "Invalid every: 0; allowed is a whole number from 1, or None"),
        (AdamW, {"every": 1.5}, "every must be an int or None, got float"),
        (torch.optim.AdamW, {}, r"optimizer is a AdamW; allowed are optimizers of mcf\.optim"),
    ],
)
def test_bad_arguments_are_refused(make: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        WeightAverage(make([parameter(2, BF16)]), **options)


def test_parameter_or_decay_that_changed_is_refused() -> None:
    _, average, (p, _) = made()
    average.decay = 0.0
    average.update()
    assert torch.equal(average.weight(p), average._optimizer.master_weight(p))
    average.decay = -1.0
    with pytest.raises(ValueError, match="Invalid decay"):
        average.update()
    average.decay = 0.5
    p.data = p.data[:2]
    with pytest.raises(ValueError, match=r"params\[0\] of param_groups\[0\] has shape \[2, 4\]"):
        average.update()


def test_gradient_release_updates_the_average() -> None:
    p = parameter(4, BF16)
    optimizer = AdamW([p], 0.1)
    release = GradientRelease(optimizer)
    average = WeightAverage(optimizer)
    for _ in range(2):
        (p * p).sum().backward()
        optimizer.step()
    assert average.state_dict()["state"][0]["n_averaged"] == 2
    release.remove()


def test_an_expansion_as_parameter() -> None:
    x = mcf.tensor(["0.1", "0.7"], dtype=BF16, requires_grad=True)
    optimizer = SGD([x], 0.125, precision="light")
    average = WeightAverage(optimizer, 0.5)
    for _ in range(2):
        optimizer.zero_grad()
        (x * x).sum().backward()
        optimizer.step()
    before = [c.clone() for c in x.components]
    with average.swapped():
        assert torch.equal(x.components[0], average.weight(x, exact=True)[0])
        assert x.components[1].count_nonzero()
    assert_same_bits(x.components[0], before[0])
    assert_same_bits(x.components[1], before[1])
