"""Weights that others write between steps take effect, and what is stored beside them follows.

The low word of a weight that is written to the value it has, or that comes back with its state, is
kept to the last bit.
"""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import mcf
from mcf.optim import SGD, AdamW, Lion, collage, convert, float32_checkpoint
from mcf.optim.step.rewritten import WeightsRewrittenWarning
from tests.helpers import assert_same_bits
from tests.optim.arithmetics import BF16, FP16, FP32
from tests.optim.helpers import assert_same, in_full, random, steps, stored, value

pytestmark = pytest.mark.usefixtures("on_torch")

HIDDEN = ["master", "kahan", "light", "plus", "split16", "split8"]


def model() -> nn.Module:
    made = nn.Sequential(nn.Linear(9, 7), nn.Linear(7, 3)).to(BF16)
    for k, p in enumerate(made.parameters()):
        p.data.copy_(random(p.shape, BF16, k))
    return made


def train(precision: str, count: int = 3, **options: Any) -> tuple[Any, Any]:
    net = model()
    optimizer = AdamW(net.named_parameters(), lr=1e-3, precision=precision, **options)
    steps(optimizer, count)
    return net, optimizer


def copied(net: Any, t: Any) -> None:
    with torch.no_grad():
        net[0].weight.copy_(t)


def loaded(net: Any, t: Any) -> None:
    net.load_state_dict({**net.state_dict(), "0.weight": t})


def replaced(net: Any, t: Any) -> None:
    net[0].weight.data = t.clone()


def initialised(net: Any, t: Any) -> None:
    nn.init.constant_(net[0].weight, 3.0)


@pytest.mark.sampled
@pytest.mark.parametrize("write", [copied, loaded, replaced, initialised])
@pytest.mark.parametrize("precision", HIDDEN)
def test_others_write_a_weight(precision: str, write: Callable[[Any, Any], None]) -> None:
    net, optimizer = train(precision)
    p = net[0].weight
    write(net, torch.full_like(p, 3.0))
    others = {k: t for k, t in stored(optimizer).items() if not k.startswith("0.")}
    p.grad = None
    for q in net.parameters():
        q.grad = torch.zeros_like(q)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeightsRewrittenWarning)
        optimizer.step()
    # Half a unit in the last place may be left of an old low word.
    assert (value(optimizer, p) - 3.0).abs().max() <= 2.0**-7
    assert_same_bits(p.detach(), torch.full_like(p, 3.0))
    now = stored(optimizer)
    for name, t in others.items():
        if name.endswith(("param", "param_lo", "param_bits", "master_param")):
            assert_same_bits(now[name], t, name)


@pytest.mark.parametrize("precision", ["master", "plus", "split16"])
def test_what_is_read_before_the_next_step(precision: str) -> None:
    net, optimizer = train(precision)
    p = net[0].weight
    kept, before = p.detach().clone(), stored(optimizer)
    with torch.no_grad():
        # A negative zero has no further bits that are not those of a NaN.
        p.fill_(2.0**-20 if precision != "split16" else -0.0)
        optimizer.state[p].get("param_bits", torch.empty(0)).fill_(-5)
    new = p.detach().float()
    assert_same_bits(optimizer.master_weight(p), new)
    assert_same_bits(float32_checkpoint(optimizer)[0][0], new)
    # Reading changes nothing: weights that come back find what was beside them.
    if precision != "split16":
        with torch.no_grad():
            p.copy_(kept)
        assert_same(stored(optimizer), before)
        with torch.no_grad():
            p.fill_(2.0**-20)
    convert(optimizer, "fp32_states")
    assert_same_bits(p.detach().float(), new)


@pytest.mark.sampled
@pytest.mark.parametrize("copy_of", [None, "deepcopy", "pickle", "checkpoint"])
@pytest.mark.parametrize("precision", ["master", "plus"])
def test_classes_of_others(precision: str, copy_of: Any) -> None:
    def made(p: Any) -> Any:
        return collage(torch.optim.AdamW, [p], lr=2.0**-7, precision=precision)

    p = nn.Parameter(torch.full((9,), 9.0, dtype=BF16))
    optimizer = made(p)
    steps(optimizer, 3)
    if copy_of == "checkpoint":
        state = optimizer.state_dict()
        optimizer = made(p)
        optimizer.load_state_dict(state)
    elif copy_of is not None:
        deep = copy_of == "deepcopy"
        optimizer = copy.deepcopy(optimizer) if deep else pickle.loads(pickle.dumps(optimizer))
        (p,) = optimizer.param_groups[0]["params"]
    with torch.no_grad():
        p.fill_(2.0**-20)
    assert (optimizer.master_weight(p) == 2.0**-20).all()
    with pytest.warns(WeightsRewrittenWarning):
        steps(optimizer, 1)
    assert (optimizer.master_weight(p).abs() < 0.1).all()


def test_one_warning() -> None:
    net, optimizer = train("master")
    copied(net, torch.full_like(net[0].weight, 3.0))
    with pytest.warns(WeightsRewrittenWarning, match=r"\(0.weight\) .*changed since the last step"):
        steps(optimizer, 1)
    copied(net, torch.full_like(net[0].weight, 4.0))
    steps(optimizer, 1)
    assert (net[0].weight > 3.9).all()


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("elements", [1, 7])
def test_only_what_was_written_begins_anew(elements: int, hidden: bool) -> None:
    net, optimizer = train("master", 5)
    p = net[0].weight
    before = value(optimizer, p)
    assert (before != p.double()).any()
    with torch.no_grad():
        # Writing through .data in place changes no version.
        (p.data if hidden else p).view(-1)[:elements].add_(1.0)
    expected = before.view(-1).clone()
    expected[:elements] = p.detach().double().view(-1)[:elements]
    optimizer._steps.marks.warned = True
    optimizer.reload_model_params()
    assert_same_bits(value(optimizer, p).view(-1), expected)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("precision", HIDDEN)
def test_weights_swapped_out_and_in_again(precision: str) -> None:
    net, optimizer = train(precision)
    reference = copy.deepcopy((net, optimizer))
    kept = {k: t.clone() for k, t in net.state_dict().items()}
    averages = {k: t * 0 + 2 for k, t in kept.items()}
    net.load_state_dict(averages)
    net.load_state_dict(kept)
    steps(optimizer, 2, seed=77)
    steps(reference[1], 2, seed=77)
    assert_same(stored(optimizer), stored(reference[1]))


ORDERS: dict[str, Callable[[Any, Any, Any, Any], None]] = {
    "model first": lambda n, o, m, s: (n.load_state_dict(m), o.load_state_dict(s)) and None,
    "optimizer first": lambda n, o, m, s: (o.load_state_dict(s), n.load_state_dict(m)) and None,
}


@pytest.mark.sampled(every=9)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("precision", HIDDEN)
def test_checkpoints_in_any_order(precision: str, order: str, started: bool) -> None:
    net, optimizer = train(precision, 4)
    saved = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
    other, theirs = train(precision, 2 if started else 0)
    ORDERS[order](other, theirs, *saved)
    steps(optimizer, 2, seed=77)
    steps(theirs, 2, seed=77)
    assert_same(stored(theirs), stored(optimizer))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("precision", HIDDEN)
def test_repeated_and_general_steps(precision: str) -> None:
    # Clamping after every step, as some losses need: with a plan and without.
    results = []
    for keep in (True, False):
        with mcf.executor("numba"), warnings.catch_warnings():
            warnings.simplefilter("ignore", WeightsRewrittenWarning)
            net, optimizer = train(precision, 0)
            if not keep:
                in_full(optimizer)
            for t in range(5):
                steps(optimizer, 1, seed=t)
                with torch.no_grad():
                    for p in net.parameters():
                        p.clamp_(-0.5, 0.5)
            assert (optimizer._steps._repeat is not None) == keep
            results.append(stored(optimizer))
    assert_same(*results)


@pytest.mark.sampled(every=9)
@pytest.mark.parametrize("precision", HIDDEN)
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
def test_ordinary_steps_leave_nothing_to_repair(precision: str, dtype: torch.dtype) -> None:
    # Weights of all sizes, updates larger and smaller than they; strict arithmetic too.
    if precision.startswith("split") and dtype == FP16:
        pytest.skip("bits of bfloat16")
    strict = [FP32] if precision in ("master", "split16", "split8") else [FP32, dtype]
    for compute_dtype in strict:
        scales = torch.tensor([2.0**-k for k in range(-3, 14)]).repeat(40)
        p = nn.Parameter((random(680, torch.float64, 1) * scales).to(dtype))
        options: Any = {"precision": precision, "compute_dtype": compute_dtype}
        kinds: list[Any] = [AdamW] if precision == "plus" else [SGD, Lion, AdamW]
        for optimizer in (
            kind([p], lr=2.0**-6, eps=2.0**-9, **options)
            if kind is AdamW
            else kind([p], lr=2.0**-6, **options)
            for kind in kinds
        ):
            for t in range(20):
                p.grad = (random(680, torch.float64, t) * scales.flip(0)).to(dtype)
                optimizer.step()
                before = stored(optimizer)
                optimizer.reload_model_params()
                assert_same(stored(optimizer), before)


@pytest.mark.parametrize(("zero", "low"), [(0.0, -5), (-0.0, -5)])
def test_bits_beside_a_weight_of_zero(zero: float, low: int) -> None:
    # A pattern below that of 0 is a NaN's.
    p = nn.Parameter(torch.ones(4, dtype=BF16))
    optimizer = SGD([p], lr=0.0, precision="split16")
    steps(optimizer, 1)
    optimizer.state[p]["param_bits"].fill_(low)
    with torch.no_grad():
        p.fill_(zero)
    p.grad = torch.zeros_like(p)
    with pytest.warns(WeightsRewrittenWarning):
        optimizer.step()
    assert (p == 0).all()


@pytest.mark.parametrize("name", ["torch", "numba"])
@pytest.mark.parametrize("precision", ["master", "kahan", "light", "plus"])
def test_inference_tensors_are_stepped_and_followed(precision: str, name: str) -> None:
    # They have no version counters: every step asks their elements.
    def stepped() -> tuple[Any, Any]:
        p = nn.Parameter(torch.full((9,), 9.0, dtype=BF16))
        optimizer = AdamW([p], lr=2.0**-4, precision=precision)
        steps(optimizer, 3)
        return p, optimizer

    with mcf.executor(name):
        ordinary, _ = stepped()
        with torch.inference_mode():
            p, optimizer = stepped()
            assert_same_bits(p, ordinary)
            p.fill_(2.0**-20)
            with pytest.warns(WeightsRewrittenWarning):
                steps(optimizer, 1)
            # From where it was written to, by about lr; it was near 9.
            assert (p.abs() < 0.5).all()
