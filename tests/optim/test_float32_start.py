"""A float32 model's weights in pure bf16: all bits that a precision stores, and what it cannot."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mcf.optim
from mcf.optim import AdamW, float32_weights, load_float32_weights
from tests.helpers import assert_same_bits
from tests.optim.helpers import BF16, FP32, FP64, assert_same, random, steps, stored, value

pytestmark = pytest.mark.usefixtures("on_torch")

# The bits of a weight that each keeps; without an entry bf16's.
BITS = {
    **dict.fromkeys(("kahan", "light", "plus", "split8", "split8_sr", "split8_8bit"), 16),
    **dict.fromkeys(("split16", "split16_sr", "split16_8bit", "master"), 24),
}


def model() -> nn.Module:
    """A float32 model with a buffer and a parameter under two names."""
    made = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(5, 4, bias=False))
    made[2].weight = made[0].weight
    with torch.no_grad():
        for k, t in enumerate(made.state_dict().values()):
            t.copy_(random(t.shape, FP32, k) if t.is_floating_point() else t + 3)
    return made


def started(precision: str, **options: Any) -> tuple[nn.Module, Any, dict[str, Tensor], Any]:
    net = model()
    weights = net.state_dict()
    net = net.to(BF16)
    optimizer = AdamW(net.parameters(), 1e-3, precision=precision, **options)
    return net, optimizer, weights, load_float32_weights(net, optimizer, weights)


@pytest.mark.parametrize("precision", mcf.optim.PRECISIONS)
def test_all_bits_that_are_stored(precision: str) -> None:
    net, optimizer, weights, report = started(precision)
    bits = BITS.get(precision, 8)
    for name in ("0.weight", "0.bias", "1.weight"):
        p = net.get_parameter(name)
        for found, right in zip(
            value(optimizer, p).flatten().tolist(), weights[name].flatten().tolist(), strict=True
        ):
            off = abs(Fraction(found) - Fraction(right))
            assert off <= Fraction(2) ** -bits * abs(Fraction(right))
            if bits == 24:
                assert not off
        # What the model computes with is the weight, rounded once.
        assert_same_bits(p.detach(), weights[name].to(BF16))
    assert net[2].weight is net[0].weight
    assert_same_bits(net[1].running_mean, weights["1.running_mean"].to(BF16))
    assert net[1].num_batches_tracked == weights["1.num_batches_tracked"]
    assert report.exact == (bits == 24)
    if not report.exact:
        assert str(report).startswith("param of 0.weight: ")
        assert all(r.largest <= 2.0**-bits for r in report.rounded)


@pytest.mark.parametrize("precision", ["plus", "split16", "master"])
def test_the_first_step_begins_there(precision: str) -> None:
    """As one of an optimizer converted from torch's, which had made no step."""
    _net, optimizer, weights, _ = started(precision)
    steps(optimizer, 2)
    wide = [nn.Parameter(weights[n].clone()) for n in ("0.weight", "0.bias", "1.weight", "1.bias")]
    params = [nn.Parameter(p.to(BF16)) for p in wide]
    converted, _ = mcf.optim.convert(torch.optim.AdamW(wide, 1e-3), precision, params=params)
    steps(converted, 2)
    assert_same(stored(optimizer), stored(converted))


def test_there_and_back() -> None:
    net, optimizer, weights, _ = started("split16")
    found = float32_weights(net, optimizer)
    for name, t in found.items():
        right = weights[name]
        assert_same_bits(t, right if name in ("0.weight", "1.bias") else right.to(t.dtype), name)


def test_moments_stay() -> None:
    net, optimizer, weights, _ = started("plus")
    steps(optimizer, 2)
    before = {n: t for n, t in stored(optimizer).items() if not n.endswith(("param", "param_lo"))}
    load_float32_weights(net, optimizer, weights)
    after = {n: t for n, t in stored(optimizer).items() if n in before}
    assert_same(after, before)
    error = optimizer.master_weight(net[0].weight) - weights["0.weight"]
    assert (error / weights["0.weight"]).abs().max() <= 2.0**-16


def test_frozen_parameters_and_those_of_nobody_are_copied() -> None:
    net = model()
    weights = net.state_dict()
    net = net.to(BF16)
    net[0].bias.requires_grad_(False)
    optimizer = AdamW([net[0].weight, net[0].bias], precision="light")
    load_float32_weights(net, optimizer, weights)
    assert_same_bits(net[0].bias.detach(), weights["0.bias"].to(BF16))
    assert_same_bits(net[1].weight.detach(), weights["1.weight"].to(BF16))
    assert optimizer.state.keys() == {net[0].weight}


def test_float64_weights_of_wrapped_names() -> None:
    net = model()
    weights = {f"module.{n}": t.to(FP64) for n, t in net.state_dict().items() if n != "2.weight"}
    optimizer = AdamW(net.to(BF16).parameters(), precision="split16")
    assert load_float32_weights(net, optimizer, weights).exact


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: w.pop("0.bias"), r"weights lack \['0.bias'\] and have the unknown names \[\]"),
        (lambda w: w.update(x=torch.zeros(1)), r"lack \[\] and have the unknown names \['x'\]"),
        (
            lambda w: w.update({"1.bias": torch.zeros(3)}),
            r"weights\['1.bias'\] has shape \[3\]; the model's \[4\]",
        ),
        (
            lambda w: w.update({"1.bias": torch.zeros(4, dtype=torch.int8)}),
            r"weights\['1.bias'\] has dtype torch.int8; allowed are torch.bfloat16",
        ),
    ],
)
def test_what_does_not_fit_is_refused(change: Any, words: str) -> None:
    net = model()
    weights = dict(net.state_dict())
    optimizer = AdamW(net.to(BF16).parameters(), precision="plus")
    before = {n: t.clone() for n, t in net.state_dict().items()}
    change(weights)
    with pytest.raises((ValueError, TypeError), match=words):
        load_float32_weights(net, optimizer, weights)
    assert_same(dict(net.state_dict()), before)
    assert not optimizer.state
