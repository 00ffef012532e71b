"""Running products of complex expansions within their bound, variances; derivatives of both.

Exact products of fractions are what running products are compared with, complex128 by torch what
derivatives are. Caught mutants: an odd last element left out; a running product of pairs used one
pair late; the imaginary parts' variance forgotten.
"""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

import mcf
from tests.helpers.complexes import agrees_with_torch, numbers

pytestmark = pytest.mark.usefixtures("on_torch")
F64 = torch.float64


def _exact(values: list[tuple[Fraction, Fraction]]) -> list[tuple[Fraction, Fraction]]:
    found = [values[0]]
    for c, d in values[1:]:
        a, b = found[-1]
        found.append((a * c - b * d, a * d + b * c))
    return found


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 12, 33])
def test_running_products(count: int) -> None:
    z = numbers(F64, 2, count, seed=count)
    b = Fraction(mcf.bound("complex_mul", 2, F64).relative)
    got = z.cumprod(0).to_fractions()
    for k, ((x, y), (u, v)) in enumerate(zip(got, _exact(z.to_fractions()), strict=True)):
        error = (x - u) ** 2 + (y - v) ** 2
        assert error <= ((1 + b) ** k - 1) ** 2 * (u * u + v * v), k


FUNCTIONS = {
    "cumprod": lambda z: z.cumprod(1),
    "cumprod of columns": lambda z: torch.cumprod(z, dim=0),
    "var": lambda z: z.var(1),
    "var of all": lambda z: torch.var(z, correction=0),
    "std": lambda z: torch.std(z, 0, keepdim=True),
    "var_mean": lambda z: torch.var_mean(z, 1)[0] * torch.var_mean(z, 1)[1],
    "std_mean": lambda z: torch.std_mean(z, 1, correction=2)[0] + torch.std_mean(z, 1)[1],
}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_derivatives_are_those_of_torch(name: str) -> None:
    """Within 1e-12 of complex128: its own error is a few units of 2^-53 an operation."""
    agrees_with_torch(FUNCTIONS[name], numbers(F64, 2, 4, 5, seed=3).to_plain(), 1e-12)


def test_edges() -> None:
    z = numbers(F64, 2, 3, 4, seed=1)
    assert z[:, :0].cumprod(1).shape == (3, 0)
    assert torch.equal(z[0, 0].cumprod(0), z[0, 0])
    assert z.cumprod(0, dtype=torch.float32).dtype is torch.float32
    with pytest.raises(IndexError, match="imension"):
        z.cumprod(2)
    # Squares of the parts are out of range, their root is not.
    large = z * 2.0**600
    assert torch.equal(large.std() * 2.0**-600, z.std())
