"""Rounding to integers and remainders against rational arithmetic; softmax against ball arithmetic.

Mutants caught: rounding component by component, ties to even of one component only, a remainder by
a rounded quotient, a softmax that divides by the sum of leading components.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from flint import arb, ctx

import mcf.elementary
from mcf.kernels import BF16, FP16, FP32, FP64
from mcf.kernels.formats import Format
from tests.helpers.elementary import HALF, Inputs, balls, disordered
from tests.helpers.sums import values as fractions

# Of values; that executors have the same bits other tests say.
pytestmark = pytest.mark.usefixtures("on_torch")

FORMATS = [BF16, FP16, FP32, FP64]
each_format = pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
each_length = pytest.mark.parametrize("terms", [1, 2, 3, 4])

INTEGERS: dict[str, Callable[[Fraction], int]] = {
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "round": round,
}


@pytest.mark.sampled(every=6)
@each_length
@each_format
def test_rounding_to_integers_is_exact(fmt: Format, terms: int) -> None:
    d = Inputs(fmt, terms, seed=3)
    halves = np.array([0.5, 1.5, 2.5, -3.5, 127.5, 1.0, 2.0, -2.0, 0.25])
    # Whole leading components, so that the next one is rounded, with ties there.
    large = d.numbers(d.exponents(100, fmt.p - 1, fmt.p))
    ties = [d.tensor(large), d.tensor(d.rng.choice([-0.5, 0.0, 0.5], 100))][:terms]
    ties += [torch.zeros_like(ties[0])] * (terms - len(ties))
    top = min(fmt.p * terms, fmt.emax - 1)
    for x in (d.between(-4, top, 100), d.near(halves, 100), tuple(ties)):
        for name, function in INTEGERS.items():
            found = getattr(mcf.elementary, name)(x)
            assert disordered(fmt, found) == []
            assert fractions(found) == [function(v) for v in fractions(x)], name


def test_rounding_keeps_zeros_and_what_is_not_finite() -> None:
    x = torch.tensor([0.0, -0.0, -0.25, torch.inf, -torch.inf, torch.nan])
    for name in INTEGERS:
        hi, lo = getattr(mcf.elementary, name)((x, torch.zeros(6)))
        expected = getattr(torch, name)(x)
        assert torch.equal(hi.nan_to_num(5), expected.nan_to_num(5)), name
        assert torch.equal(torch.signbit(hi), torch.signbit(expected)), name
        assert not lo.any()


@pytest.mark.sampled
@each_length
@each_format
def test_remainders(fmt: Format, terms: int) -> None:
    """The exact remainder, rounded to nearest component by component: error at most u^terms."""
    d = Inputs(fmt, terms, seed=4)
    x, y = d.between(-5000, fmt.emax - 1, 60), d.between(-8, fmt.emax - 1, 60)
    unit, least = fmt.u**terms, fmt.min_subnormal
    for name, function in (
        ("fmod", lambda a, b: abs(a) % abs(b) * (1 if a > 0 else -1)),
        ("remainder", lambda a, b: a % b),
    ):
        found = fractions(getattr(mcf.elementary, name)(x, y))
        for a, b, r in zip(fractions(x), fractions(y), found, strict=True):
            exact = function(a, b)
            assert abs(r - exact) <= max(unit * abs(exact), least / 2), name


@pytest.mark.parametrize("name", ["fmod", "remainder"])
def test_remainders_of_special_fractions(name: str) -> None:
    values = [0.0, -0.0, 1.0, -2.5, torch.inf, -torch.inf, torch.nan]
    a, b = (t.flatten() for t in torch.meshgrid(*[torch.tensor(values)] * 2, indexing="ij"))
    hi, lo = getattr(mcf.elementary, name)((a, torch.zeros_like(a)), (b, torch.zeros_like(b)))
    expected = getattr(torch, name)(a, b)
    assert torch.equal(hi.nan_to_num(9), expected.nan_to_num(9))
    number = ~expected.isnan()
    assert torch.equal(torch.signbit(hi[number]), torch.signbit(expected[number]))
    assert not lo.any()


def _bound(fmt: Format, terms: int) -> float:
    # Observed: four components of float64 end in a division that has no bits to spare.
    if fmt is FP64:
        return 16.0 if terms == 4 else 1.01
    return 2.0 ** (1 - terms) * 1.02


# In the default run each format and each number of components once.
@pytest.mark.sampled
@each_length
@each_format
def test_softmax_and_logsumexp(
    fmt: Format, terms: int, monkeypatch: pytest.MonkeyPatch, on_torch: None
) -> None:
    monkeypatch.setattr(ctx, "prec", 1500)
    d = Inputs(fmt, terms, seed=6)
    x = tuple(c.reshape(6, 11) for c in d.between(-6, min(6, fmt.emax // 6), 66))
    # Over the other dimension, so that a mix-up of the two shows.
    found = {
        "softmax": mcf.elementary.softmax(tuple(c.t() for c in x), 0),
        "log_softmax": mcf.elementary.log_softmax(x, -1),
        "logsumexp": mcf.elementary.logsumexp(x, 1),
    }
    found["softmax"] = tuple(c.t() for c in found["softmax"])
    least, unit = arb(float(fmt.min_subnormal)), arb((1 / fmt.u**terms).numerator)
    for row in range(6):
        given = balls(tuple(c[row] for c in x))
        powers = [v.exp() for v in given]
        total = sum(powers, arb(0))
        exact = {
            "softmax": [p / total for p in powers],
            "log_softmax": [v - total.log() for v in given],
            "logsumexp": [total.log()],
        }
        for name, values in exact.items():
            ours = balls(tuple(c[row].reshape(-1) for c in found[name]))
            for a, b in zip(ours, values, strict=True):
                error = abs(a - b)
                relative = float((error / abs(b) * unit).mid())
                assert error < HALF * least or relative <= _bound(fmt, terms), (name, relative)


def test_softmax_of_infinities() -> None:
    inf, nan = torch.inf, torch.nan
    x = torch.tensor([[0.0, -inf], [-inf, -inf], [inf, 0.0], [nan, 0.0]], dtype=torch.float64)
    for name in ("softmax", "log_softmax"):
        hi, lo = getattr(mcf.elementary, name)((x, torch.zeros_like(x)), 1)
        assert torch.equal(hi.nan_to_num(9), getattr(torch, name)(x, 1).nan_to_num(9)), name
        assert not lo.any()
    hi, lo = mcf.elementary.logsumexp((x, torch.zeros_like(x)), 1)
    assert torch.equal(hi.nan_to_num(9), torch.logsumexp(x, 1).nan_to_num(9))
    assert not lo.any()


def test_logsumexp_of_a_far_second() -> None:
    """log(1 + exp(-100)), of which 1 + exp(-100) in two float32 components keeps nothing."""
    x = (torch.tensor([0.0, -100.0]), torch.zeros(2))
    hi, _ = mcf.elementary.logsumexp(x, 0)
    # exp(-100) = 3.720075976020836e-44 is 27 smallest subnormals, rounded.
    assert hi.item() == 27 * 2.0**-149


def test_bad_dimensions_are_refused() -> None:
    with pytest.raises(IndexError, match=r"dim must be in \[-1, 0\], got 1"):
        mcf.elementary.softmax((torch.ones(3),), 1)
    with pytest.raises(ValueError, match="empty"):
        mcf.elementary.logsumexp((torch.ones(0),), 0)
