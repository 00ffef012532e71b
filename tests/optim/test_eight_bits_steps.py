"""Moments in blocks of 8-bit numbers: what is stored, on every executor, and what steps become.

What is stored is the model's below, written with torch's own tensors of 8 bits. A mutant without
the floor of second moments makes a step a thousand times too large.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

import mcf
from mcf.optim import SGD, Adam, Adamax, AdamW, GradientRelease, Lion, Precision, set_index_offset
from mcf.optim.step import chunks as blocks
from mcf.optim.storage import blocks as eight_bits
from mcf.optim.storage.blocks import BLOCK
from tests.helpers import assert_same_bits
from tests.helpers.executors import on_each_executor
from tests.optim.eight_bits_cases import E4M3, E5M2, E5M2_PAIRS, EVERY, PAIRS, dtype, trained
from tests.optim.helpers import BF16, assert_same, parameter, parameters, random, steps, stored


@pytest.fixture(autouse=True)
def reference() -> Iterator[None]:
    """The torch executor, where a test names no other."""
    with mcf.executor("torch"):
        yield


# Of each format its largest number, and what the second number of a pair is multiplied by.
LARGEST = {E4M3: 448, E5M2: 57344}
FACTOR = {E4M3: 16, E5M2: 8}


def model(x: Tensor, kind: torch.dtype, root: bool, paired: bool) -> dict[str, Tensor]:
    """What is stored of a flat float32 tensor of at most one block."""
    y = x.sqrt() if root else x
    size = y[y.isfinite()].abs().max().item() if y.isfinite().any() else 0.0
    k = next(k for k in range(-100, 121) if size <= LARGEST[kind] * 2.0**k)
    kept = y.isfinite() if kind == E4M3 else ~y.isnan()
    z = torch.where(kept, y * 2.0**-k, torch.nan)
    found = {"": z.to(kind)}
    if paired:
        rest = torch.where(z.isinf(), 0.0, z - found[""].float())
        low = (rest * FACTOR[kind]).to(kind)
        smallest = torch.tensor(1, dtype=torch.int8).view(kind)
        none = (found[""].float() == 0) & (low.float() == 0) & (x > 0)
        found["_lo"] = torch.where(none & root, smallest.float(), low.float()).to(kind)
    return found | {"_exponent": torch.tensor([k], dtype=torch.int8)}


def wide(precision: Precision) -> Precision:
    return dataclasses.replace(precision, exp_avg="float32", exp_avg_sq="float32")


@on_each_executor
@pytest.mark.parametrize("precision", EVERY, ids=str)
def test_what_is_stored(executor: str, precision: Precision) -> None:
    """A first step is that of float32 moments, and what is stored of those is the model's."""
    count = 300
    grad = random(count, BF16, 3) * 10.0 ** -torch.arange(count).remainder(30).to(BF16)
    grad[5], grad[200], grad[260], grad[7] = torch.nan, torch.inf, -torch.inf, 0.0
    grad[2 * BLOCK :] *= 1e-25
    found: list[Any] = []
    with mcf.executor(executor):
        for p in (precision, wide(precision)):
            weight = parameter(count, BF16)
            weight.grad = grad.clone()
            optimizer = AdamW([weight], 1e-2, precision=p)
            optimizer.step()
            found.append((weight.detach(), optimizer.state[weight]))
    (weight, state), (expected_weight, moments) = found
    assert_same_bits(weight, expected_weight)
    assert_same_bits(state["param_lo"], moments["param_lo"])
    for name, paired in (("exp_avg", precision.exp_avg.endswith("x2")), ("exp_avg_sq", True)):
        parts = [
            model(x, dtype(precision), name == "exp_avg_sq", paired)
            for x in moments[name].split(BLOCK)
        ]
        for suffix in parts[0]:
            expected = torch.cat([part[suffix] for part in parts])
            assert_same_bits(state[name + suffix], expected, name + suffix)


RULES: list[tuple[Any, dict[str, Any]]] = [
    (AdamW, {}),
    (AdamW, {"precision": E5M2_PAIRS}),
    (Adam, {"amsgrad": True, "betas": (0.9, 0.6)}),
    (Adamax, {}),
    (Lion, {}),
    (SGD, {"momentum": 0.9}),
]


@pytest.mark.parametrize(("rule", "options"), RULES)
def test_executors_agree(rule: Any, options: dict[str, Any]) -> None:
    results, lost = [], []
    for name in ("torch", "numba", "triton"):
        with mcf.executor(name):
            weights = [parameter(s, BF16, k) for k, s in enumerate([(7, 13), (), (0,), (1100,)])]
            chosen = {"precision": PAIRS, **options}
            optimizer = rule(weights, 1e-2, track_metrics=True, **chosen)
            steps(optimizer, 3)
            results.append(stored(optimizer))
            lost.append(optimizer.metrics().get("lost_exp_avg_sq"))
    assert_same(results[1], results[0], "numba")
    assert_same(results[2], results[0], "triton")
    # Counts, of the same additions.
    assert lost == [lost[0]] * 3


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_cutting_and_layout_change_nothing(rounding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    precision = dataclasses.replace(PAIRS, rounding=rounding)

    def results(shape: tuple[int, ...], order: tuple[int, ...]) -> list[dict[str, Tensor]]:
        weight = parameter(shape, BF16)
        moved = Parameter(weight.detach().permute(order).contiguous().permute(_inverse(order)))
        found = []
        for p in (weight, moved):
            optimizer = AdamW([p, parameter(200, BF16, 5)], 1e-2, precision=precision)
            steps(optimizer, 3)
            found.append(stored(optimizer))
        return found

    plain = results((5, 7, 40), (2, 0, 1))
    monkeypatch.setitem(blocks.CHUNK, "cpu", 2 * BLOCK)
    for other in (plain[1], *results((5, 7, 40), (2, 0, 1))):
        assert_same(other, plain[0])


def _inverse(order: tuple[int, ...]) -> list[int]:
    return [order.index(k) for k in range(len(order))]


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_aligned_parts_are_the_whole(rounding: str) -> None:
    precision = dataclasses.replace(PAIRS, rounding=rounding)
    whole, cut = parameter(700, BF16), 2 * BLOCK
    parts = [Parameter(x.clone()) for x in (whole.detach()[:cut], whole.detach()[cut:])]
    set_index_offset(parts[1], cut)
    one = AdamW([whole], 1e-2, precision=precision)
    # Each process has one of them, so its parameters are counted from 0.
    others = [AdamW([p], 1e-2, precision=precision) for p in parts]
    for t in range(3):
        whole.grad = random(700, BF16, t)
        parts[0].grad, parts[1].grad = whole.grad[:cut].clone(), whole.grad[cut:].clone()
        for optimizer in (one, *others):
            optimizer.step()
    both = [stored(o) for o in others]
    for name, tensor in stored(one).items():
        joined = both[0][name] if "step" in name else torch.cat([b[name] for b in both])
        assert_same_bits(joined, tensor, name)


def test_a_part_that_begins_inside_a_block_raises() -> None:
    weight = parameter(300, BF16)
    set_index_offset(weight, 100)
    optimizer = AdamW([weight], precision=PAIRS)
    before = weight.detach().clone()
    with pytest.raises(
        ValueError, match=r"params\[0\].* begins at element 100 .* multiples of 128"
    ):
        steps(optimizer, 1)
    assert_same_bits(weight.detach(), before)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("precision", [PAIRS, E5M2_PAIRS], ids=str)
def test_what_is_not_finite_stays_with_its_element(precision: Precision, bad: float) -> None:
    results = []
    for value in (bad, 0.0):
        optimizer = trained(precision, count=0)
        (p,) = parameters(optimizer)
        for t in range(3):
            p.grad = random(300, BF16, t)
            p.grad[17] = value
            optimizer.step()
        results.append(stored(optimizer))
    there = torch.arange(300) != 17
    for name, tensor in results[0].items():
        if tensor.numel() == 300:
            assert_same_bits(tensor[there], results[1][name][there], name)
            if name in ("0.exp_avg", "0.exp_avg_sq"):
                # e4m3 has no infinities.
                expected = bad if precision is E5M2_PAIRS else torch.nan
                expected = abs(expected) if name == "0.exp_avg_sq" else expected
                assert_same_bits(tensor[17].float(), torch.tensor(expected))
        elif "step" not in name:
            assert_same_bits(tensor, results[1][name], name)


@pytest.mark.parametrize("precision", [PAIRS, E5M2_PAIRS], ids=str)
def test_blocks_of_zeros_and_of_the_smallest_and_largest(precision: Precision) -> None:
    for size in (0.0, 2.0**-133, 1e-30, 1e19):
        weight = Parameter(torch.ones(BLOCK, dtype=BF16))
        optimizer = AdamW([weight], 1e-2, precision=precision, weight_decay=0.0)
        for _ in range(3):
            weight.grad = torch.full((BLOCK,), size, dtype=BF16)
            optimizer.step()
        assert weight.isfinite().all()
        first = eight_bits.read("exp_avg", optimizer.state[weight])
        # Beside float32's rounding; at 2**-133 what a block at its least exponent holds is 0.
        truth = size * (1 - 0.9**3) if size > 1e-37 else 0.0
        assert torch.allclose(first, torch.full_like(first, truth), rtol=2**-5, atol=0)


def late_beside_large(precision: Precision, sizes: list[float]) -> Tensor:
    """The step after one gradient of each size, the first of its element, beside many of 1.

    Each has a block of its own.
    """
    weight = Parameter(torch.zeros(len(sizes), BLOCK, dtype=BF16))
    optimizer = AdamW([weight], 1.0, (0.9, 0.9), 1e-30, 0.0, precision=precision)
    others = torch.ones(len(sizes), BLOCK, dtype=BF16)
    others[:, 3] = 0
    for t in range(25):
        weight.grad = others * (-1) ** t
        if t == 23:
            weight.grad[:, 3] = torch.tensor(sizes, dtype=BF16)
        before = weight.detach().clone()
        optimizer.step()
    return (weight.detach() - before)[:, 3].abs()


@pytest.mark.parametrize("precision", [PAIRS, E5M2_PAIRS], ids=str)
def test_no_step_explodes(precision: Precision, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [2.0**-k for k in (range(10, 30) if precision is PAIRS else range(25, 45))]
    # With exact moments the step is .09 / sqrt(.09) = .3; of one and a half of the smallest numbers
    # one is stored.
    assert late_beside_large(precision, sizes).max() < 0.3 * 1.5
    slots = eight_bits._slots

    def mutant(kind: eight_bits.Kind) -> Any:
        found = dict(slots(kind))
        return tuple((found | {"floored": eight_bits.coding.as_it_is}).items())

    monkeypatch.setattr(eight_bits, "_slots", mutant)
    for made in (eight_bits.loading, eight_bits.storing):
        monkeypatch.setattr(eight_bits, made.__name__, made.__wrapped__)
    assert late_beside_large(precision, sizes).max() > 1000


def test_lost_additions_are_those_of_what_is_stored() -> None:
    weight = Parameter(torch.ones(BLOCK, dtype=BF16))
    optimizer = AdamW([weight], 1e-3, (0.9, 0.999), precision=PAIRS, track_metrics=True)
    lost = []
    for size in (1.0, 0.01, 100.0):
        weight.grad = torch.full_like(weight, size)
        optimizer.step()
        lost.append(optimizer.metrics()["lost_exp_avg_sq"])
    # The second takes .09 % off v and so .045 % off its root, 259 of a block's 448: less than half
    # of a unit of 9 bits.
    assert lost == [0.0, 1.0, 0.0]


def test_gradient_release_and_float32_gradients_are_the_same_step() -> None:
    plain, released = trained(count=0), trained(count=0)
    release = GradientRelease(released)
    for optimizer in (plain, released):
        (p,) = parameters(optimizer)
        (p * random(300, BF16, 4)).sum().backward()
    plain.step()
    release.remove()
    first, second = stored(plain), stored(released)
    first.pop("0.grad")
    assert_same(second, first)


def test_lost_additions_of_a_norm_are_not_those_of_the_weight() -> None:
    weight = Parameter(torch.ones(BLOCK, dtype=BF16))
    optimizer = Adamax([weight], 0.1, (0.9, 0.999), precision=PAIRS, track_metrics=True)
    for size in (1.0, 0.01):
        weight.grad = torch.full_like(weight, size)
        optimizer.step()
    # The norm loses its decay of .1 %, as above; the weight moves by a tenth.
    assert optimizer.metrics()["lost_param"] == 0.0
