"""erfcx, log_ndtr and ndtri: special values, and what their bounds catch.

Errors are measured in `test_special_functions.py`, derivatives in `test_error_slopes.py`. Caught
mutants: a branch of another formula, an exponential without its exact square, an asymptotic series
or a table some terms short, a constant without its last component, a sum that is rounded before it
cancels.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import mcf
import mcf.elementary
from mcf.elementary import error, inverse_error, scaled_error, special_bounds, tables
from mcf.elementary.tables import Components
from mcf.kernels import FP32, FP64
from mcf.kernels.formats import Format
from tests.helpers.adversarial import specials
from tests.helpers.everyday import everyday
from tests.helpers.special import part

# Values: on the torch executor, which runs the programs and compiles nothing.
pytestmark = pytest.mark.usefixtures("on_torch")

NAMES = ("erfcx", "log_ndtr", "ndtri")
# Numbers of both sides of each branch.
ARGUMENTS = {
    "erfcx": (-26.5, -3.25, -0.03125, 0.28125, 31.75, 33.0, 2.0**90),
    "log_ndtr": (-(2.0**200), -50.0, -3.25, -(2.0**-70), 2.0**-70, 0.71875, 17.75, 21.5),
    "ndtri": (2.0**-1000, 0.125, 0.28125, 0.5 + 2.0**-30, 0.71875, 0.8125, 1 - 2.0**-40),
}


def _given(name: str) -> Components:
    """Expansions of four components, all bits of which count."""
    x = torch.tensor(ARGUMENTS[name], dtype=torch.float64)
    if name != "ndtri":
        # Squares of more bits than a float has.
        x = x * (1 - 1431655765 * 2.0**-52)
    return tuple(x * f for f in (1.0, 0.8125 * 2.0**-54, -0.71875 * 2.0**-108, 0.5625 * 2.0**-162))


def _worst(name: str) -> float:
    x = _given(name)
    return max(part(name, FP64, x, getattr(mcf.elementary, name)(x)))


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", NAMES)
def test_branches(name: str) -> None:
    assert 0 < _worst(name) <= 1


@pytest.mark.parametrize(
    ("fmt", "terms"),
    everyday([(FP64, 1), (FP32, 3), (FP64, 3), (FP32, 1)], [(FP64, 1), (FP32, 3)]),
    ids=lambda c: getattr(c, "name", str(c)),
)
def test_special_values(fmt: Format, terms: int) -> None:
    """As torch has them."""
    more = torch.tensor([0.5, -0.5, 1.0, -1.0, 2.0, -27.0, -26.5, 39.0, -1e30, 1e30])
    x = torch.cat([specials(fmt), more.to(fmt.dtype)])
    # At half of the smallest number torch has 2 x - 1 = -1.
    padded = (x, *(torch.zeros_like(x),) * (terms - 1))
    for name in NAMES:
        ours = getattr(mcf.elementary, name)(padded)
        theirs = getattr(torch.special, name)(x.double()).to(fmt.dtype)
        for kind in (torch.isnan, torch.isposinf, torch.isneginf):
            assert torch.equal(kind(ours[0]), kind(theirs)), (name, kind.__name__)
        plain = ~theirs.isfinite()
        assert all(bool((c[plain] == 0).all()) for c in ours[1:]), name
    exactly = {"erfcx": (0.0, 1.0), "ndtri": (0.5, 0.0)}
    for name, (at, value) in exactly.items():
        zero = torch.zeros(1, dtype=fmt.dtype)
        found = getattr(mcf.elementary, name)((zero + at, *(zero,) * (terms - 1)))
        assert [c.item() for c in found] == [value, *(0.0,) * (terms - 1)]


def test_ends_in_later_components() -> None:
    """1 less what a second component holds, and beyond 0 and 1."""
    one, tiny = torch.ones(1, dtype=torch.float64), torch.full((1,), 2.0**-300, dtype=torch.float64)
    near = mcf.elementary.ndtri((one, -tiny))
    mirrored = mcf.elementary.ndtri((tiny, 0 * tiny))
    assert all(map(torch.equal, near, (-c for c in mirrored)))
    assert -37 < mirrored[0].item() < -20
    assert mcf.elementary.ndtri((one, tiny))[0].isnan().all()
    assert mcf.elementary.ndtri((one, 0 * one))[0].item() == math.inf


def _cut(components: Components) -> Components:
    return (*components[:-1], torch.zeros_like(components[-1]))


MUTANTS = [("erfcx", "series"), ("log_ndtr", "square"), ("ndtri", "sum")]
RARELY = [
    ("erfcx", "square"), ("erfcx", "table"), ("log_ndtr", "series"), ("log_ndtr", "table"),
    ("ndtri", "table"), ("erfcx", "constant"), ("log_ndtr", "constant"), ("ndtri", "constant"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "broken"), everyday([*MUTANTS, *RARELY], MUTANTS))
def test_mutants(name: str, broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Bounds are counted from what mutants change, and kept: before anything changes.
    special_bounds.derived(name, FP64, 4)
    whole: Any
    if broken == "series":
        whole = scaled_error.asymptotic
        short = {k: whole(k) * (k < 24) for k in range(60)}
        monkeypatch.setattr(scaled_error, "asymptotic", lambda k: short[k] or whole(k) / 2)
    elif broken == "square":
        monkeypatch.setattr(error, "two_prod", lambda a, b: (a * b, torch.zeros_like(a)))
    elif broken == "table":
        module: Any = inverse_error if name == "ndtri" else error
        whole = tables.lookup
        cut = lambda *given: _cut(whole(*given)) if given[2] == 4 else whole(*given)  # noqa: E731
        monkeypatch.setattr(module, "lookup", cut)
    elif broken == "constant":
        module = inverse_error if name == "ndtri" else scaled_error
        whole = tables.constant
        monkeypatch.setattr(module, "constant", lambda *given: _cut(whole(*given)))
    else:
        whole = inverse_error.collected
        rounded = lambda floats, terms: whole(floats[:2], terms)  # noqa: E731
        monkeypatch.setattr(inverse_error, "collected", rounded)
    assert _worst(name) > 1
