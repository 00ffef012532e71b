"""Moments in blocks of 8-bit numbers: their tensors, checkpoints, conversion and refusals."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator

import pytest
import torch
from torch.nn import Parameter

import mcf
from mcf.optim import AdamW, CollageAdamW, Muon, Precision, convert
from mcf.optim.storage import blocks as eight_bits
from mcf.optim.storage.blocks import BLOCK
from tests.helpers import assert_same_bits
from tests.optim.eight_bits_cases import (
    E4M3,
    E5M2,
    E5M2_MIXED,
    E5M2_PAIRS,
    EVERY,
    MIXED,
    PAIRS,
    dtype,
    trained,
)
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


@pytest.fixture(autouse=True)
def reference() -> Iterator[None]:
    """The torch executor."""
    with mcf.executor("torch"):
        yield


@pytest.mark.parametrize("precision", EVERY, ids=str)
def test_bytes_and_formats(precision: Precision) -> None:
    optimizer = trained(precision, size=10 * BLOCK)
    (p,) = parameters(optimizer)
    state = {n: t for n, t in optimizer.state[p].items() if n != "step"}
    assert p.grad is not None
    found = sum(t.numel() * t.element_size() for t in (p, p.grad, *state.values()))
    assert found == precision.bytes_per_param * p.numel()
    assert {n: t.dtype for n, t in state.items() if "exp_avg" in n} == {
        "exp_avg": dtype(precision),
        **({"exp_avg_lo": dtype(precision)} if precision.exp_avg.endswith("x2") else {}),
        "exp_avg_exponent": torch.int8,
        "exp_avg_sq": dtype(precision),
        "exp_avg_sq_lo": dtype(precision),
        "exp_avg_sq_exponent": torch.int8,
    }
    assert Precision.of(str(precision)) == precision


@pytest.mark.parametrize("precision", EVERY, ids=str)
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
    for other in (MIXED, E5M2_PAIRS):
        with pytest.raises(ValueError, match="has precision='pair_fp8x2_fp8x2'; the optimizer has"):
            trained(other).load_state_dict(saved)


TARGETS = ["plain", "light", "plus", "split16", "master", *map(str, EVERY)]


@pytest.mark.parametrize("other", TARGETS)
@pytest.mark.parametrize("precision", [PAIRS, E5M2_PAIRS], ids=str)
def test_conversion(precision: Precision, other: str) -> None:
    # Gradients of one sign: first moments are not so small beside their block's largest.
    p = parameter(300, BF16)
    first = AdamW([p], 1e-2, precision=str(precision))
    for seed in range(3):
        p.grad = random(300, BF16, seed).abs() + 1
        first.step()
    kept = stored(first)
    truth = {n: eight_bits.read(n, first.state[p]) for n in ("exp_avg", "exp_avg_sq")}
    second, report = convert(first, other, params=[Parameter(p.detach().clone())])
    assert_same(stored(first), kept)
    rounded = {r.what for r in report.rounded} - {"param"}
    exact = {"master", str(precision), *([str(PAIRS)] if precision is E5M2_PAIRS else [])}
    first_alone = {str(m) for m in (MIXED, E5M2_MIXED) if dtype(m) in (E4M3, dtype(precision))}
    if other in exact:
        # Of these numbers e4m3's range has room for all of e5m2's.
        assert rounded == set()
    else:
        assert rounded == {"exp_avg"} | ({"exp_avg_sq"} if other not in first_alone else set())
    # And back: what the other holds exactly comes back as the same value.
    third, _ = convert(second, precision)
    (q,) = parameters(third)
    for name in truth.keys() - rounded:
        assert_same_bits(eight_bits.read(name, third.state[q]), truth[name], name)
    if other == str(precision):
        assert report.exact
        for name in kept.keys() - {"0.grad"}:
            assert_same_bits(stored(third)[name], kept[name], name)
    steps(third, 1)


@pytest.mark.parametrize(("precision", "share"), [(PAIRS, 2**-7), (E5M2_PAIRS, 2**-5)])
def test_a_report_of_what_8_bits_lose(precision: Precision, share: float) -> None:
    optimizer = trained("master")
    _, report = convert(optimizer, precision)
    largest = {r.what: r.largest for r in report.rounded if r.what != "param"}
    assert set(largest) == {"exp_avg", "exp_avg_sq"}
    # Roots to 9 or 7 bits are squares to 8 or 6.
    assert share / 4 < largest["exp_avg_sq"] < share


def test_infinities_come_along() -> None:
    """From float32 moments to e5m2 and back; e4m3 has NaN."""
    optimizer = trained("master")
    (p,) = parameters(optimizer)
    optimizer.state[p]["exp_avg"][3:6] = torch.tensor([torch.inf, -torch.inf, torch.nan])
    for precision in (E5M2_PAIRS, E5M2_MIXED, PAIRS):
        second, _ = convert(optimizer, precision, params=[Parameter(p.detach().clone())])
        (q,) = parameters(second)
        found = eight_bits.read("exp_avg", second.state[q])[3:6]
        if dtype(precision) == E5M2:
            assert_same_bits(found, optimizer.state[p]["exp_avg"][3:6])
        else:
            assert found.isnan().all()


def test_refusals() -> None:
    weight = parameter((4, 4), BF16)
    for given, message in (
        ({"param": "fp8"}, "param='fp8': weights take small updates that 8 bits lose"),
        ({"param": "e5m2x2"}, "param='e5m2x2': weights take small updates that 8 bits lose"),
        ({"exp_avg_sq": "fp8"}, "exp_avg_sq='fp8': it takes shares of 1 - beta2"),
        ({"exp_avg_sq": "e5m2"}, "allowed are 'single', 'pair', 'float32', 'fp8x2', 'e5m2x2'"),
        ({"exp_avg": "e5m3"}, "'fp8', 'fp8x2', 'e5m2', 'e5m2x2'"),
    ):
        with pytest.raises(ValueError, match=message):
            Precision(**given)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Muon's step is not made in blocks"):
        Muon([weight], precision=Precision("pair", "fp8"))
    with pytest.raises(ValueError, match="Unknown mode"):
        CollageAdamW([weight], mode=str(PAIRS))
    with pytest.raises(ValueError, match="needs the bits of float32"):
        AdamW([weight], precision=PAIRS, compute_dtype=BF16)


def test_other_dtypes() -> None:
    """float16 has the same moments; float32 and float64 are plain, as under every precision."""
    for kind in (FP16, FP32, FP64):
        optimizer = AdamW([parameter(200, kind)], precision=PAIRS)
        steps(optimizer, 2)
        (p,) = parameters(optimizer)
        assert optimizer.state[p]["exp_avg"].dtype == (E4M3 if kind == FP16 else kind)
