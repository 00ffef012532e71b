"""Functions written in others: exact cases, and logit where its digits cancel.

`tests/mcf/test_derivative_sweep.py` has values and derivatives of all. Caught mutants: logit by
1 - x alone; quantile weights rounded to a double.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor

import mcf
from tests.helpers.draws import bell

# Values; the executors have the same bits by other tests.
pytestmark = pytest.mark.usefixtures("on_torch")

F = torch.nn.functional
UNITS = 64
TERMS = 3


def test_logit_keeps_its_digits_near_a_half() -> None:
    tiny = Fraction(1, 2**40)
    x = mcf.tensor(Fraction(1, 2) + tiny, TERMS, torch.float64)
    with mpmath.workprec(400):
        t = mpmath.mpf(2) ** -40
        want = mpmath.log((0.5 + t) / (0.5 - t))
        assert abs(x.logit().to_mpmath() - want) <= UNITS * mpmath.mpf(2) ** -159 * want


def thirds(count: int, *shape: int) -> Any:
    numbers = [Fraction(k * k - 7 * k, 2**30) + Fraction(k) for k in range(count)]
    return mcf.tensor(numbers, 3, torch.float64).reshape(shape)


@pytest.mark.parametrize("way", ["linear", "lower", "higher", "midpoint", "nearest"])
def test_quantiles_are_exact_where_they_fit(way: str) -> None:
    x = thirds(9, 9).flip(0)
    values = sorted(x.to_fractions())
    for q in (0.0, 0.1875, 0.5, 1.0):
        place = Fraction(q) * 8
        low = int(place)
        high = min(low + 1, 8) if place != low else low
        want = {
            "linear": values[low] + (place - low) * (values[high] - values[low]),
            "lower": values[low],
            "higher": values[high],
            "midpoint": (values[low] + values[high]) / 2,
            "nearest": values[round(place)],
        }[way]
        assert torch.quantile(x, q, interpolation=way).to_fractions() == want


def test_quantiles_pass_over_nan_only_when_told() -> None:
    x = mcf.tensor([["1", "nan", "3"], ["4", "5", "6"], ["nan", "nan", "nan"]], 2)
    assert x.quantile(0.5, 1).isnan().tolist() == [True, False, True]
    assert x.nanquantile(0.5, 1).tolist()[:2] == [2, 5]
    assert x.nanquantile(mcf.tensor("0.5"), 1).isnan().tolist() == [False, False, True]
    assert x.nanmedian(1).values.tolist()[:2] == [1, 5]
    assert (x.nansum(1)[:2].tolist(), x.nanmean(1)[:2].tolist()) == ([4, 15], [2, 5])
    with pytest.raises(RuntimeError, match=r"q must be in \[0, 1\], got 1.5"):
        x.quantile(1.5)


def exact_convolution(x: list[Any], w: list[Any], stride: int) -> list[list[Fraction]]:
    """Channels of x [c][n] with w [o][c][k]."""
    size = len(w[0][0])
    places = range(0, len(x[0]) - size + 1, stride)
    return [
        [
            sum(x[c][p + j] * row[c][j] for c in range(len(x)) for j in range(size))
            for p in places
        ]
        for row in w
    ]  # fmt: skip


def test_convolution_is_exact_where_it_fits_and_its_transpose_is_the_adjoint() -> None:
    x, w = thirds(14, 2, 7), thirds(18, 3, 2, 3)
    got = F.conv1d(x, w, stride=2)
    assert got.to_fractions() == exact_convolution(x.to_fractions(), w.to_fractions(), 2)
    y = thirds(9, 3, 3)
    back = F.conv_transpose1d(y, w, stride=2)
    assert (got * y).sum().to_fractions() == (x * back).sum().to_fractions()


def test_a_module_of_expansions_convolves() -> None:
    layer = torch.nn.Conv2d(2, 3, 3, padding=1)
    layer.weight = torch.nn.Parameter(thirds(54, 3, 2, 3, 3))
    x = bell((2, 2, 5, 4), 0, torch.float32)
    y = layer(x)
    assert isinstance(y, mcf.MCFTensor)
    y.sum().backward()
    assert isinstance(layer.weight.grad, mcf.MCFTensor)
    plain = torch.nn.functional.conv2d(
        x.double(), layer.weight.detach().to_plain(), layer.bias.detach().double(), padding=1
    )
    # float64 has 2^-53; sums of 18 products of numbers up to 60.
    assert (y.detach() - plain).abs().max().item() < 1e-11


def test_cross_unique_and_search_are_by_value() -> None:
    a, b = thirds(6, 2, 3), thirds(6, 2, 3).flip(0)
    for u, v, w in zip(a, b, torch.linalg.cross(a, b), strict=True):
        p, q = u.to_fractions(), v.to_fractions()
        want = [p[k - 2] * q[k - 1] - p[k - 1] * q[k - 2] for k in range(3)]
        assert w.to_fractions() == want
    low = Fraction(1, 2**40)
    x = mcf.tensor([1 + low, 1, 1 + low, 2, 1 - low], 2)
    values, inverse, counts = x.unique(return_inverse=True, return_counts=True)
    assert values.to_fractions() == [1 - low, 1, 1 + low, 2]
    assert (inverse.tolist(), counts.tolist()) == ([2, 1, 2, 3, 0], [1, 1, 2, 1])
    assert torch.searchsorted(values, x).tolist() == [2, 1, 2, 3, 0]
    assert torch.bucketize(x, values, right=True).tolist() == [3, 2, 3, 4, 1]
    assert torch.isin(x, mcf.tensor([1 + low, 7], 2)).tolist() == [True, False, True, False, False]
    assert (x.trace() if x.ndim == 2 else torch.diag(x).trace()).to_fractions() == 6 + low


GRADIENT_ZEROS: dict[str, Callable[[Tensor], Tensor]] = {
    "sign": torch.sign,
    "sgn": torch.sgn,
    "copysign": lambda x: torch.copysign(x * 0 + 1, x) + 0 * x,
}


@pytest.mark.parametrize("name", GRADIENT_ZEROS)
def test_gradients_that_are_zero_are_expansions_and_add_up(name: str) -> None:
    x = mcf.tensor(["-1.5", "0.25"], requires_grad=True)
    GRADIENT_ZEROS[name](x).sum().backward()
    (x * x).sum().backward()
    assert isinstance(x.grad, mcf.MCFTensor)
    assert torch.equal(x.grad, 2 * x.detach())
