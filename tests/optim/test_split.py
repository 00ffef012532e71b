"""`split16` is a float32 master weight with bf16 moments, bit for bit, in 10 bytes.

The reference stores the master copy apart and is otherwise the same rule. Weights
cross binades and change sign, and every tie occurs (gradients of few bits). `split8` is what that
reference is after rounding to 24 bits at every step, and so it fails the comparison.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn import Parameter

import mcf
from mcf.optim import AdamW, Precision
from tests.helpers import assert_same_bits, count_different
from tests.helpers.draws import power_of_two
from tests.helpers.executors import EXECUTORS
from tests.optim.helpers import BF16, FP16, parameter, random

REFERENCE = Precision(param="float32")


def pair(precision: str, n: int) -> list[AdamW]:
    start = random(n, BF16, 1) * power_of_two(torch.arange(n) % 24 - 20)
    made = []
    for name in (precision, REFERENCE):
        p = Parameter(start.to(BF16).clone())
        made.append(AdamW([p], 3e-3, (0.9, 0.99), weight_decay=0.1, precision=name))
    return made


def step(optimizers: list[AdamW], t: int) -> None:
    for optimizer in optimizers:
        (p,) = optimizer.param_groups[0]["params"]
        p.grad = random(p.shape, BF16, 100 + t, 0.1)
        optimizer.step()


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("executor", EXECUTORS)
def test_split16_is_a_float32_master_weight(executor: str) -> None:
    steps = 1000 if executor == "numba" else 20
    with mcf.executor(executor):
        split, master = optimizers = pair("split16", 700)
        for t in range(steps):
            step(optimizers, t)
    p, q = (o.param_groups[0]["params"][0] for o in optimizers)
    value = split.master_weight(p)
    assert isinstance(value, torch.Tensor)
    assert_same_bits(value, master.state[q]["master_param"])
    for name in ("exp_avg", "exp_avg_sq"):
        assert_same_bits(split.state[p][name], master.state[q][name])
    assert_same_bits(split.master_weight(p, exact=True)[0], value)
    # The visible weight is the nearest bf16 number; the other one only halfway between two.
    away = p.detach() != q.detach()
    assert (value.view(torch.int32)[away] & 0xFFFF == 0x8000).all()


def test_split8_is_not() -> None:
    split, master = optimizers = pair("split8", 700)
    for t in range(20):
        step(optimizers, t)
    p, q = (o.param_groups[0]["params"][0] for o in optimizers)
    value = split.master_weight(p)
    assert isinstance(value, torch.Tensor)
    truth = master.state[q]["master_param"]
    assert count_different(value, truth) > 100
    # One rounding to 16 bits of precision a step, of weights that moved by less than .1.
    assert ((value - truth).abs() <= 20 * 2**-16 * (truth.abs() + 0.1)).all()
    assert (value.view(torch.int32) & 0xFF == 0).all()


@pytest.mark.parametrize("precision", ["split16", "split8"])
def test_fp16_has_no_such_bits(precision: str) -> None:
    with pytest.raises(ValueError, match=rf"'{precision}' with params\[0\] .*float16: .*bfloat16"):
        AdamW([parameter(3, FP16)], precision=precision)


@pytest.mark.parametrize("precision", ["split16", "split8"])
def test_a_new_value_is_taken(precision: str) -> None:
    p = parameter(50, BF16)
    optimizer = AdamW([p], 1e-3, precision=precision)
    step([optimizer], 0)
    with torch.no_grad():
        p.fill_(100)
    value = optimizer.master_weight(p)
    assert isinstance(value, torch.Tensor)
    assert ((value - 100).abs() <= 0.25).all(), "within half a unit of bf16 at 100"
