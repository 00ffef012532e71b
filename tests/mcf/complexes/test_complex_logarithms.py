"""expm1, log1p, logarithms to other bases, exp2 and sinc of complex expansions.

Errors of the first four within their bounds are in `test_complex_bounds.py`. Caught mutants: log1p
as log(1 + z) and expm1 as exp(z) - 1 everywhere, exp2 and sinc in no more components than z has.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch

import mcf
from mcf.complexes import complex_elementary
from tests.helpers.complexes import numbers, worst

pytestmark = pytest.mark.usefixtures("on_torch")
F64 = torch.float64
U2 = 2.0**-106


def _small() -> Any:
    return numbers(F64, 2, 6, seed=1, exponent=-40)


def test_beside_zero() -> None:
    """Within the bounds where e^z and 1 + z cancel, which other formulas exceed by 2^30."""
    z = _small()
    for name, mutant in (
        ("expm1", lambda v: torch.exp(v) - 1),
        ("log1p", lambda v: torch.log(1 + v)),
    ):
        exact: Any = getattr(mpmath, name)
        bound = mcf.bound(f"complex_{name}", 2, F64)
        assert bound.proven
        assert 0 < worst(getattr(torch, name)(z), exact, z) <= bound.relative
        assert worst(mutant(z), exact, z) > 2.0**30 * bound.relative


MADE: dict[str, Callable[[Any], Any]] = {
    "exp2": lambda z: mpmath.exp(z * mpmath.log(2)),
    "sinc": mpmath.sincpi,
}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", MADE)
def test_made_of_others(name: str) -> None:
    """A component more than the result has leaves 2^53 for what a large argument loses."""
    z = torch.cat([_small(), numbers(F64, 2, 6, seed=2, exponent=6)])
    z = torch.cat([z, numbers(F64, 2, 4, seed=3, exponent=-20) + 7])
    assert worst(getattr(torch, name)(z), MADE[name], z) <= 1.5 * U2
    # The undecorated function, of two components.
    direct = getattr(complex_elementary, name).__wrapped__
    assert worst(direct(z), MADE[name], z) > 3 * U2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["exp2", "sinc"])
def test_of_four_components(name: str) -> None:
    z = numbers(F64, 4, 10, seed=2, exponent=2)
    assert worst(getattr(torch, name)(z), MADE[name], z) <= 64 * 2.0**-212


VALUES = (0.0, -0.0, 1.0, -1.0, -2.0, math.inf, -math.inf, math.nan)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", ["expm1", "log1p", "log2", "log10", "exp2", "sinc"])
def test_special_values(name: str) -> None:
    """As torch's, where it has numbers; real arguments have results with an imaginary zero."""
    points = torch.tensor([complex(*p) for p in itertools.product(VALUES, VALUES)])
    points = points.to(torch.complex128)
    z = mcf.complex_tensor(points, 2, F64)
    found, theirs = getattr(torch, name)(z), getattr(torch, name)(points)
    for ours, wanted in ((found.real, theirs.real), (found.imag, theirs.imag)):
        known = ~(theirs.real.isnan() | theirs.imag.isnan())
        near = (ours.to_plain() - wanted).abs() <= 1e-14 * wanted.abs() + 1e-16
        assert (near | (ours.to_plain() == wanted))[known].all()
    # log of what is below 0 is no real number.
    domain = {"log1p": -1.0, "log2": 0.0, "log10": 0.0}.get(name, -math.inf)
    real = (points.imag == 0) & points.real.isfinite() & (points.real > domain)
    imag = found.imag.to_plain()[real]
    assert (imag == 0).all()
    if name in ("expm1", "log1p"):
        assert torch.equal(imag.signbit(), points.imag[real].signbit())


@pytest.mark.slow
def test_derivatives() -> None:
    given = [0.25 + 0.5j, -0.375 + 1.25j, 2.0 - 1.0j]
    for name in ("expm1", "log1p", "log2", "log10", "exp2", "sinc", "tanhshrink"):
        function = getattr(torch, name, None) or getattr(torch.nn.functional, name)
        z = mcf.complex_tensor(torch.tensor(given), 2, F64).requires_grad_()
        plain = torch.tensor(given, dtype=torch.complex128, requires_grad=True)
        for v in (z, plain):
            w: Any = function(v)
            (w.real * 3 + w.imag).sum().backward()
        assert plain.grad is not None
        assert torch.allclose(z.grad.to_plain(), plain.grad, rtol=1e-12), name


def test_float_power() -> None:
    z = mcf.complex_tensor(torch.tensor([1 + 2j, 3.0 + 0j]), 2, torch.float32)
    found: Any = torch.float_power(z, 2)
    assert found.dtype is F64
    assert found.tolist() == [(1 + 2j) ** 2, 9]
