"""First moments in 4 bits, two neighbours to a byte: steps, layouts, checkpoints, refusals."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch.nn import Parameter

from mcf.optim import Adamax, AdamW, GradientRelease, Precision, convert, set_index_offset
from mcf.optim.sharding import shards
from mcf.optim.storage import codes
from tests.helpers import assert_same_bits
from tests.optim.helpers import BF16, FP16, assert_same, parameter, random, steps, stored
from tests.optim.test_small_states import distance, moments

pytestmark = pytest.mark.usefixtures("on_torch")

SHAPE = (3, 40)


def test_first_steps_cut_what_is_large() -> None:
    """Of a constant gradient |m| is up to 6.5 sqrt(v) at beta2 = .999: what is above 3 u is cut."""
    p = Parameter(torch.ones(SHAPE, dtype=BF16))
    optimizer = AdamW([p], 2.0**-6, (0.9, 0.999), precision="4bit")
    for t in range(1, 40):
        p.grad = torch.full(SHAPE, 0.5, dtype=BF16)
        optimizer.step()
        m, v = moments(optimizer)
        u = torch.exp2(torch.floor(torch.log2(v) / 2) + 1)
        assert (m <= 3 * u).all()
        if t == 10:
            assert (m == 3 * u).float().mean() > 0.5
            # Still the direction of the gradient, at half of its length.
            assert m.mean() >= 0.5 * 0.5 * (1 - 0.9**t)


def test_what_is_odd_or_a_vector_is_wider() -> None:
    results = []
    for precision in ("4bit", "8bit"):
        params = [parameter(s, BF16, k) for k, s in enumerate(((4, 6), (4, 7), (24,), (), (0, 6)))]
        optimizer = AdamW(params, 1e-2, precision=precision, seed=3)
        steps(optimizer, 3)
        results.append(stored(optimizer))
    small, wide = results
    assert small["0.exp_avg"].shape == (4, 3)
    assert small["4.exp_avg"].shape == (0, 3)
    for name, expected in wide.items():
        if name[0] in "123":
            assert_same_bits(small[name], expected, name)


COMPOSED = [
    Precision("split16", "ratio4", "ue6m2"),
    Precision("pair", "ratio4", "float32", rounding="stochastic"),
    Precision("float32", "ratio4", "pair"),
    Precision("split8", "ratio4", "stochastic"),
]


@pytest.mark.parametrize("precision", COMPOSED, ids=str)
def test_beside_other_storages(precision: Precision) -> None:
    p = parameter(SHAPE, BF16)
    optimizer = AdamW([p], 1e-2, precision=precision)
    steps(optimizer, 4)
    state = optimizer.state[p]
    size = sum(t.nbytes for n, t in state.items() if n != "step") + 2 * p.nbytes
    assert size == precision.bytes_per_param * p.numel()
    assert state["exp_avg"].dtype == torch.uint8
    assert Precision.of(str(precision)) == precision
    reference = parameter(SHAPE, BF16)
    steps(AdamW([reference], 1e-2, precision="master"), 4)
    assert (p.detach() - reference.detach()).abs().max() < 0.05


def test_conversion_rounds_to_nearest() -> None:
    p = parameter(SHAPE, BF16)
    optimizer = AdamW([p], 1e-2, (0.9, 0.95), precision="master")
    steps(optimizer, 4)
    m = optimizer.state[p]["exp_avg"].double()
    made, report = convert(optimizer, "4bit")
    assert {r.what for r in report.rounded} == {"param", "exp_avg", "exp_avg_sq"}
    found, v = (x.double() for x in moments(made))
    u = torch.exp2(torch.floor(torch.log2(v) / 2) + 1)
    assert ((found - m).abs() <= distance(m, u) / 2 * (1 + 1e-6)).all()


def test_a_state_of_another_shape_is_refused() -> None:
    p = parameter(SHAPE, BF16)
    optimizer = AdamW([p], 1e-2, precision="4bit")
    steps(optimizer, 1)
    with pytest.raises(ValueError, match=r"needs torch.uint8 and \[3, 21\]"):
        AdamW([parameter((3, 42), BF16)], precision="4bit").load_state_dict(optimizer.state_dict())


@pytest.mark.parametrize("shape", [(40, 9), (2, 3, 6)])
def test_layouts(shape: tuple[int, ...]) -> None:
    """Transposed, strided and in slabs: the bits of contiguous tensors."""
    results = []
    for dense in (True, False):
        whole = random((shape[-1], *shape[1:-1], 2 * shape[0]), BF16, 1)
        view = whole[..., ::2].transpose(0, -1)
        p = Parameter(view.contiguous() if dense else view)
        optimizer = AdamW([p], 1e-2, precision="4bit")
        for t in range(3):
            p.grad = random(p.shape, BF16, t, 0.1)
            optimizer.step()
        results.append({"param": p.detach().clone(), **optimizer.state[p]})
    for name, t in results[0].items():
        assert_same_bits(results[1][name].contiguous(), t.contiguous(), name)


def test_slabs_end_with_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are copied in parts, and parts where the upper word of the index changes."""
    from mcf.kernels import layouts

    results = []
    for size in (layouts.SLAB, 7):
        monkeypatch.setattr(layouts, "SLAB", size)
        p = Parameter(random((3, 44), BF16, 1)[:, ::2])
        set_index_offset(p, 2**32 - 32)
        optimizer = AdamW([p], 1e-2, precision="4bit")
        steps(optimizer, 2)
        results.append(stored(optimizer))
    assert_same(*results)
    q = Parameter(random((3, 44), BF16, 1)[:, ::2].contiguous())
    set_index_offset(q, 2**32 - 32)
    optimizer = AdamW([q], 1e-2, precision="4bit")
    steps(optimizer, 2)
    assert_same(results[0], stored(optimizer))


def test_steps_that_a_device_counts() -> None:
    """As in CUDA graphs; and with gradients that are released one after the other."""
    results = []
    for how in ("plain", "capturable", "released"):
        params = [parameter(SHAPE, BF16), parameter((4, 6), BF16, 1)]
        optimizer = AdamW(params, 1e-2, precision="4bit", capturable=how == "capturable")
        if how == "released":
            GradientRelease(optimizer)
        for t in range(3):
            for k, p in enumerate(params):
                (p * random(p.shape, BF16, 10 * t + k, 0.1)).sum().backward()
            if how != "released":
                optimizer.step()
                optimizer.zero_grad()
        results.append(stored(optimizer))
    assert_same(results[1], results[0])
    assert_same(results[2], results[0])


def test_adamax_and_metrics() -> None:
    p = parameter(SHAPE, BF16)
    optimizer = Adamax([p], 1e-2, precision="4bit", track_metrics=True)
    n = torch.zeros(SHAPE)
    for t in range(4):
        p.grad = random(SHAPE, BF16, t, 0.1)
        optimizer.step()
        n = torch.maximum(0.999 * n, p.grad.float().abs())
        found = codes.read("exp_avg", optimizer.state[p])
        # |m| <= n, and less than half of n is the distance of numbers below n.
        assert (found.abs() <= 1.5 * n).all()
    assert 0 <= optimizer.metrics()["lost_param"] < 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AdamW([parameter(SHAPE, FP16)], precision="4bit"), "allowed is torch.bfloat16"),
        (lambda: AdamW([parameter(SHAPE, BF16)], precision="4bit", compute_dtype=BF16), "compute"),
        (lambda: Precision(exp_avg_sq="ratio4"), "exp_avg_sq='ratio4'"),
        (lambda: Precision(param="ratio4"), "Unknown param: 'ratio4'"),
    ],
)
def test_refusals(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_an_odd_first_element_is_refused() -> None:
    p = parameter(SHAPE, BF16)
    set_index_offset(p, 3)
    with pytest.raises(ValueError, match=re.escape("begins at the odd index 3")):
        AdamW([p], precision="4bit")
    AdamW([p], precision="8bit")


def test_which_cuts_leave_bytes_whole() -> None:
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
