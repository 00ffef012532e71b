"""`torch.linalg.eig` of general matrices, by exact residuals.

The bound 16 n u^terms |A| of the docstring, twice that for the rounding of the result to its
format. What is found is some tenths of n u^terms. Residuals are those of integers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch

import mcf
from mcf.complexes import eigen
from mcf.kernels.formats import format_of
from tests.helpers.complexes import numbers
from tests.helpers.draws import bell
from tests.helpers.everyday import everyday
from tests.helpers.matrices import ONE, exact, size, uniform

F64, F32, BF16 = torch.float64, torch.float32, torch.bfloat16
on_torch = pytest.mark.usefixtures("on_torch")
C = 32


def whole(z: Any) -> tuple[Any, Any]:
    """Both parts as exact integers."""
    if isinstance(z, mcf.MCFTensor):
        x = exact(z.components)
        return x, x * 0
    return exact(z.real.components), exact(z.imag.components)


def product(x: tuple[Any, Any], y: tuple[Any, Any], times: Callable[[Any, Any], Any]) -> Any:
    (a, b), (c, d) = x, y
    return times(a, c) - times(b, d), times(a, d) + times(b, c)


def excess(a: Any, w: Any, v: Any) -> float:
    """The largest |A v - w v| over C n u^terms |A|, and of ||v|^2 - 1|."""
    n, unit = a.shape[-1], format_of(a.dtype).u ** a.terms
    p, q, x = whole(a), whole(w), whole(v)
    left = product(p, x, lambda s, t: s @ t)
    right = product(x, q, lambda s, t: s * t[None, :])
    scale = size(p[0]) + size(p[1])
    worst = 0.0
    for k in range(n):
        found = sum(int(((s - t)[:, k] ** 2).sum()) for s, t in zip(left, right, strict=True))
        allowed = (C * n * unit) ** 2 * scale * ONE**2
        worst = max(worst, float(found / allowed) ** 0.5 if allowed else float(found))
        length = sum(int((s[:, k] ** 2).sum()) for s in x)
        worst = max(worst, float(abs(Fraction(length, ONE**2) - 1) / (C * n * unit)))
    return worst


def similar(terms: int, values: list[float]) -> Any:
    """A full matrix with the given eigenvalues, about."""
    n = len(values)
    q = mcf.MCFTensor(uniform(F64, terms, n, n, seed=5)) + 2 * mcf.eye(n, terms=terms, dtype=F64)
    return q @ torch.diag(mcf.tensor(values, terms, F64)) @ torch.linalg.inv(q)


def shifted(n: int) -> torch.Tensor:
    return torch.eye(n, dtype=F64).roll(1, 0)


MATRICES: dict[str, Callable[[int], Any]] = {
    "one": lambda k: mcf.MCFTensor(uniform(F64, k, 1, 1)),
    "six": lambda k: mcf.MCFTensor(uniform(F64, k, 6, 6)),
    "complex": lambda k: numbers(F64, k, 4, 4),
    "zero": lambda k: mcf.zeros(3, 3, terms=k, dtype=F64),
    "equal": lambda k: similar(k, [1, 1, 1, 2, 3, 3]),
    "permutation": lambda k: mcf.tensor(shifted(6), k, F64),
    "defective": lambda k: mcf.tensor(torch.eye(4, dtype=F64) + shifted(4).tril(-1), k, F64),
    "large": lambda k: mcf.MCFTensor(uniform(F64, k, 4, 4)) * 2.0**900,
    # Too near for a correction, too far to be equal: the Schur form in expansions.
    "cluster": lambda k: similar(k, [1, 1 + 2.0**-44, 1 - 2.0**-38]),
    # Eigenvalues that no float64 tells apart: shifts of the steps have to.
    "alike": lambda k: mcf.tensor(
        [[1, ALIKE, 0], [-3 * ALIKE / 4, 1, 5 * ALIKE / 2], [ALIKE / 2, 3 * ALIKE / 2, 1 + ALIKE]],
        k,
        F64,
    ),
}
ALIKE = Fraction(1, 2**54)


EVERYDAY = {*((name, 2) for name in ("six", "complex", "equal", "defective")), ("alike", 3)}


@pytest.mark.sampled(every=4)
@on_torch
@pytest.mark.parametrize(
    ("name", "terms"),
    everyday(itertools.product(MATRICES, (1, 2, 3, 4)), EVERYDAY),
)
def test_residuals(name: str, terms: int) -> None:
    a = MATRICES[name](terms)
    w, v = torch.linalg.eig(a)
    assert excess(a, w, v) <= 1


@on_torch
@pytest.mark.parametrize(
    ("dtype", "terms"), everyday([(F32, 2), (F32, 4), (F32, 1), (BF16, 2)], [(F32, 2)])
)  # fmt: skip
def test_narrow_formats(dtype: torch.dtype, terms: int) -> None:
    a = mcf.MCFTensor(uniform(dtype, terms, 5, 5))
    assert excess(a, *torch.linalg.eig(a)) <= 1


@on_torch
@pytest.mark.parametrize("terms", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_the_schur_form_in_expansions(terms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where corrections do not converge."""
    monkeypatch.setattr(eigen, "_refined", lambda *given: None)
    for a in (mcf.MCFTensor(uniform(F64, terms, 3, 3)), MATRICES["defective"](terms)[:3, :3]):
        assert excess(a, *torch.linalg.eig(a)) <= 1


@on_torch
def test_a_start_without_corrections_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: the vectors of the float64 Schur form, and no look at residuals."""
    monkeypatch.setattr(eigen, "_refined", lambda a, v, unit: eigen._normalised(v))
    monkeypatch.setattr(eigen, "_residuals", lambda a, w, v: torch.zeros(a.shape[0]))
    a = mcf.MCFTensor(uniform(F64, 2, 5, 5))
    assert excess(a, *torch.linalg.eig(a)) > 1000


@on_torch
def test_residuals_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """What corrections leave is not given out: the same start with a look at residuals."""
    monkeypatch.setattr(eigen, "_refined", lambda a, v, unit: eigen._normalised(v))
    a = mcf.MCFTensor(uniform(F64, 2, 2, 2))
    assert excess(a, *torch.linalg.eig(a)) <= 1


@on_torch
def test_real_matrices_have_pairs() -> None:
    """Real eigenvalues with real vectors, conjugates to the last bit."""
    a = mcf.MCFTensor(uniform(F64, 2, 5, 5))
    w, v = torch.linalg.eig(a)
    assert w.shape[0] % 2 == int((w.imag == 0).sum()) % 2
    for k in range(5):
        others = [j for j in range(5) if bool(w[j] == torch.conj(w[k]))]
        assert len(others) == 1
        assert bool((v[:, others[0]] == torch.conj(v[:, k])).all())
    found = torch.linalg.eigvals(mcf.tensor([[0, 1], [-2, -3]], 2, F64))
    assert sorted(found.tolist(), key=lambda z: z.real) == [-2, -1]
    assert bool((found.imag == 0).all())


@pytest.mark.slow
@on_torch
def test_values_are_those_of_torch() -> None:
    a = bell((2, 4, 4))
    ours = torch.linalg.eigvals(mcf.tensor(a, 2, F64)).to_plain()
    theirs = torch.linalg.eigvals(a)
    assert ours.shape == (2, 4)
    for mine, want in zip(ours, theirs, strict=True):
        assert ((mine[:, None] - want).abs().amin(1) < 1e-12).all()


@on_torch
@pytest.mark.parametrize("kind", ["real", pytest.param("complex", marks=pytest.mark.slow)])
def test_derivatives(kind: str) -> None:
    """Of a loss that knows no phase; 2^-30 leaves room for the condition of torch's results."""
    a = bell((3, 3)) if kind == "real" else torch.complex(bell((3, 3)), bell((3, 3), 1))
    z = (mcf.tensor if kind == "real" else mcf.complex_tensor)(a, 2, F64)
    weights = bell((3, 3), 2)

    def loss(w: Any, v: Any) -> Any:
        # The sum over all pairs does not know of their order.
        return (abs(w) ** 3).sum() + ((abs(v) ** 4).sum(1) * weights_of(v)).sum()

    def weights_of(v: Any) -> Any:
        held = isinstance(v, mcf.MCFComplexTensor)
        return mcf.tensor(weights[0], 2, F64) if held else weights[0]

    a.requires_grad_()
    z.requires_grad_()
    loss(*torch.linalg.eig(a)).backward()
    loss(*torch.linalg.eig(z)).backward()
    assert torch.allclose(z.grad.to_plain(), a.grad, rtol=2.0**-30, atol=2.0**-30)


@pytest.mark.slow
def test_bits_are_those_of_every_executor() -> None:
    a = mcf.MCFTensor(uniform(F64, 2, 4, 4))
    with mcf.executor("torch"):
        want = torch.linalg.eig(a)
    found = torch.linalg.eig(a)
    for x, y in zip(found, want, strict=True):
        for p, q in ((x.real, y.real), (x.imag, y.imag)):
            assert all(map(torch.equal, p.components, q.components))


@on_torch
def test_what_is_refused() -> None:
    x = mcf.MCFTensor(uniform(F64, 2, 2, 3))
    for a in (x, mcf.complex(x, x)):
        with pytest.raises(RuntimeError, match="square matrices"):
            torch.linalg.eig(a)
    with pytest.raises(RuntimeError, match="square matrices"):
        torch.linalg.inv(mcf.complex(x, x))
    with pytest.raises(torch.linalg.LinAlgError, match="non-finite"):
        torch.linalg.eigvals(mcf.tensor([[1.0, float("nan")], [0, 1]]))
    w, v = torch.linalg.eig(mcf.zeros(2, 0, 0))
    assert (w.shape, v.shape) == ((2, 0), (2, 0, 0))


@pytest.mark.slow
@on_torch
@pytest.mark.parametrize("terms", [1, 2, 3, 4])
def test_eigenvalues_of_every_distance(terms: int) -> None:
    """Apart, alike in float64, alike in all components: each of them converges."""
    for k in range(20, 53 * terms + 20, 13):
        d = Fraction(1, 2**k)
        rows = [[1, d, 0], [-3 * d / 4, 1, 5 * d / 2], [d / 2, 3 * d / 2, 1 + d]]
        nearly_defective = [[1 + d, -1], [d * d / 3, 1]]
        for a in (mcf.tensor(rows, terms, F64), mcf.tensor(nearly_defective, terms, F64)):
            assert excess(a, *torch.linalg.eig(a)) <= 1, k
