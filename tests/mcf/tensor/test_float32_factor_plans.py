"""Exact: factorisations of few float32 matrices by plan have the bits of their operators.

Caught mutants: elements copied as if they were float64; results of float64 that are cut and not
rounded; the other triangle; a plan that computes in float64 where other registers are chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mcf
from mcf.tensor import factor_plans, shortcuts_of_factors
from tests.helpers import assert_alike

linalg = torch.linalg
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "det": lambda a, s: (linalg.det(a), torch.det(a.mT), linalg.det(s[None])),
    "slogdet": lambda a, s: (*linalg.slogdet(a), *linalg.slogdet(-s)),
    "inv": lambda a, s: (linalg.inv(a),),
    "lu_factor": lambda a, s: (*linalg.lu_factor(a), *linalg.lu_factor(a[:, :2])),
    "lu": lambda a, s: (*linalg.lu(a), *linalg.lu(a[:, :2])),
    "cholesky": lambda a, s: (linalg.cholesky(s), linalg.cholesky(s, upper=True)),
    "cholesky_ex": lambda a, s: (*linalg.cholesky_ex(s), *linalg.cholesky_ex(-s, upper=True)),
    "told": lambda a, s: (*linalg.lu_factor_ex(a), *linalg.inv_ex(a), *linalg.solve_ex(a, s)),
    "solve": lambda a, s: (linalg.solve(a, s), linalg.solve(a, s[0])),
    "triangular": lambda a, s: (
        linalg.solve_triangular(a, s, upper=True),
        linalg.solve_triangular(a.mT, s, upper=False, unitriangular=True),
    ),
    "lu_solve": lambda a, s: (linalg.lu_solve(*linalg.lu_factor(a), s),),
    "qr": lambda a, s: (
        *linalg.qr(a),
        *linalg.qr(a[:, :2], mode="complete"),
        *linalg.qr(a.mT, mode="r"),
    ),
    "lstsq": lambda a, s: (*linalg.lstsq(a[:, :3], s), *linalg.lstsq(s, a[0])),
    "eigh": lambda a, s: (*linalg.eigh(s), *linalg.eigh(a, "U"), linalg.eigvalsh(s)),
    "svd": lambda a, s: (
        *linalg.svd(a),
        *linalg.svd(a[:, :3], full_matrices=False),
        linalg.svdvals(a),
    ),
}


def matrices(terms: int) -> list[tuple[mcf.MCFTensor, mcf.MCFTensor]]:
    """Of whole numbers and what is far below them: any, and one that is positive definite."""
    k = torch.arange(16, dtype=torch.float32).reshape(4, 4)
    first = (k * k * 7 + 3 * k.mT) % 23 - 11
    parts = [first, *((k * 5 % 7 - 3) * 2.0 ** (-26 * (j + 1)) for j in range(terms - 1))]
    a = mcf.from_components(parts)
    square = a @ a.mT + torch.eye(4)
    return [(a, square), (a * 2.0**-70, square * 2.0**60), (a.mT, square.mT)]


@pytest.mark.slow
@pytest.mark.parametrize("terms", [1, 2, 3, 4])
@pytest.mark.parametrize("name", CALLS)
def test_plans_have_the_bits_of_operators(
    name: str, terms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    factor_plans._plans.clear()
    given = matrices(terms)
    got = [[CALLS[name](*each), CALLS[name](*each)][1] for each in given]
    assert any(plan is not None for plan in factor_plans._plans.values())
    monkeypatch.setattr(shortcuts_of_factors, "factored", lambda *given, **named: None)
    for each, found in zip(given, got, strict=True):
        for k, (a, b) in enumerate(zip(found, CALLS[name](*each), strict=True)):
            assert (type(a), a.dtype, a.shape) == (type(b), b.dtype, b.shape)
            assert_alike(a.contiguous(), b.contiguous(), f"{name} {terms} {k}")


@pytest.mark.usefixtures("on_torch")
def test_what_has_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    [(a, s), *_] = matrices(2)
    monkeypatch.setattr(factor_plans, "_plans", {})
    with mcf.registers("float32"):
        for call in (lambda: linalg.qr(a), lambda: linalg.eigh(s), lambda: linalg.svd(a)):
            with pytest.raises(NotImplementedError, match="float32 registers"):
                call()
    with pytest.raises(RuntimeError, match="singular"):
        linalg.inv(torch.zeros_like(a))
    assert not any(plan is not None for plan in factor_plans._plans.values())
    assert linalg.det(a.detach().clone().requires_grad_()).requires_grad
