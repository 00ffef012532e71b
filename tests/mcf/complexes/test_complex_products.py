"""Products of complex expansions: matrices, with the bound of real ones; many elements."""

from __future__ import annotations

import mpmath
import pytest
import torch

import mcf
from tests.helpers.complexes import numbers

pytestmark = pytest.mark.usefixtures("on_torch")
F64 = torch.float64


def test_products_accumulate_both_parts_at_once() -> None:
    """(1 + 2^-60 i) and its like: parts that cancel to the last bit are right."""
    a = mcf.complex_tensor([["1", "1"], ["2", "j"]], 2, F64)
    b = mcf.complex(mcf.tensor([2.0**60, -(2.0**60)], 2, F64), mcf.tensor([1, 3], 2, F64))
    assert (a @ b).to_fractions() == [(0, 4), (2**61 - 3, 2 - 2**60)]
    x, y = numbers(F64, 3, 4, 5), numbers(F64, 3, 5, seed=3)
    with mpmath.workprec(900):
        want = [mpmath.fdot(row, y.to_mpmath()) for row in x.to_mpmath()]
        limit = mcf.bound("matmul", 3, F64, count=10)
        size = mpmath.mpf((abs(x).sum(1) * abs(y).max()).max().item())
        for got, t in zip((x @ y).to_mpmath(), want, strict=True):
            for part in ("real", "imag"):
                error = abs(getattr(got, part) - getattr(t, part))
                assert error <= limit.relative * abs(getattr(t, part)) + 2 * limit.of_terms * size
        # Mutant: the last component of x is lost.
        lossy = (mcf.complex(x.real.to(terms=2), x.imag.to(terms=2)) @ y).to_mpmath()
        assert (
            max(abs(a - t) for a, t in zip(lossy, want, strict=True)) > 1000 * limit.relative * size
        )
    assert torch.allclose(torch.vdot(y, y), mcf.complex((abs(y) ** 2).sum(), 0), rtol=1e-40)


def test_products_of_views_are_those_of_copies() -> None:
    x, y = numbers(F64, 2, 3, 50), numbers(F64, 2, 3, 50, seed=1)
    want = x * y
    found = (x.mT * y.mT).mT
    for a, b in ((found.real, want.real), (found.imag, want.imag)):
        assert all(map(torch.equal, a.components, b.components))
    # Broadcast, by the same kernel.
    assert torch.equal(x * y[:1], torch.stack([x[k] * y[0] for k in range(3)]))
