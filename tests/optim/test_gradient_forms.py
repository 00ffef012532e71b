"""Gradients that are not one tensor in the parameter's dtype: in float32, and clipped by value.

Two components: test_accumulator.py. Mutants that these tests catch: clipping before unscaling
(`test_clipping_is_of_unscaled_gradients`), a limit of one sign only, NaN clipped to the limit
(`test_value_as_torch`), a float32 gradient rounded to bfloat16 on the way (`test_float32_...`).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import Parameter

import mcf
import mcf.optim
from mcf.optim import SGD, AdamW
from mcf.optim.optimizer import LowPrecisionOptimizer
from tests.helpers import assert_same_bits
from tests.helpers.executors import on_each_executor
from tests.optim.helpers import (
    BF16,
    FP16,
    FP32,
    FP64,
    FULL,
    Case,
    assert_same,
    cases,
    parameter,
    parameters,
    random,
    stored,
)
from tests.optim.test_amp import scaler, without_gradients
from tests.optim.test_step_validation import Given

pytestmark = pytest.mark.usefixtures("on_torch")

OPTIMIZERS = [
    c
    for c in vars(mcf.optim).values()
    if isinstance(c, type) and issubclass(c, LowPrecisionOptimizer)
]
# A matrix, which every optimizer takes.
N = (20, 10)


def give(p: torch.Tensor, g: torch.Tensor) -> None:
    """A gradient of any dtype; before torch 2.10 a plain parameter takes only its own."""
    if hasattr(p, "grad_dtype"):
        p.grad_dtype = g.dtype
    elif g.dtype != p.dtype:
        p.__class__ = Given
    p.grad = g


def run(make: Any, p: Parameter, gradients: list[torch.Tensor], **options: Any) -> Any:
    """States after one step for each gradient."""
    optimizer = make([p], 1e-2, **options)
    for g in gradients:
        give(p, g)
        optimizer.step()
        assert p.grad is g
    return without_gradients(stored(optimizer))


def gradients(dtype: torch.dtype, seed: int = 1) -> list[torch.Tensor]:
    return [random(N, dtype, seed + t) for t in range(3)]


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.sampled
@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [FP32, FP64], ids=str)
def test_value_as_torch(make: Any, dtype: torch.dtype) -> None:
    limit = 0.3
    special = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, 0.3, -0.3], dtype=dtype)
    given = gradients(dtype)
    given[1].view(-1)[:6] = special
    p = parameter(N, dtype)
    mine = run(make, Parameter(p.detach().clone()), given, max_grad_value=limit)
    clipped = []
    for g in given:
        q = Parameter(torch.zeros_like(g))
        q.grad = g.clone()
        torch.nn.utils.clip_grad_value_([q], limit)
        clipped.append(q.grad)
    assert_same(mine, run(make, p, clipped))


@pytest.mark.sampled(every=3)
@on_each_executor
@pytest.mark.parametrize("case", cases(("plus",), (BF16,)), ids=str)
def test_value_on_each_executor(case: Case, executor: str) -> None:
    # With float32 registers the limit is a float32, as if the gradient had been one; in strict
    # arithmetic it is rounded as the gradients are, and then as torch's clip_grad_value_ has it.
    limit = 0.3
    given = gradients(case.dtype)
    kind = case.dtype if case.strict else FP32
    clipped = [g.to(kind).clamp(-limit, limit) for g in given]
    options = {"eps": 1e-4, **case.options()}
    with mcf.executor(executor):
        mine = run(AdamW, parameter(N, case.dtype), given, max_grad_value=limit, **options)
        assert_same(mine, run(AdamW, parameter(N, case.dtype), clipped, **options))


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
def test_clipping_is_of_unscaled_gradients() -> None:
    given = gradients(FP32)
    expected = run(AdamW, parameter(N, FP32), given, max_grad_value=0.3)
    p = parameter(N, FP32)
    optimizer = AdamW([p], 1e-2, max_grad_value=0.3)
    amp = scaler(8.0)
    for g in given:
        p.grad = g * 8
        amp.step(optimizer)
        amp.update()
    assert_same(without_gradients(stored(optimizer)), expected)


def test_both_kinds_of_clipping_are_refused() -> None:
    with pytest.raises(ValueError, match="both given; allowed is one of them"):
        AdamW([parameter(3, BF16)], max_grad_norm=1.0, max_grad_value=1.0)


@pytest.mark.sampled
@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
def test_the_dtype_alone_changes_nothing(make: Any, dtype: torch.dtype) -> None:
    given = gradients(dtype)
    narrow = run(make, parameter(N, dtype), given)
    assert_same(run(make, parameter(N, dtype), [g.float() for g in given]), narrow)


@pytest.mark.sampled(every=3)
@on_each_executor
@pytest.mark.parametrize("case", cases(("plus",)), ids=str)
def test_on_each_executor(case: Case, executor: str) -> None:
    # Steps on float32 gradients with NaNs of any payload: the bits of the reference.
    given = gradients(FP32)
    given[1].view(-1)[:4] = (
        torch.tensor([0x7FFFFFFF, -1, 0x7F800001, 0x7F800000]).to(torch.int32).view(FP32)
    )
    options = {"eps": 1e-4, **case.options()}
    expected = run(AdamW, parameter(N, case.dtype), given, **options)
    with mcf.executor(executor):
        assert_same(run(AdamW, parameter(N, case.dtype), given, **options), expected)


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.parametrize("make", [AdamW, SGD])
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
def test_float32_gradients_are_not_rounded(make: Any, dtype: torch.dtype) -> None:
    # The master weight of a 16-bit parameter is a float32 parameter of the same value.
    given = gradients(FP32)
    start = parameter(N, dtype)
    wide = run(make, Parameter(start.detach().float()), given)
    mine = run(make, start, given, precision="master")
    assert_same_bits(mine["0.master_param"], wide["0.param"])
    rounded = run(make, parameter(N, dtype), [g.to(dtype) for g in given], precision="master")
    assert (rounded["0.master_param"] != wide["0.param"]).any()


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.parametrize("case", FULL, ids=str)
def test_wider_parameters_take_their_own_dtype(case: Case) -> None:
    p = parameter(3, case.dtype)
    optimizer = AdamW([p])
    p.__class__ = Given
    p.grad = torch.ones(3, dtype=BF16)
    with pytest.raises(TypeError, match=r"allowed is its parameter's, torch\.float\d\d$"):
        optimizer.step()


@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="torch >= 2.10: p.grad_dtype")
def test_autograd_accumulates_in_float32() -> None:
    # 256 micro-batches of gradient 1 and one of 2**-8: bfloat16 stops, float32 does not.
    found = {}
    for dtype in (BF16, FP32):
        layer = nn.Linear(1, 1, bias=False).to(BF16)
        p = layer.weight
        p.grad_dtype = dtype
        optimizer = SGD([p], 1.0, precision="master")
        start = p.item()
        for x in [256.0] + [0.5] * 64:
            layer(torch.full((1, 1), x, dtype=BF16)).sum().backward()
        optimizer.step()
        assert p.grad.dtype == dtype
        found[dtype] = start - optimizer.state[p]["master_param"].item()
    assert abs(found[FP32] - 288) < 1e-4
    assert abs(found[BF16] - 256) < 1e-4


def test_groups_of_mixed_gradients() -> None:
    def make(together: bool) -> list[Any]:
        params = [parameter(N, BF16, k) for k in range(3)]
        kinds = [BF16, FP32, BF16]
        lists = [params] if together else [[p] for p in params]
        optimizers = [AdamW(some, 1e-2) for some in lists]
        for p, kind, k in zip(params, kinds, range(3), strict=True):
            give(p, random(N, kind, 10 + k))
        for optimizer in optimizers:
            optimizer.step()
        return [p.detach() for o in optimizers for p in parameters(o)]

    for a, b in zip(make(True), make(False), strict=True):
        assert_same_bits(a, b)
