"""`master_weight`: the number that is really stored for a parameter."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from mcf.optim import AdamW
from tests.helpers import assert_same_bits, numbers
from tests.optim.helpers import BF16, FP32, FP64, Case, cases, parameter, steps, value

pytestmark = pytest.mark.usefixtures("on_torch")

# The parameter alone.
SINGLE = ("plain", "fp32_states", "stochastic", "bf16_sr", "8bit", "4bit", "eco", "eco_stochastic")


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("case", cases(), ids=str)
def test_sum_of_the_components(case: Case) -> None:
    p = parameter((5, 7), case.dtype)
    optimizer = AdamW([p], 1e-2, eps=1e-4, **case.options())
    steps(optimizer, 3)
    components = optimizer.master_weight(p, exact=True)
    state = optimizer.state[p]
    if case.precision == "master":
        assert [c is state["master_param"] for c in components] == [True]
    elif case.precision in SINGLE:
        assert len(components) == 1
        assert_same_bits(components[0], p.detach())
    elif "param_bits" in state:
        # Joined to one float32; test_register_rounding.py has its value.
        assert [c.dtype for c in components] == [FP32]
    else:
        assert_same_bits(components[0], p.detach())
        assert components[1] is state["param_lo"]
    rounded = optimizer.master_weight(p)
    assert isinstance(rounded, torch.Tensor)
    assert rounded.dtype == FP32
    assert rounded.shape == p.shape
    assert not rounded.requires_grad
    exact = [sum(xs, Fraction(0)) for xs in zip(*(numbers(c) for c in components), strict=True)]
    expected = torch.tensor([float(x) for x in exact], dtype=FP64).to(FP32).view(p.shape)
    assert_same_bits(rounded, expected)


@pytest.mark.parametrize("precision", AdamW.precisions)
def test_before_the_first_step(precision: str) -> None:
    p = parameter(4, BF16)
    optimizer = AdamW([p], precision=precision)
    stored = optimizer.master_weight(p)
    assert isinstance(stored, torch.Tensor)
    assert_same_bits(stored, p.detach().float())
    assert_same_bits(optimizer.master_weight(p, exact=True)[0], p.detach())


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.parametrize("dtype", [FP32, FP64])
def test_full_precision_is_itself(dtype: torch.dtype) -> None:
    p = parameter(4, dtype)
    optimizer = AdamW([p])
    steps(optimizer, 2)
    stored = optimizer.master_weight(p)
    assert isinstance(stored, torch.Tensor)
    assert_same_bits(stored, p.detach())


def test_it_is_a_copy() -> None:
    for precision in ("plus", "master", "plain"):
        p = parameter(4, BF16)
        optimizer = AdamW([p], precision=precision)
        steps(optimizer, 1)
        before = value(optimizer, p)
        stored = optimizer.master_weight(p)
        assert isinstance(stored, torch.Tensor)
        stored.zero_()
        assert_same_bits(value(optimizer, p), before)


def test_tensor_that_is_not_a_parameter() -> None:
    p = parameter((2, 3), BF16)
    optimizer = AdamW([p])
    for wrong in (p.detach(), p.clone(), parameter((2, 3), BF16)):
        with pytest.raises(ValueError, match=r"p of shape \[2, 3\] is not one of this optimizer"):
            optimizer.master_weight(wrong)
