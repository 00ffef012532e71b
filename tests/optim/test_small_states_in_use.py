"""Moments in codes of 8 bits, and in bf16 rounded at random, beside what else an optimizer has."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch.nn import Parameter

from mcf.optim import Adamax, AdamW, GradientRelease, Lion, Precision, collage, convert
from mcf.optim.storage import codes
from tests.helpers import assert_same_bits
from tests.optim.helpers import BF16, FP16, assert_same, parameter, random, steps, stored
from tests.optim.test_small_states import SHAPE, moments

pytestmark = pytest.mark.usefixtures("on_torch")


def test_released_gradients() -> None:
    results = []
    for released in (False, True):
        params = [parameter(s, BF16, k) for k, s in enumerate(((6, 8), (8,), (3, 4)))]
        optimizer = AdamW(params, 1e-2, precision="8bit")
        if released:
            GradientRelease(optimizer)
        for t in range(3):
            shares = [
                (p * random(p.shape, BF16, 10 * t + k, 0.1)).sum() for k, p in enumerate(params)
            ]
            sum(shares[1:], shares[0]).backward()
            if not released:
                optimizer.step()
                optimizer.zero_grad()
        results.append(stored(optimizer))
    assert_same(*results)


def test_vectors_keep_bf16() -> None:
    matrix, vector, scalar = (parameter(s, BF16) for s in ((4, 6), (24,), ()))
    results = []
    for precision in ("8bit", "bf16_sr"):
        params = [Parameter(p.detach().clone()) for p in (matrix, vector, scalar)]
        optimizer = AdamW(params, 1e-2, precision=precision)
        steps(optimizer, 3)
        results.append(stored(optimizer))
    small, wide = results
    assert small["0.exp_avg"].dtype == torch.uint8
    for name, expected in wide.items():
        if name[0] in "12":
            assert_same_bits(small[name], expected, name)


@pytest.mark.parametrize("precision", ["8bit", "4bit"])
def test_conversion(precision: str) -> None:
    """A code's number is exact in every wider storage, and becomes that code again."""
    p = parameter(SHAPE, BF16)
    optimizer = AdamW([p], 1e-2, precision=precision, seed=3)
    steps(optimizer, 4)
    before = {k: t.clone() for k, t in stored(optimizer).items()}
    m, v = moments(optimizer)
    for target in ("master", "plain", "bf16_sr", "split8_8bit", "plus", "fp32_states", "8bit"):
        there, report = convert(optimizer, target, params=[Parameter(p.detach().clone())])
        assert report.exact, (target, str(report))
        (q,) = there.param_groups[0]["params"]
        if not target.endswith("8bit"):
            assert_same_bits(there.state[q]["exp_avg"].float(), m)
            assert_same_bits(there.state[q]["exp_avg_sq"].float(), v)
        back, report = convert(there, precision, params=[Parameter(q.detach().clone())])
        assert report.exact, (target, str(report))
        (r,) = back.param_groups[0]["params"]
        for name, t in back.state[r].items():
            assert_same_bits(t, before[f"0.{name}"], name)


def test_conversion_rounds_to_nearest() -> None:
    p = parameter(SHAPE, BF16)
    optimizer = AdamW([p], 1e-2, precision="master")
    steps(optimizer, 4)
    state = optimizer.state[p]
    m, v = (state[name].clone() for name in ("exp_avg", "exp_avg_sq"))
    made, report = convert(optimizer, "8bit")
    assert {r.what for r in report.rounded} == {"param", "exp_avg", "exp_avg_sq"}
    found_m, found_v = moments(made)
    assert ((found_v - v).abs() <= v / 8).all()
    assert ((found_m - m).abs() <= m.abs() / 16 + 2**-11 * found_v.sqrt()).all()


def test_adamax() -> None:
    p = parameter(SHAPE, BF16)
    optimizer = Adamax([p], 1e-2, precision="8bit")
    m = n = torch.zeros(SHAPE, dtype=torch.float64)
    for t in range(10):
        p.grad = random(SHAPE, BF16, t, 0.1)
        optimizer.step()
        g = p.grad.double()
        m, n = 0.9 * m + 0.1 * g, torch.maximum(0.999 * n, g.abs() + 1e-8)
        state = optimizer.state[p]
        found_m = codes.read("exp_avg", state).double()
        found_n = codes.read("exp_inf", state).double()
        assert ((found_n - n).abs() <= n / 4 * (1 + 1e-6)).all()
        assert ((found_m - m).abs() <= m.abs() / 8 * (1 + 1e-6) + 2**-10 * found_n).all()
        m, n = found_m, found_n


def test_metrics() -> None:
    """Additions that a stored second moment lost: its code stays although it was to change."""
    p = parameter(SHAPE, BF16)
    optimizer = AdamW([p], 1e-2, (0.9, 0.999), precision="8bit", track_metrics=True)
    steps(optimizer, 5)
    before = optimizer.state[p]["exp_avg_sq"].clone(), p.detach().clone()
    steps(optimizer, 1, seed=77)
    after = optimizer.state[p]["exp_avg_sq"], p.detach()
    found = optimizer.metrics()
    v, g = codes.read("exp_avg_sq", {"exp_avg_sq": before[0]}).double(), p.grad.double()
    lost = (before[0] == after[0]) & (g * g != v)
    assert found["lost_exp_avg_sq"] == pytest.approx(lost.double().mean().item(), abs=1e-12)
    assert 0.2 < found["lost_exp_avg_sq"] < 1, "many of them, and none on average"
    assert found["lost_param"] == pytest.approx(
        (before[1] == after[1]).double().mean().item(), abs=1e-12
    )


REFUSED: list[tuple[Any, str]] = [
    (lambda: AdamW([parameter(SHAPE, FP16)], precision="8bit"), "allowed is torch.bfloat16"),
    (lambda: AdamW([parameter(SHAPE, BF16)], precision="8bit", compute_dtype=BF16), "compute_dt"),
    (
        lambda: Lion([parameter(SHAPE, BF16)], precision=Precision(exp_avg="ratio8")),
        "codes that need a second moment, which Lion has not",
    ),
    (
        lambda: collage(torch.optim.AdamW, [parameter(SHAPE, BF16)], lr=1e-3, precision="8bit"),
        "those of a wrapped class are not known to be",
    ),
    (lambda: Precision(exp_avg="ue6m2"), "exp_avg='ue6m2'"),
    (lambda: Precision(exp_avg_sq="ratio8"), "exp_avg_sq='ratio8'"),
    (lambda: Precision(param="ratio8"), "Unknown param: 'ratio8'"),
]


@pytest.mark.parametrize("k", range(len(REFUSED)))
def test_refusals(k: int) -> None:
    make, message = REFUSED[k]
    with pytest.raises(ValueError, match=message):
        make()


def test_what_a_stored_moment_is() -> None:
    """Its exact value: the number of a code times a power of two."""
    p = parameter(SHAPE, BF16)
    optimizer = AdamW([p], 1e-2, precision="8bit")
    steps(optimizer, 3)
    state = optimizer.state[p]
    found_m, found_v = moments(optimizer)
    for k in itertools.islice(itertools.product(range(3), range(0, 40, 7)), 18):
        code, beside = int(state["exp_avg"][k]), int(state["exp_avg_sq"][k])
        v = Fraction(2) ** ((beside - 1) // 4 - 60) * Fraction(4 + (beside - 1) % 4, 4)
        assert Fraction(found_v[k].item()) == v
        e, f = divmod(code % 128, 8)
        size = (Fraction(8 + f) * 2 ** (e - 1) if e else Fraction(f)) / 2**11
        ratio = abs(Fraction(found_m[k].item())) / size if size else None
        if ratio is not None:
            assert ratio**2 / 4 <= v < ratio**2
