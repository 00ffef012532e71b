"""Moments in codes of 8 or 4 bits in use: layouts, checkpoints, conversion, executors, refusals."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch.nn import Parameter

from mcf.kernels import layouts
from mcf.optim import (
    SGD,
    Adamax,
    AdamW,
    Lion,
    Precision,
    ScheduleFreeAdamW,
    collage,
    convert,
    set_index_offset,
)
from mcf.optim.sharding import shards
from tests.helpers import assert_same_bits
from tests.optim.arithmetics import BF16, FP16
from tests.optim.coded_moments import (
    PAIRS,
    RULES,
    SHAPE,
    distance,
    moments,
    number,
    unit,
)
from tests.optim.helpers import assert_same, parameter, random, steps, stored, through_file

pytestmark = pytest.mark.usefixtures("on_torch")


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
    (lambda: Precision(param="ratio8"), "Unknown param: 'ratio8'"),
    (lambda: Precision(param="ratio4"), "Unknown param: 'ratio4'"),
    (odd_offset, re.escape("begins at the odd index 3")),
    (state_of_another_shape, r"needs torch.uint8 and \[3, 21\]"),
]


@pytest.mark.parametrize("k", range(len(REFUSED)))
def test_unfit_precision_is_refused(k: int) -> None:
    make, message = REFUSED[k]
    with pytest.raises(ValueError, match=message):
        make()


def test_cuts_through_bytes_are_found() -> None:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

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
        ((8, 8), (2, 2), (_StridedShard(1, split_factor=2), Shard(1)), True),
        ((8, 12), (2, 2), (_StridedShard(1, split_factor=2), Shard(1)), False),
    ):
        assert shards._whole_pairs(shape, mesh, places) == expected, (shape, places)
