"""float32 parameters take a precision's moments where those take fewer bytes than float32.

A float32 weight is what `split16` stores in a bf16 weight and 16 bits, and registers are float32 in
both. So the two have the same bits after every step, if gradients are the same numbers: weight and
moments are compared bit for bit, for every rule. Mutants that fail: random bits of another stream,
moments rounded to nearest, a weight rounded in between.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import Parameter

import mcf
from mcf.optim import SGD, AdamW, Lion, convert, param_groups
from tests.helpers import assert_same_bits
from tests.optim.helpers import BF16, FP32, assert_same, random, steps, stored
from tests.optim.variants import RECENT, VARIANTS, Variant

SHAPE = (6, 10)
# A precision for float32 parameters, and the one for bf16 parameters with the same moments.
SAME = {
    "bf16_sr": "split16_sr",
    "split16_sr": "split16_sr",
    "split8_sr": "split16_sr",
    "8bit": "split16_8bit",
    "split8_8bit": "split16_8bit",
    "4bit": "split16_ratio4_ue6m2",
}
BYTES = {"bf16_sr": 12, "split16_sr": 12, "8bit": 10, "split8_8bit": 10, "4bit": 9.5, "plus": 16}


def started(make: Any, precision: str, dtype: torch.dtype, **options: Any) -> Any:
    """Return an optimizer whose stored weights are bf16 numbers."""
    params = [Parameter(random(s, BF16, k).to(dtype)) for k, s in enumerate((SHAPE, (7,), ()))]
    return make(params, precision=precision, **options)


def run(optimizer: Any, first: int, count: int) -> None:
    """Make steps with gradients that are bf16 numbers in every dtype."""
    params = optimizer.param_groups[0]["params"]
    for t in range(first, first + count):
        for k, p in enumerate(params):
            p.grad = random(p.shape, BF16, 100 * t + k, 0.1).to(p.dtype)
        optimizer.step()


def assert_same_training(wide: Any, split: Any) -> None:
    """Compare float32 parameters with bf16 parameters and their 16 bits, and all moments."""
    for p, q in zip(*(o.param_groups[0]["params"] for o in (wide, split)), strict=True):
        assert p.dtype == FP32
        assert q.dtype == BF16
        assert_same_bits(split.master_weight(q), p.detach())
        theirs = {n: t for n, t in split.state[q].items() if n != "param_bits"}
        assert wide.state[p].keys() == theirs.keys()
        for name, t in theirs.items():
            assert_same_bits(wide.state[p][name], t, name)


@pytest.mark.parametrize("precision", SAME)
def test_adamw_on_float32_has_the_bits_of_split16(precision: str) -> None:
    with mcf.executor("torch"):
        wide, split = (
            started(AdamW, p, d, lr=1e-2, weight_decay=0.1, seed=5)
            for p, d in ((precision, FP32), (SAME[precision], BF16))
        )
        for optimizer in (wide, split):
            run(optimizer, 0, 4)
        assert_same_training(wide, split)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("executor", ["torch", "numba", "triton"])
@pytest.mark.parametrize("variant", [*VARIANTS, *RECENT], ids=str)
def test_every_rule_on_float32_has_the_bits_of_split16(variant: Variant, executor: str) -> None:
    with mcf.executor(executor):
        wide, split = (
            started(variant.make, "split16_sr", d, **variant.options) for d in (FP32, BF16)
        )
        for optimizer in (wide, split):
            run(optimizer, 0, 3)
        assert_same_training(wide, split)


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.parametrize("precision", BYTES)
def test_float32_parameters_take_the_bytes_of_the_table(precision: str) -> None:
    with mcf.executor("torch"):
        p = Parameter(random(SHAPE, FP32, 1))
        optimizer = AdamW([p], precision=precision)
        steps(optimizer, 1)
    tensors = [p, p.grad, *(t for t in optimizer.state[p].values() if t.dim())]
    assert sum(t.nbytes for t in tensors if t is not None) == BYTES[precision] * p.numel()


@pytest.mark.parametrize("make", [Lion, lambda *a, **o: SGD(*a, momentum=0.9, **o)])
def test_rules_with_one_moment_keep_it_in_8_bits(make: Any) -> None:
    with mcf.executor("torch"):
        optimizer = started(make, "8bit", FP32, lr=1e-2)
        run(optimizer, 0, 2)
    matrix, vector, _ = optimizer.param_groups[0]["params"]
    dtypes = [{t.dtype for t in optimizer.state[p].values() if t.dim()} for p in (matrix, vector)]
    assert dtypes == [{torch.uint8}, {BF16}]


def test_a_group_leaves_its_parameters_as_they_are() -> None:
    net = torch.nn.Sequential(
        torch.nn.Embedding(5, 4), torch.nn.Linear(4, 4), torch.nn.LayerNorm(4)
    )
    groups = param_groups(net, (torch.nn.LayerNorm, {"precision": "plain"}))
    with mcf.executor("torch"):
        optimizer = AdamW(groups, precision="8bit")
        for p in net.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
    dtype = {n: optimizer.state[p]["exp_avg"].dtype for n, p in net.named_parameters()}
    assert dtype["0.weight"] == dtype["1.weight"] == torch.uint8
    assert dtype["1.bias"] == BF16
    assert dtype["2.weight"] == dtype["2.bias"] == FP32


def test_conversion_between_float32_and_split16_is_exact_and_goes_on_with_the_same_bits() -> None:
    with mcf.executor("torch"):
        wide = started(AdamW, "split16_sr", FP32, lr=1e-2)
        run(wide, 0, 3)
        params = wide.param_groups[0]["params"]
        narrow = [Parameter(p.detach().to(BF16)) for p in params]
        split, report = convert(wide, "split16_sr", params=narrow)
        assert report.exact, str(report)
        assert_same_training(wide, split)
        back, report = convert(
            split, "split16_sr", params=[Parameter(torch.zeros_like(p)) for p in params]
        )
        assert report.exact, str(report)
        for optimizer in (wide, split, back):
            run(optimizer, 3, 2)
        assert_same_training(wide, split)
        assert_same(stored(back), stored(wide))
