"""What is looked at after rotations and after a factorisation Q R: the limits, and what they catch.

Exact arithmetic has the bounds that docs/numerics.md proves from them; mutants lose the last
component of what a step returns, 2^53 u^2 of two components.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mcf
from mcf.kernels.rotation import rotations as declaration
from mcf.linalg import orthogonal_rows, qr_factors, spectral
from mcf.linalg.number_kinds import COMPLEX, REAL, Real
from mcf.linalg.parts import Components, each, identity, matrices, transpose
from mcf.reductions.products import matmul
from tests.helpers.matrices import uniform
from tests.mcf.linalg.test_spectral import svd_errors

pytestmark = pytest.mark.usefixtures("on_torch")
F64 = torch.float64
UNIT = 2.0**-106
BATCH = (1, 3, 4)


def deficient(numbers: Real = REAL) -> Components:
    """Four rows of rank two, which rotations finish."""
    given = [uniform(F64, 2, *shape, seed=k) for k, shape in enumerate([(4, 2), (2, 4)] * 2)]
    if numbers is REAL:
        return matmul(given[0], given[1])
    return COMPLEX.matmul((*given[0], *given[2]), (*given[1], *given[3]))


def diagonal(numbers: Real = REAL) -> tuple[Components, Components, Components]:
    """M = X of three orthogonal rows, and W = I."""
    m = uniform(F64, 2, *BATCH)
    m = m if numbers is REAL else (*m, *m)
    m = each(torch.zeros_like, m)
    for k, value in enumerate((1.0, 0.5, 0.25)):
        m[0][0, k, k] = value
    return m, identity(each(lambda c: c[..., :3], m), 3), each(torch.clone, m)


def off_by(x: Components, i: int, j: int, units: float) -> Components:
    """With so many u^2 at a place."""
    low = x[1].clone()
    low[0, i, j] += units * UNIT
    return (x[0], low, *x[2:])


@pytest.mark.parametrize("numbers", [REAL, COMPLEX])
def test_what_rotations_may_leave(numbers: Real) -> None:
    """On both sides of each limit, by a quarter: rows lose half of what W W^H does."""
    m, w, x = diagonal(numbers)
    own, off, cosine, drift, _ = orthogonal_rows.LIMITS
    lost = drift * float(torch.linalg.matrix_norm(m[0]))
    # Three rows: W W^H of a row that is longer by so much lacks twice as much.
    long = own * 3 / 2
    cases: dict[str, Any] = {
        "own": lambda f: (m, off_by(w, 2, 2, f * long), off_by(x, 2, 2, f * long * 0.25)),
        "off": lambda f: (m, off_by(w, 1, 2, f * off), x),
        "cosine": lambda f: (m, w, off_by(x, 2, 1, f * cosine * 0.25)),
        "drift": lambda f: (m, w, off_by(x, 2, 2, f * lost * 3)),
    }
    for name, case in cases.items():
        assert bool(orthogonal_rows.held(*case(0.75), numbers)), name
        assert not bool(orthogonal_rows.held(*case(1.25), numbers)), name
    nothing = each(lambda c: c * torch.nan, x)
    assert not bool(orthogonal_rows.held(m, w, nothing, numbers))


def test_what_a_basis_may_lack() -> None:
    m, w, x = diagonal()
    sizes = tuple(c.diagonal(dim1=1, dim2=2).clone() for c in x)
    y = each(torch.zeros_like, m)
    for k in range(3):
        y[0][0, k, k] = 1.0
    lost = (orthogonal_rows.LOST * 3 + orthogonal_rows.MORE) * float(torch.linalg.matrix_norm(m[0]))
    cases: list[Any] = [
        lambda f: (m, w, sizes, off_by(y, 2, 2, f * orthogonal_rows.BASIS / 2)),
        lambda f: (m, w, sizes, off_by(y, 2, 1, f * orthogonal_rows.BASIS)),
        lambda f: (m, w, off_by_size(sizes, f * lost), y),
    ]
    for k, case in enumerate(cases):
        assert bool(orthogonal_rows.factored(*case(0.75))), k
        assert not bool(orthogonal_rows.factored(*case(1.25))), k


def off_by_size(sizes: Components, units: float) -> Components:
    low = sizes[1].clone()
    low[0, 0] += units * UNIT
    return sizes[0], low


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [REAL, COMPLEX])
def test_rotations_that_lose_a_component_are_refused(
    numbers: Real, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = deficient(numbers)
    right = declaration(2, numbers.parts).rotated
    plain = orthogonal_rows._plain

    def lossy(algorithm: Any) -> Any:
        found = plain(algorithm)
        if algorithm is not right:
            return found

        def less(*given: Any) -> Any:
            return tuple(
                numbers.by_parts(lambda p: (p[0], torch.zeros_like(p[1])), x) for x in found(*given)
            )

        return less

    assert bool(spectral.svd(a, numbers=numbers)[-1])
    monkeypatch.setattr(orthogonal_rows, "_plain", lossy)
    # They stop: what is lost is made good by no rotation.
    monkeypatch.setattr(orthogonal_rows, "tolerance", lambda terms: 2.0**-49)
    assert not bool(spectral.svd(a, numbers=numbers)[-1])
    monkeypatch.setattr(orthogonal_rows, "held", lambda m, *_: torch.ones(len(m[0])).bool())
    assert bool(spectral.svd(a, numbers=numbers)[-1])


@pytest.mark.slow
def test_a_factorisation_that_loses_a_component_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    a = uniform(F64, 2, 9, 3)
    right = qr_factors.factor

    def lossy(*given: Any, **more: Any) -> Any:
        q, r = right(*given, **more)
        assert q is not None
        return (q[0], torch.zeros_like(q[1])), r

    assert bool(spectral.svd(a)[-1])
    monkeypatch.setattr(qr_factors, "factor", lossy)
    assert not bool(spectral.svd(a)[-1])


@pytest.mark.slow
@pytest.mark.parametrize("terms", [2, 3, 4])
@pytest.mark.parametrize("shape", [(9, 3), (40, 2), (200, 1), (3, 50), (90, 12)])
def test_tall_matrices(shape: tuple[int, int], terms: int) -> None:
    """Against exact arithmetic; 32 n u^terms is what `test_spectral` has of all."""
    with mcf.executor("auto" if terms < 4 else "torch"):
        svd_errors(uniform(F64, terms, *shape))
        svd_errors(transpose(uniform(F64, terms, *shape)))


def test_each_matrix_is_looked_at_alone() -> None:
    m, w, x = diagonal()
    bad = off_by(x, 2, 2, 1000.0)
    both = [tuple(torch.cat(p) for p in zip(m, m, strict=True))]
    both += [tuple(torch.cat(p) for p in zip(w, w, strict=True))]
    both += [tuple(torch.cat(p) for p in zip(x, bad, strict=True))]
    assert orthogonal_rows.held(*both).tolist() == [True, False]
    assert bool(orthogonal_rows.held(*(matrices(p, torch.tensor([0])) for p in both)))
