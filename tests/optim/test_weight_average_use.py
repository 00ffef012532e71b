"""Averages of weights in use: swapped in and out, kept for good, saved and resumed, refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import Parameter

import mcf
from mcf.optim import SGD, AdamW, GradientRelease, WeightAverage
from tests.helpers import assert_same_bits
from tests.optim.helpers import BF16, FP32, FP64, assert_same, parameter, random, steps, stored

pytestmark = pytest.mark.usefixtures("on_torch")


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


def test_swapped_is_undone_after_an_error() -> None:
    optimizer, average, _ = made()
    before = stored(optimizer)
    with pytest.raises(KeyError), average.swapped():
        raise KeyError
    assert_same(stored(optimizer), before)
    average.update()


def test_no_training_inside() -> None:
    optimizer, average, params = made()
    before = stored(optimizer)
    with average.swapped():
        for forbidden in (optimizer.step, average.update, average.copy_to_weights):
            with pytest.raises(RuntimeError, match=r"\(\) inside swapped\(\)"):
                forbidden()
        with pytest.raises(RuntimeError, match=r"inside swapped\(\)"), average.swapped():
            pass
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
    """What is beside the weights, too: nothing of the average is lost that can be stored."""
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
    other = WeightAverage(optimizer)
    other.load_state_dict(average.state_dict())
    before = averages(other, params)
    other.close()
    steps(optimizer, 1)
    assert_same(averages(other, params), before)
    assert other.decay == 0.9


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
    ("options", "words"),
    [
        ({"decay": 1.0}, r"Invalid decay: 1.0; allowed is \[0.0, 1.0\)"),
        ({"decay": "x"}, "decay must be a number, got str"),
        ({"components": 3}, "Invalid components: 3; allowed are 1 and 2"),
        ({"dtype": BF16}, "Invalid dtype: torch.bfloat16; allowed are None and torch.float32"),
        ({"every": 0}, "Invalid every: 0; allowed is a whole number from 1, or None"),
        ({"every": 1.5}, "every must be an int or None, got float"),
    ],
)
def test_bad_arguments(options: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        WeightAverage(AdamW([parameter(2, BF16)]), **options)


def test_other_optimizers_are_refused() -> None:
    with pytest.raises(
        TypeError, match=r"optimizer is a AdamW; allowed are optimizers of mcf\.optim"
    ):
        WeightAverage(torch.optim.AdamW([parameter(2, FP32)]))  # type: ignore[arg-type]


def test_a_parameter_that_changed_is_refused() -> None:
    _, average, (p, _) = made()
    p.data = p.data[:2]
    with pytest.raises(ValueError, match=r"params\[0\] of param_groups\[0\] has shape \[2, 4\]"):
        average.update()


def test_decay_may_change() -> None:
    _, average, (p, _) = made()
    average.decay = 0.0
    average.update()
    assert torch.equal(average.weight(p), average._optimizer.master_weight(p))
    average.decay = -1.0
    with pytest.raises(ValueError, match="Invalid decay"):
        average.update()


def test_with_gradient_release() -> None:
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
