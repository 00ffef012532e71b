"""NaN, infinities, zeros, overflow: damage stays in its element, and is what torch's would be."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

import mcf
from mcf.optim import AdamW
from mcf.optim.storage import values
from tests.helpers import assert_same_bits
from tests.optim.arithmetics import BF16, FP16, FP32, FP64, FULL, Case, cases
from tests.optim.helpers import assert_same, parameter, random, stored
from tests.optim.variants import NEW, VARIANTS, Variant, named, pairs, recent_pairs

pytestmark = pytest.mark.usefixtures("on_torch")


BAD = {0: torch.nan, 5: torch.inf, 9: -torch.inf}
N = 20


def run(make: Any, case: Case, gradients: list[Tensor], **options: Any) -> tuple[Any, Tensor]:
    p = parameter(N, case.dtype, 1)
    optimizer = make([p], 1e-2, **case.options(), **options)
    for g in gradients:
        p.grad = g
        optimizer.step()
    return optimizer, p


_RULES = pairs([*NEW, named("sgd-momentum")], "few")


@pytest.mark.sampled(every=18)
@pytest.mark.parametrize("track", [False, True])
@pytest.mark.parametrize(
    ("variant", "case"), [*((named("adamw"), c) for c in cases() + FULL), *_RULES], ids=str
)
def test_damage_stays_in_its_element(variant: Variant, case: Case, track: bool) -> None:
    clean = [random(N, case.dtype, t + 2, 0.1) for t in range(8)]
    spoiled = [g.clone() for g in clean]
    for k, bad in BAD.items():
        spoiled[1][k] = bad
    options = {k: v for k, v in variant.options.items() if k != "lr"} | {"track_metrics": track}
    if "eps" in options:
        options["eps"] = max(options["eps"], 1e-4)
    good, p = run(variant.make, case, clean, **options)
    broken, q = run(variant.make, case, spoiled, **options)
    others = [k for k in range(N) if k not in BAD]
    for name, tensor in stored(good).items():
        if tensor.ndim:
            assert_same_bits(stored(broken)[name][others], tensor[others], name)
    assert torch.isfinite(p).all()
    # As in torch, and never a silent finite number; infinities have a sign, and that is all that
    # Lion looks at, as in its reference.
    assert q[[0] if variant.rule == "lion" else list(BAD)].isnan().all()
    for name, tensor in broken.state[q].items():
        if tensor.shape == q.shape and tensor.is_floating_point() and name != "param_lo":
            assert not torch.isfinite(tensor[list(BAD)]).any(), name


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("case", cases() + FULL, ids=str)
def test_gradients_of_zero(case: Case) -> None:
    # Nothing moves, also where v is 0 and only eps divides.
    p = Parameter(torch.tensor([1.0, 0.0, -0.0, -3.0], dtype=case.dtype))
    optimizer = AdamW([p], 1e-2, eps=1e-4, weight_decay=0.0, **case.options())
    p.grad = torch.zeros_like(p)
    before = p.detach().clone()
    for _ in range(3):
        optimizer.step()
    assert torch.equal(p.detach(), before)
    assert (optimizer.state[p]["exp_avg_sq"] == 0).all()


@pytest.mark.parametrize("case", cases(dtypes=(BF16,)), ids=str)
def test_tiny_gradients(case: Case) -> None:
    # Squares of 1e-20 and 1e-24 are subnormal and 0: the update is at most lr m^ / eps and finite.
    p = Parameter(torch.ones(3, dtype=BF16))
    p.grad = torch.tensor([1e-20, 1e-24, 1e-38], dtype=BF16)
    optimizer = AdamW([p], 1e-2, weight_decay=0.0, **case.options())
    for _ in range(3):
        optimizer.step()
    assert torch.equal(p.detach(), torch.ones(3, dtype=BF16))
    for name, tensor in stored(optimizer).items():
        assert torch.isfinite(tensor).all(), name


@pytest.mark.parametrize("precision", AdamW.precisions)
def test_squares_that_overflow(precision: str) -> None:
    # |g| > 1.8e19, finite as it is: v is infinite, and stops its element for ever, as in torch.
    p = Parameter(torch.ones(3, dtype=BF16))
    optimizer = AdamW([p], 1e-2, weight_decay=0.0, precision=precision)
    for g in (1e20, 0.1, 0.1):
        p.grad = torch.tensor([g, 0.1, 0.1], dtype=BF16)
        optimizer.step()
    assert optimizer.state[p]["exp_avg_sq"][0].isinf()
    assert p[0] == 1
    assert (p[1:] < 1).all()


@pytest.mark.sampled(every=9)
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize(
    ("variant", "case"),
    pairs(VARIANTS, "few") + pairs([named("adamw")], "cases") + recent_pairs(0),
    ids=str,
)
def test_infinite_weights_become_nan(variant: Variant, case: Case, decay: float) -> None:
    """An infinite weight becomes NaN alone, also without decay, where torch leaves it."""
    options = {k: v for k, v in variant.options.items() if k != "lr"} | {"weight_decay": decay}
    found = []
    for value in (torch.inf, 1.0):
        p = parameter(N, case.dtype, 1)
        with torch.no_grad():
            p[3], p[11] = value, -value
        optimizer = variant.make([p], 1e-2, **case.options(), **options)
        for t in range(2):
            p.grad = random(N, case.dtype, t + 2, 0.1)
            optimizer.step()
        found.append(stored(optimizer))
    spoiled, clean = found
    assert spoiled["0.param"].isnan().nonzero().flatten().tolist() == [3, 11]
    others = [k for k in range(N) if k not in (3, 11)]
    for name, tensor in clean.items():
        if tensor.ndim:
            assert_same_bits(spoiled[name][others], tensor[others], name)


# -- nan -------------------------------------------------------------------------------------------


# GPUs make the first; the others have a payload in bits that bf16 does not keep, and a sign.
PATTERNS = (0x7FFFFFFF, 0x7F80FFFF, -1)


def scaled(precision: str, executor: str, pattern: int) -> dict[str, torch.Tensor]:
    """Return the tensors stored after a step whose gradients are scaled by a NaN."""
    p = parameter((4, 64), BF16, 1)
    optimizer = AdamW([p], 1e-2, precision=precision)
    p.grad = random((4, 64), BF16, 2)
    optimizer.grad_scale = torch.tensor(pattern, dtype=torch.int32).view(torch.float32)
    with mcf.executor(executor):
        optimizer.step()
    return stored(optimizer)


@pytest.mark.parametrize("pattern", PATTERNS, ids="{:#x}".format)
@pytest.mark.parametrize("precision", ["plain", "bf16_sr"])
def test_nan_of_a_scalar_stays_nan(precision: str, pattern: int) -> None:
    found = scaled(precision, "numba", pattern)
    assert found["0.param"].isnan().all()
    assert_same(found, scaled(precision, "torch", pattern))


# -- values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=str)
def test_values_round_once(dtype: torch.dtype) -> None:
    # Halfway between two numbers, and by 2**-60 off it: float32 alone would call all of them ties.
    base = random(300, dtype, 1).double()
    up = torch.nextafter(base.to(dtype), torch.full((300,), math.inf, dtype=dtype)).double()
    middle = (base + up) / 2
    for rest in (2.0**-60, -(2.0**-60), 0.0):
        e = torch.full_like(middle, rest)
        found = values.rounded((middle, e), dtype).double()
        expected = torch.where(e > 0, up, base)
        if rest == 0:
            expected = torch.where(found == base, base, up)
            last = found.to(dtype).view(torch.int16 if dtype.itemsize == 2 else torch.int32)
            assert (last & 1 == 0).all(), "ties to even"
        assert_same_bits(found, expected)


def test_values_of_special_numbers() -> None:
    x = torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0, 1e39, 1e-46, 5e-324], dtype=FP64)
    for dtype in (BF16, FP32):
        assert_same_bits(values.rounded(values.exact(x), dtype), x.to(dtype))
    high, low = torch.tensor([1.0]), torch.tensor([2.0**-80])
    s, e = values.exact(high, low)
    assert (s.item(), e.item()) == (1.0, 2.0**-80)
