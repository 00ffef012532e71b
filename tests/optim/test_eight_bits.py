"""Moments in blocks of 8-bit numbers: what is stored, on every executor, and what it does to steps.

What is stored is the model's below, written with torch's own e4m3 tensors. A mutant without the
floor of second moments makes a step a thousand times too large.
"""

from __future__ import annotations

import copy
import dataclasses
import io
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

import mcf
from mcf.optim import (
    SGD,
    Adam,
    Adamax,
    AdamW,
    CollageAdamW,
    GradientRelease,
    Lion,
    Muon,
    Precision,
    blocks,
    convert,
    eight_bits,
    set_index_offset,
)
from mcf.optim.eight_bits import BLOCK
from tests.helpers import assert_same_bits
from tests.helpers.executors import on_each_executor
from tests.optim.helpers import (
    BF16,
    FP16,
    FP32,
    FP64,
    assert_same,
    parameter,
    parameters,
    random,
    steps,
    stored,
)

PAIRS = Precision("pair", "fp8x2", "fp8x2")
MIXED = Precision("pair", "fp8", "fp8x2")
E4M3 = torch.float8_e4m3fn


def model(x: Tensor, root: bool, paired: bool) -> dict[str, Tensor]:
    """What is stored of a flat float32 tensor of at most one block."""
    y = x.sqrt() if root else x
    size = y[y.isfinite()].abs().max().item() if y.isfinite().any() else 0.0
    k = next(k for k in range(-100, 121) if size <= 448 * 2.0**k)
    z = torch.where(y.isfinite(), y * 2.0**-k, torch.nan)
    found = {"": z.to(E4M3)}
    if paired:
        low = ((z - found[""].float()) * 16).to(E4M3)
        smallest = torch.tensor(1, dtype=torch.int8).view(E4M3)
        none = (found[""].float() == 0) & (low.float() == 0) & (x > 0)
        found["_lo"] = torch.where(none & root, smallest.float(), low.float()).to(E4M3)
    return found | {"_exponent": torch.tensor([k], dtype=torch.int8)}


def wide(precision: Precision) -> Precision:
    return dataclasses.replace(precision, exp_avg="float32", exp_avg_sq="float32")


@on_each_executor
@pytest.mark.parametrize("precision", [PAIRS, MIXED], ids=str)
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
    for name, paired in (("exp_avg", precision is PAIRS), ("exp_avg_sq", True)):
        parts = [model(x, name == "exp_avg_sq", paired) for x in moments[name].split(BLOCK)]
        for suffix in parts[0]:
            expected = torch.cat([part[suffix] for part in parts])
            assert_same_bits(state[name + suffix], expected, name + suffix)


RULES: list[tuple[Any, dict[str, Any]]] = [
    (AdamW, {}),
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
            optimizer = rule(weights, 1e-2, precision=PAIRS, track_metrics=True, **options)
            steps(optimizer, 3)
            results.append(stored(optimizer))
            lost.append(optimizer.metrics().get("lost_exp_avg_sq"))
    assert_same(results[1], results[0], "numba")
    assert_same(results[2], results[0], "triton")
    # Counts, of the same additions.
    assert lost == [lost[0]] * 3


@pytest.fixture
def reference():
    with mcf.executor("torch"):
        yield


pytestmark_reference = pytest.mark.usefixtures("reference")


def trained(precision: Any = PAIRS, count: int = 3, size: int = 300, **options: Any) -> AdamW:
    optimizer = AdamW([parameter(size, BF16)], 1e-2, precision=precision, **options)
    steps(optimizer, count)
    return optimizer


@pytestmark_reference
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


@pytestmark_reference
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


@pytestmark_reference
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


@pytestmark_reference
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_stays_with_its_element(bad: float) -> None:
    results = []
    for value in (bad, 0.0):
        optimizer = trained(count=0)
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
                assert tensor[17].isnan()
        elif "step" not in name:
            assert_same_bits(tensor, results[1][name], name)


@pytestmark_reference
def test_blocks_of_zeros_and_of_the_smallest_and_largest() -> None:
    for size in (0.0, 2.0**-133, 1e-30, 1e19):
        weight = Parameter(torch.ones(BLOCK, dtype=BF16))
        optimizer = AdamW([weight], 1e-2, precision=PAIRS, weight_decay=0.0)
        for _ in range(3):
            weight.grad = torch.full((BLOCK,), size, dtype=BF16)
            optimizer.step()
        assert weight.isfinite().all()
        first = eight_bits.read("exp_avg", optimizer.state[weight])
        # Beside float32's rounding; at 2**-133 what a block at its least exponent holds is 0.
        truth = size * (1 - 0.9**3) if size > 1e-37 else 0.0
        assert torch.allclose(first, torch.full_like(first, truth), rtol=2**-7, atol=0)


def late_beside_large(size: float) -> float:
    """The step after one gradient of `size`, the first of its element, beside many of 1."""
    weight = Parameter(torch.zeros(BLOCK, dtype=BF16))
    optimizer = AdamW([weight], 1.0, (0.9, 0.9), 1e-30, 0.0, precision=PAIRS)
    others = torch.ones(BLOCK, dtype=BF16)
    others[3] = 0
    for t in range(25):
        weight.grad = others * (-1) ** t
        if t == 23:
            weight.grad[3] = size
        before = weight.detach().clone()
        optimizer.step()
    return abs(float((weight.detach() - before)[3]))


@pytestmark_reference
def test_no_step_explodes(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [2.0**-k for k in range(10, 30)]
    # With exact moments the step is .09 / sqrt(.09) = .3; of one and a half of the smallest numbers
    # one is stored.
    assert max(map(late_beside_large, sizes)) < 0.3 * 1.5
    slots = eight_bits._slots

    def mutant(rooted: bool) -> Any:
        found = dict(slots(rooted))
        return tuple((found | {"floored": eight_bits.rules.as_it_is}).items())

    monkeypatch.setattr(eight_bits, "_slots", mutant)
    for made in (eight_bits._loading, eight_bits._storing):
        monkeypatch.setattr(eight_bits, made.__name__, made.__wrapped__)
    assert max(map(late_beside_large, sizes)) > 1000


@pytestmark_reference
@pytest.mark.parametrize("precision", [PAIRS, MIXED], ids=str)
def test_bytes_and_formats(precision: Precision) -> None:
    optimizer = trained(precision, size=10 * BLOCK)
    (p,) = parameters(optimizer)
    state = {n: t for n, t in optimizer.state[p].items() if n != "step"}
    assert p.grad is not None
    found = sum(t.numel() * t.element_size() for t in (p, p.grad, *state.values()))
    assert found == precision.bytes_per_param * p.numel()
    assert {n: t.dtype for n, t in state.items() if "exp_avg" in n} == {
        "exp_avg": E4M3,
        **({"exp_avg_lo": E4M3} if precision is PAIRS else {}),
        "exp_avg_exponent": torch.int8,
        "exp_avg_sq": E4M3,
        "exp_avg_sq_lo": E4M3,
        "exp_avg_sq_exponent": torch.int8,
    }
    assert Precision.of(str(precision)) == precision


@pytestmark_reference
@pytest.mark.parametrize("precision", [PAIRS, MIXED], ids=str)
def test_checkpoints_go_on_to_the_same_bits(precision: Precision) -> None:
    first = trained(precision)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    (p,) = parameters(first)
    second = AdamW([Parameter(p.detach().clone())], precision=str(precision))
    second.load_state_dict(torch.load(file, weights_only=True))
    third = copy.deepcopy(first)
    for optimizer in (first, second, third):
        steps(optimizer, 2, seed=7)
    assert_same(stored(second), stored(first))
    assert_same(stored(third), stored(first))


@pytestmark_reference
def test_states_that_do_not_fit() -> None:
    saved = trained().state_dict()
    for name, wrong in (
        ("exp_avg_exponent", torch.zeros(2, dtype=torch.int8)),
        ("exp_avg", torch.zeros(300, dtype=BF16)),
    ):
        bad = copy.deepcopy(saved)
        bad["state"][0][name] = wrong
        with pytest.raises(ValueError, match=f"state '{name}' of .* has dtype"):
            trained().load_state_dict(bad)
    with pytest.raises(ValueError, match="has precision='pair_fp8x2_fp8x2'; the optimizer has"):
        trained(MIXED).load_state_dict(saved)


TARGETS = ["plain", "light", "plus", "split16", "master", str(MIXED), str(PAIRS)]


@pytestmark_reference
@pytest.mark.parametrize("other", TARGETS)
def test_conversion(other: str) -> None:
    first = trained(PAIRS)
    (p,) = parameters(first)
    kept = stored(first)
    truth = {n: eight_bits.read(n, first.state[p]) for n in ("exp_avg", "exp_avg_sq")}
    second, report = convert(first, other, params=[Parameter(p.detach().clone())])
    assert_same(stored(first), kept)
    rounded = {r.what for r in report.rounded} - {"param"}
    assert rounded == {
        "master": set(),
        "plus": {"exp_avg", "exp_avg_sq"},
        str(MIXED): {"exp_avg"},
        str(PAIRS): set(),
    }.get(other, {"exp_avg", "exp_avg_sq"})
    # And back: what the other holds exactly comes back as the same value.
    third, _ = convert(second, PAIRS)
    (q,) = parameters(third)
    for name in truth.keys() - rounded:
        assert_same_bits(eight_bits.read(name, third.state[q]), truth[name], name)
    if other == str(PAIRS):
        assert report.exact
        for name in kept.keys() - {"0.grad"}:
            assert_same_bits(stored(third)[name], kept[name], name)
    steps(third, 1)


@pytestmark_reference
def test_a_report_of_what_8_bits_lose() -> None:
    optimizer = trained("master")
    _, report = convert(optimizer, PAIRS)
    largest = {r.what: r.largest for r in report.rounded if r.what != "param"}
    assert set(largest) == {"exp_avg", "exp_avg_sq"}
    # Roots to 9 bits are squares to 8.
    assert largest["exp_avg_sq"] < 2**-7


@pytestmark_reference
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


@pytestmark_reference
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


def test_refusals() -> None:
    weight = parameter((4, 4), BF16)
    for given, message in (
        ({"param": "fp8"}, "param='fp8': weights take small updates that 8 bits lose"),
        ({"exp_avg_sq": "fp8"}, "exp_avg_sq='fp8': it takes shares of 1 - beta2"),
    ):
        with pytest.raises(ValueError, match=message):
            Precision(**given)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Muon's step is not made in blocks"):
        Muon([weight], precision=Precision("pair", "fp8"))
    with pytest.raises(ValueError, match="Unknown mode"):
        CollageAdamW([weight], mode=str(PAIRS))
    with pytest.raises(ValueError, match="needs the bits of float32"):
        AdamW([weight], precision=PAIRS, compute_dtype=BF16)


@pytestmark_reference
def test_other_dtypes() -> None:
    """float16 has the same moments; float32 and float64 are plain, as under every precision."""
    for dtype in (FP16, FP32, FP64):
        optimizer = AdamW([parameter(200, dtype)], precision=PAIRS)
        steps(optimizer, 2)
        (p,) = parameters(optimizer)
        assert optimizer.state[p]["exp_avg"].dtype == (E4M3 if dtype == FP16 else dtype)
