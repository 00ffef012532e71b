"""In-place forms that autograd records have the derivatives of the functions.

Torch's own have constants of double precision: 2 / sqrt(pi), 1 / log(2), the exponent less 1. Some
torch does not differentiate at all (`asinh_`), and some have no operator (`exp2_`, `logit_`).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import mcf
from tests.helpers import assert_alike

pytestmark = pytest.mark.usefixtures("on_torch")

X = mcf.tensor(["0.31", "0.47", "0.22"], dtype=torch.float64)
OTHER = mcf.tensor(["0.7", "1.3", "0.6"], dtype=torch.float64)

CASES: dict[str, tuple[Any, ...]] = {
    "erf": (), "erfc": (), "erfinv": (), "log2": (), "log10": (), "deg2rad": (), "rad2deg": (),
    "sinc": (), "asinh": (), "exp2": (), "logit": (), "pow": (0.1,), "float_power": (0.1,),
    "lerp": (OTHER, 0.1),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_derivatives(name: str) -> None:
    function, in_place = getattr(Tensor, name), getattr(Tensor, f"{name}_")
    first, second = X.clone().requires_grad_(), X.clone().requires_grad_()
    wanted = function(first, *CASES[name])
    target = second.clone()
    found = in_place(target, *CASES[name])
    assert found is target
    assert_alike(found.detach(), wanted.detach(), name)
    (slope,) = torch.autograd.grad(wanted.sum(), first)
    assert_alike(torch.autograd.grad(found.sum(), second)[0], slope, name)


def test_functions_of_torch_and_what_is_not_recorded() -> None:
    x = X.clone().requires_grad_()
    (slope,) = torch.autograd.grad(torch.erf_(x.clone()).sum(), x)
    (wanted,) = torch.autograd.grad(torch.erf(x).sum(), x)
    assert_alike(slope, wanted, "torch.erf_")
    y = X.clone()
    assert y.erf_() is y
    assert_alike(y, torch.erf(X), "erf_")
    with pytest.raises(RuntimeError, match="leaf"):
        x.erf_()


@pytest.mark.parametrize("function", [F.silu, F.mish, F.hardswish], ids=lambda f: f.__name__)
def test_activations_in_place(function: Any) -> None:
    """What their derivatives keep is not what is written to."""
    first, second = X.clone().requires_grad_(), X.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(function(first * 1).sum(), first)
    (found,) = torch.autograd.grad(function(second * 1, inplace=True).sum(), second)
    assert_alike(found, wanted, function.__name__)
