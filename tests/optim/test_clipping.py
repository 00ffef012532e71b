"""Clipping inside the step, and what gradients that are not finite do under each option."""

from __future__ import annotations

import copy
import math
import pickle
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch.nn import Parameter

import mcf
import mcf.optim
from mcf.optim import SGD, AdamW
from mcf.optim.step.gradient_scaling import NonFiniteGradientError
from tests.helpers import assert_same_bits
from tests.helpers.executors import on_each_executor
from tests.optim.helpers import (
    BF16,
    FP16,
    FP32,
    FP64,
    Case,
    assert_same,
    cases,
    parameter,
    parameters,
    random,
    steps,
    stored,
)
from tests.optim.test_amp import scaler, without_gradients
from tests.optim.test_norm import exact_square

pytestmark = pytest.mark.usefixtures("on_torch")


def given(make: Any, dtype: torch.dtype, scale: float = 1.0, **options: Any) -> Any:
    """An optimizer of two tensors with gradients."""
    params = [parameter((30, 7), dtype, 1), parameter(11, dtype, 2)]
    optimizer = make(params, 0.25, **options)
    for k, p in enumerate(params):
        p.grad = (random(p.shape, FP64, 10 + k) * scale).to(dtype)
    return optimizer


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.parametrize("make", [AdamW, SGD])
def test_as_torch_in_float64(make: Any) -> None:
    # torch sums in another order: a few units in the last place of the norm.
    for limit in (1e-3, 1.0, 1e3):
        mine, theirs = given(make, FP64, max_grad_norm=limit), given(make, FP64)
        mine.step()
        norm = torch.nn.utils.clip_grad_norm_(parameters(theirs), limit)
        theirs.step()
        assert math.isclose(mine.grad_norm.item(), norm.item(), rel_tol=1e-14)
        for p, q in zip(parameters(mine), parameters(theirs), strict=True):
            torch.testing.assert_close(p, q, rtol=0, atol=1e-14)


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@on_each_executor
@pytest.mark.parametrize("make", [AdamW, SGD])
def test_float32_is_a_step_on_clipped_gradients(make: Any, executor: str) -> None:
    # Bit for bit: the coefficient from the exact norm, rounded once, times each gradient.
    limit = 0.75
    optimizer, reference = given(make, FP32, max_grad_norm=limit), given(make, FP32)
    square = exact_square([p.grad for p in parameters(reference)])
    scaled = math.isqrt(square.numerator * 2**160 // square.denominator)
    coefficient = float(Fraction(limit) / (Fraction(scaled, 2**80) + Fraction(1e-6)))
    for p in parameters(reference):
        p.grad *= torch.tensor(coefficient)
    with mcf.executor(executor):
        optimizer.step()
        reference.step()
    assert_same(without_gradients(stored(optimizer)), without_gradients(stored(reference)))


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32, FP64], ids=str)
def test_gradients_below_the_limit_change_nothing(dtype: torch.dtype) -> None:
    mine, theirs = given(AdamW, dtype, max_grad_norm=1e3), given(AdamW, dtype)
    before = [p.grad.clone() for p in parameters(mine)]
    for each in (mine, theirs):
        each.step()
    assert_same(stored(mine), stored(theirs))
    for p, g in zip(parameters(mine), before, strict=True):
        assert_same_bits(p.grad, g, "gradients are not written")
    assert theirs.grad_norm is None


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("case", cases(), ids=str)
def test_the_norm_of_scaled_gradients_is_unscaled(case: Case) -> None:
    # fp16 above its subnormal numbers, so that scaling by 4 is exact.
    results = []
    for scale in (1.0, 4.0):
        optimizer = given(AdamW, case.dtype, scale, max_grad_norm=0.5, eps=1e-4,
                          **case.options())  # fmt: skip
        for p in parameters(optimizer):
            p.grad = torch.where(p.grad.abs() < 2.0**-8, 0.0, p.grad).to(case.dtype)
        scaler(scale).step(optimizer)
        results.append((optimizer.grad_norm, without_gradients(stored(optimizer))))
    norms = [norm for norm, _ in results]
    assert norms[0] == norms[1]
    assert_same(results[0][1], results[1][1])


def test_it_may_change_and_is_copied() -> None:
    optimizer = given(AdamW, BF16, max_grad_norm=0.5, nonfinite="skip")
    for other in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert (other.max_grad_norm, other.nonfinite) == (0.5, "skip")
    optimizer.max_grad_norm = None
    free = given(AdamW, BF16)
    for each in (optimizer, free):
        each.step()
    assert_same(stored(optimizer), stored(free))
    optimizer.max_grad_norm = -1.0
    before = stored(optimizer)
    with pytest.raises(ValueError, match=r"max_grad_norm: -1\.0; allowed"):
        optimizer.step()
    assert_same(stored(optimizer), before)


BAD_OPTIONS = [
    ("max_grad_norm", 0.0, ValueError, r"0\.0; allowed is a number in \(0, inf\)"),
    ("max_grad_norm", math.nan, ValueError, "nan; allowed"),
    ("max_grad_norm", math.inf, ValueError, "inf; allowed"),
    ("max_grad_norm", "1", TypeError, "must be a number or None, got str"),
    ("max_grad_norm", True, TypeError, "got bool"),
    ("nonfinite", "ignore", ValueError, "one of 'torch', 'skip', 'raise', got 'ignore'"),
    ("nonfinite", None, ValueError, "must be one of"),
]


@pytest.mark.parametrize(("name", "value", "error", "words"), BAD_OPTIONS)
def test_refused(name: str, value: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=f"{name}.*{words}"):
        AdamW([parameter(3, BF16)], **{name: value})


NOT_FINITE = [torch.inf, -torch.inf, torch.nan]


@pytest.mark.sampled
@pytest.mark.parametrize("bad", NOT_FINITE)
@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("policy", ["skip", "raise"])
def test_nothing_changes(policy: str, clip: float | None, bad: float) -> None:
    for count in (0, 2):
        optimizer = given(AdamW, BF16, max_grad_norm=clip, nonfinite=policy)
        if count:
            steps(optimizer, count)
        last = list(parameters(optimizer))[1]
        last.grad[4] = bad
        before = stored(optimizer)
        if policy == "skip":
            optimizer.step()
        else:
            with pytest.raises(
                NonFiniteGradientError, match=r"params\[1\] of param_groups\[0\]\.grad holds an inf"
            ):
                optimizer.step()
        assert_same(stored(optimizer), before)
        last.grad[4] = 0.5
        optimizer.step()
        assert optimizer.state[last]["step"].item() == count + 1


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.parametrize("bad", NOT_FINITE)
@pytest.mark.parametrize("clip", [None, 0.5])
def test_as_torch(clip: float | None, bad: float) -> None:
    # By default as torch: with clipping, an infinity makes all other gradients 0 and a NaN makes
    # all of them NaN, since the coefficient is 0 or NaN.
    results = []
    for mine in (True, False):
        options = {"max_grad_norm": clip} if mine else {}
        optimizer = given(SGD, FP32, **options)
        last = list(parameters(optimizer))[1]
        last.grad[4] = bad
        if clip is not None and not mine:
            torch.nn.utils.clip_grad_norm_(parameters(optimizer), clip)
        optimizer.step()
        results.append(without_gradients(stored(optimizer)))
    assert_same(*results)


def test_a_scaler_comes_first() -> None:
    # Where a GradScaler found an infinity the step is skipped, as it must be to find a scale.
    optimizer = given(AdamW, BF16, nonfinite="raise", fused=True)
    next(parameters(optimizer)).grad[0, 0] = torch.inf
    before = stored(optimizer)
    scaler().step(optimizer)
    assert_same(stored(optimizer), before)


def test_several_groups_have_one_norm() -> None:
    def make(groups: bool) -> AdamW:
        p, q = Parameter(torch.ones(3)), Parameter(torch.ones(4, dtype=BF16))
        p.grad, q.grad = torch.full_like(p, 3.0), torch.full_like(q, 2.0)
        split = [{"params": [p]}, {"params": [q], "lr": 1e-3}]
        return AdamW(split if groups else [p, q], 1e-3, max_grad_norm=1.0)  # type: ignore[arg-type]

    one, two = make(False), make(True)
    for each in (one, two):
        each.step()
    assert_same(stored(two), stored(one))
    assert one.grad_norm.item() == math.sqrt(27 + 16)
