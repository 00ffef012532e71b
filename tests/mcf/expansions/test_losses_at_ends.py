"""Losses where their domain ends: probabilities of 0 and 1, and NaN among the predictions."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import pytest
import torch
import torch.nn.functional as F

import mcf

# Values; the executors have the same bits by other tests.
pytestmark = pytest.mark.usefixtures("on_torch")
FORMATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
NAN = float("nan")


def slope(function: Callable[[Any], Any], values: list[float], dtype: torch.dtype) -> Any:
    x: Any = mcf.tensor(values, dtype=dtype).requires_grad_()
    function(x).sum().backward()
    return x.grad


@pytest.mark.parametrize("dtype", FORMATS)
def test_binary_cross_entropy_at_ends_has_finite_slopes(dtype: torch.dtype) -> None:
    """t = 1: -1 / p; t = 0: 1 / (1 - p); where that is infinite torch's number, if it fits."""
    # The least number at which float16 puts a pole.
    limit = 2.0**15 if dtype is torch.float16 else 1e12
    for t, wanted in ((1.0, [-limit, -1.0, -4.0]), (0.0, [1.0, limit, 4 / 3])):
        found = slope(
            lambda p, t=t: F.binary_cross_entropy(p, p.detach() * 0 + t, reduction="none"),
            [0.0, 1.0, 0.25],
            dtype,
        )
        # 1e-12 is a float64, so its reciprocal is not the 1e12 of this test.
        unit = max(16 * Fraction(torch.finfo(dtype).eps) ** 2, Fraction(1, 2**53))
        for got, want in zip(found.to_fractions(), wanted, strict=True):
            # 1 - p, a quotient and its products; and half of float16's smallest number.
            assert abs(got - Fraction(want)) <= unit * abs(Fraction(want)) + Fraction(1, 2**24)


def test_binary_cross_entropy_of_tiny_probability_has_its_slope() -> None:
    """torch bounds p (1 - p) by 1e-12: -1e12 and 1e-188 in the place of these."""
    p: Any = mcf.tensor([2.0**-400], dtype=torch.float64).requires_grad_()
    for t, wanted in ((1.0, -(Fraction(2) ** 400)), (0.0, Fraction(1))):
        (found,) = torch.autograd.grad(F.binary_cross_entropy(p, torch.tensor([t]).double()), p)
        assert abs(found.to_fractions()[0] / wanted - 1) < Fraction(1, 2**100)


@pytest.mark.parametrize("dtype", FORMATS)
def test_binary_cross_entropy_of_saturated_sigmoid_has_slope_zero(dtype: torch.dtype) -> None:
    found = slope(
        lambda x: F.binary_cross_entropy(torch.sigmoid(x), torch.tensor([1.0, 0.0, 1.0, 0.0])),
        [800.0, -800.0, -800.0, 800.0],
        dtype,
    )
    assert found.to_plain().tolist() == [0.0] * 4


def test_binary_cross_entropy_differentiated_twice_is_finite_inside_and_at_zero_loss() -> None:
    p: Any = mcf.tensor([0.5, 1.0], dtype=torch.float64).requires_grad_()
    loss = F.binary_cross_entropy(p, torch.ones(2).double(), reduction="sum")
    (first,) = torch.autograd.grad(loss, p, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), p)
    assert second.tolist() == [4.0, 1.0]


@pytest.mark.parametrize("loss", [F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.mse_loss])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_distance_of_nan_has_slope_nan(loss: Any, reduction: str) -> None:
    found = slope(
        lambda x: loss(x, torch.zeros(4), reduction=reduction), [NAN, 4.0, -4.0, 0.0], torch.float32
    )
    assert found.isnan().tolist() == [True, False, False, False]
    assert found[1] == -found[2] > 0 == found[3]


def test_smooth_l1_loss_with_beta_zero_of_nan_has_slope_nan() -> None:
    found = slope(lambda x: F.smooth_l1_loss(x, torch.zeros(1), beta=0.0), [NAN], torch.float32)
    assert bool(found.isnan().all())


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 1), (2, 3), (2, 3, 2)])
def test_prelu_of_one_weight_has_the_inputs_shape(shape: tuple[int, ...]) -> None:
    for weight in ([0.25], 0.25):
        x: Any = mcf.tensor(torch.full(shape, -2.0)).requires_grad_()
        w: Any = mcf.tensor(weight).requires_grad_()
        y = F.prelu(x, w)
        assert y.shape == shape
        y.sum().backward()
        assert x.grad.shape == shape
        assert w.grad.shape == w.shape
        assert w.grad.sum() == -2.0 * x.numel()


def test_loss_of_right_logits_keeps_its_digits() -> None:
    """log(1 + e^-60), whose slope is e^-60, not what is left of 60 - 60 and 1 - 1."""
    for name in ("binary_cross_entropy_with_logits", "multilabel_soft_margin_loss"):
        x: Any = mcf.tensor([[60.0, -60.0]], dtype=torch.float64).requires_grad_()
        loss = getattr(F, name)(x, torch.tensor([[1.0, 0.0]]).double(), reduction="sum")
        loss = loss * (2 if name.startswith("multi") else 1)
        loss.backward()
        with mpmath.workprec(300):
            want = mpmath.log1p(mpmath.exp(-60))
            assert abs(loss.to_mpmath() / (2 * want) - 1) < mpmath.mpf(2) ** -98
            slope_of_one = mpmath.exp(-60) / (1 + mpmath.exp(-60))
            for found, sign in zip(x.grad[0].to_mpmath(), (-1, 1), strict=True):
                assert abs(sign * found / slope_of_one - 1) < mpmath.mpf(2) ** -98


@pytest.mark.parametrize("dtype", FORMATS)
def test_gaussian_nll_loss_with_squares_out_of_range_is_right(dtype: torch.dtype) -> None:
    """The loss of a gap d is (log(v) + d^2 / v) / 2: the quotient fits, the square does not."""
    k = {torch.float16: 12, torch.float64: 700}.get(dtype, 100)
    x, v = (mcf.tensor([2.0**k], dtype=dtype).requires_grad_() for _ in range(2))
    loss: Any = F.gaussian_nll_loss(x, torch.zeros(1, dtype=dtype), v, reduction="sum")
    loss.backward()
    with mpmath.workprec(300):
        want = (k * mpmath.log(2) + mpmath.mpf(2) ** k) / 2
        unit = mpmath.mpf(torch.finfo(dtype).eps) ** 2
        assert abs(loss.to_mpmath() - want) <= 4 * unit * want
    assert x.grad is not None
    assert x.grad.item() == 1.0
    assert v.grad is not None
    assert abs(v.grad.item() - (2.0**-k - 1) / 2) <= 4 * torch.finfo(dtype).eps ** 2
