"""Special functions: errors against ball arithmetic, special values, derivatives.

The bounds are those of `mcf.elementary.function_bounds`: relative to the result, and below zero,
where a reflection cancels, to the sum of the magnitudes of its terms, too; what they catch is in
`test_function_mutants.py`.
"""

from __future__ import annotations

import math

import pytest
import torch

import mcf
import mcf.elementary
from mcf.elementary.function_bounds import SPECIAL
from mcf.kernels import BF16, FP16, FP32, FP64
from mcf.kernels.formats import Format
from tests.helpers.adversarial import specials
from tests.helpers.everyday import everyday
from tests.helpers.special import check, climbed, often

# Values: on the torch executor, which runs the programs and compiles nothing.
pytestmark = pytest.mark.usefixtures("on_torch")

FORMATS = (BF16, FP16, FP32, FP64)


@pytest.mark.sampled(every=20)
@pytest.mark.parametrize("name", everyday(SPECIAL, often))
def test_error_within_the_bound(name: str) -> None:
    for fmt, terms in ((FP64, 2), (FP64, 4), (FP32, 2)):
        assert 0 < check(name, fmt, terms, 6, seed=terms) <= 1, (fmt.name, terms)


@pytest.mark.slow
@pytest.mark.sampled(slow=3)
@pytest.mark.parametrize("terms", [1, 2, 3, 4])
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
@pytest.mark.parametrize("name", [*SPECIAL, "airy_ai_1"])
def test_error_of_many(name: str, fmt: Format, terms: int) -> None:
    assert 0 < check(name, fmt, terms, 500, seed=20 + terms) <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fmt", "terms"), [(FP64, 4), (FP64, 2), (FP32, 4)], ids=lambda c: getattr(c, "name", str(c))
)
@pytest.mark.parametrize("name", [*SPECIAL, "airy_ai_1"])
def test_error_found_by_climbing(name: str, fmt: Format, terms: int) -> None:
    assert 0 < climbed(name, getattr(mcf.elementary, name), fmt, terms) <= 1


POLES = torch.tensor([-1.0, -2.0, -3.0, -50.0, 1.0, 2.0, 0.5, -0.5, 1e30, 2e37, -1e30])


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("terms", [1, 3])
@pytest.mark.parametrize("fmt", [FP32, FP64], ids=lambda f: f.name)
def test_special_values(fmt: Format, terms: int) -> None:
    """As torch has them; of trigamma at poles it has large numbers."""
    x = torch.cat([specials(fmt), POLES.to(fmt.dtype)])
    padded = (x, *(torch.zeros_like(x),) * (terms - 1))
    # torch's own values at poles and infinities, without its rounding of others.
    theirs = {"lgamma": torch.lgamma(x), "digamma": torch.digamma(x)}
    theirs["erfinv"] = torch.erfinv(x)
    theirs["trigamma"] = torch.special.polygamma(1, x)
    for m in (2, 3, 4):
        theirs[f"polygamma_{m}"] = torch.special.polygamma(m, x.double()).to(fmt.dtype)
        # There torch has NaN.
        theirs[f"polygamma_{m}"][x == math.inf] = 0.0
    whole = (x < 0) & (x == x.round())
    theirs["trigamma"][whole & x.isfinite()] = math.inf
    for name, expected in theirs.items():
        ours = getattr(mcf.elementary, name)(padded)
        for kind in (torch.isnan, torch.isposinf, torch.isneginf):
            assert torch.equal(kind(ours[0]), kind(expected)), (name, kind.__name__)
        plain = ~expected.isfinite()
        assert all(bool((c[plain] == 0).all()) for c in ours[1:])
    assert mcf.elementary.lgamma(padded)[0][x == 1].view(torch.uint8).sum() == 0, "+0"


def test_poles_in_later_components() -> None:
    """A whole number only in its leading component, and one that takes two."""
    one = torch.ones(1, dtype=torch.float64)
    near = (-one, one * 2.0**-60)
    assert mcf.elementary.lgamma(near)[0].item() == pytest.approx(60 * math.log(2))
    assert mcf.elementary.digamma(near)[0].item() == pytest.approx(-(2.0**60))
    assert mcf.elementary.trigamma(near)[0].item() == pytest.approx(2.0**120)
    # A power of two away, whose logarithm is all of its exponent.
    assert mcf.elementary.lgamma((-one, one * 2.0**-600))[0].item() == 600 * math.log(2)
    assert mcf.elementary.lgamma((-(2.0**60) * one, one))[0].item() == math.inf
    assert mcf.elementary.digamma((-(2.0**60) * one, one))[0].isnan().all()


def test_special_values_of_bessel_functions() -> None:
    x = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e30, -1e30, 89.0, -89.0])
    nan, inf = math.nan, math.inf
    far = float(mcf.i0e(torch.tensor(1e30)))
    expected = {
        "i0": [1, 1, inf, inf, nan, inf, inf, None, None],
        "i0e": [1, 1, 0, 0, nan, far, far, None, None],
        "i1": [0, -0.0, inf, -inf, nan, inf, -inf, None, None],
        "i1e": [0, -0.0, 0, -0.0, nan, far, -far, None, None],
    }
    assert far == pytest.approx(1 / math.sqrt(2 * math.pi * 1e30))
    for name, row in expected.items():
        (ours,) = getattr(mcf.elementary, name)((x,))
        for a, b in zip(ours.tolist(), row, strict=True):
            assert b is None or str(a) == str(float(b)), name
        assert ours[7].isfinite()
        assert ours[7].abs() == ours[8].abs()


@pytest.mark.slow
def test_bounds_are_proved() -> None:
    for name in SPECIAL:
        # How near the start of both is has only been looked at.
        assert mcf.bound(name, 2, torch.float64).proven == (name not in ("erfinv", "ndtri"))
        assert mcf.bound(name, 2, torch.float64).relative == pytest.approx(2.0**-106)
