"""Special values of the elementary functions: NumPy's (the C library's) are the reference.

Where NumPy gives an infinity, a NaN or a zero, ours is the same, with its sign and low components
of zero; where it gives a number, ours is one of the same sign.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mcf.elementary
from mcf.kernels import FP32, FP64
from mcf.kernels.formats import Format
from tests.helpers.adversarial import all_pairs, specials

# Of values; that executors have the same bits other tests say.
pytestmark = pytest.mark.usefixtures("on_torch")

NAMES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "asinh": "arcsinh",
         "acosh": "arccosh", "atanh": "arctanh"}  # fmt: skip
UNARY = ("exp", "expm1", "log", "log1p", "log2", "log10", "sin", "cos", "tan", "asin", "acos",
         "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh")  # fmt: skip
BINARY = {"atan2": np.arctan2, "pow": np.power, "hypot": np.hypot}


def _same_class(ours: tuple[Tensor, ...], theirs: np.ndarray[Any, Any], what: Tensor) -> None:
    reference = torch.from_numpy(np.asarray(theirs))
    head = ours[0]
    special = ~reference.isfinite() | (reference == 0)
    same = torch.where(
        special,
        (head == reference) | (head.isnan() & reference.isnan()),
        # Numbers may differ in the last bit, which makes 0 or infinity of those at the very ends.
        head.isfinite() | (reference.abs() > torch.finfo(head.dtype).max / 2),
    )
    same &= reference.isnan() | (torch.signbit(head) == torch.signbit(reference))
    assert bool(same.all()), (what[~same], head[~same], reference[~same])
    for low in ours[1:]:
        assert bool((low[~head.isfinite()] == 0).all())


def _padded(x: Tensor, terms: int) -> tuple[Tensor, ...]:
    return (x, *(torch.zeros_like(x) for _ in range(terms - 1)))


@pytest.mark.sampled
@pytest.mark.parametrize("terms", [1, 3])
@pytest.mark.parametrize("fmt", [FP32, FP64], ids=lambda f: f.name)
@pytest.mark.parametrize("name", UNARY)
def test_one_argument(name: str, fmt: Format, terms: int) -> None:
    x = specials(fmt)
    function: Callable[..., Any] = getattr(np, NAMES.get(name, name))
    with np.errstate(all="ignore"):
        theirs = function(x.numpy())
    _same_class(getattr(mcf.elementary, name)(_padded(x, terms)), theirs, x)


@pytest.mark.sampled
@pytest.mark.parametrize("terms", [1, 3])
@pytest.mark.parametrize("fmt", [FP32, FP64], ids=lambda f: f.name)
@pytest.mark.parametrize("name", BINARY)
def test_two_arguments(name: str, fmt: Format, terms: int) -> None:
    more = torch.tensor([4.0, 5.0, -0.5, -1.5, 2.5, 1e9 + 1], dtype=torch.float64).to(fmt.dtype)
    a, b = all_pairs(torch.cat([specials(fmt), more]))
    with np.errstate(all="ignore"):
        theirs = BINARY[name](a.numpy(), b.numpy())
    ours = getattr(mcf.elementary, name)(_padded(a, terms), _padded(b, terms))
    _same_class(ours, theirs, torch.stack([a, b], -1))


@pytest.mark.parametrize(
    ("name", "ends"),
    [("sigmoid", (0.0, 1.0)), ("erf", (-1.0, 1.0)), ("erfc", (2.0, 0.0))],
)
def test_ends(name: str, ends: tuple[float, float]) -> None:
    x = torch.tensor([-torch.inf, torch.inf, torch.nan])
    hi, lo = getattr(mcf.elementary, name)((x, torch.zeros(3)))
    assert hi[:2].tolist() == list(ends)
    assert hi[2].isnan()
    assert lo.tolist() == [0, 0, 0]


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_gelu_ends(name: str) -> None:
    x = torch.tensor([-torch.inf, torch.inf, torch.nan, 0.0, -0.0])
    hi, _ = getattr(mcf.elementary, name)((x, torch.zeros(5)))
    assert hi[:2].tolist() == [0, torch.inf]
    assert hi[2].isnan()
    assert torch.signbit(hi[3:]).tolist() == [False, True]


def test_pow_sees_every_component() -> None:
    """A base or exponent that is 1, or a whole number, only in its leading component."""
    tiny = torch.tensor(2.0**-60, dtype=torch.float64)
    one, two = torch.ones_like(tiny), torch.full_like(tiny, 2.0)
    inf = torch.full_like(tiny, torch.inf)
    zero = torch.zeros_like(tiny)
    assert mcf.elementary.pow((one, tiny), (inf, zero))[0] == torch.inf
    assert mcf.elementary.pow((one, -tiny), (inf, zero))[0] == 0
    assert mcf.elementary.pow((-two, zero), (two, tiny))[0].isnan()
    large = torch.tensor(2.0**60, dtype=torch.float64)
    assert mcf.elementary.pow((-one, zero), (large, one))[0] == -1
