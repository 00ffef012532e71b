"""Factorisations of complex expansions: residuals in exact arithmetic, clusters, derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch

import mcf
from tests.helpers.complexes import BITS, numbers
from tests.helpers.everyday import everyday

pytestmark = pytest.mark.usefixtures("on_torch")
F64, F32 = torch.float64, torch.float32
linalg = torch.linalg
LinAlgError = linalg.LinAlgError  # type: ignore[attr-defined]


def exact(z: Any) -> Any:
    """A matrix as mpmath's, exactly."""
    return mpmath.matrix(z.to_mpmath())


def size(m: Any) -> Any:
    """The Frobenius norm."""
    return mpmath.sqrt(mpmath.fsum(abs(v) ** 2 for v in m))


def off(m: Any, *factors: Any) -> float:
    """|A - F G ...| / |A|, all of them exact."""
    with mpmath.workprec(BITS):
        whole = exact(factors[0])
        for f in factors[1:]:
            whole = whole * exact(f)
        a = exact(m)
        return float(size(a - whole) / size(a))


def skew(v: Any) -> float:
    """|V^H V - I|."""
    with mpmath.workprec(BITS):
        e = exact(v)
        return float(size(e.transpose_conj() * e - mpmath.eye(v.shape[-1])))


def unit(z: Any) -> float:
    return float(2.0 ** (-{F64: 53, F32: 24}[z.dtype] * z.terms))


def lossy(z: Any) -> Any:
    """Mutant: a result whose last component is lost."""
    return z.to(z.dtype, terms=z.terms - 1)


FACTORS: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "lu": lambda a: tuple(linalg.lu(a)),
    "qr": lambda a: tuple(linalg.qr(a)),
    "qr complete": lambda a: tuple(linalg.qr(a, "complete")),
    "svd": lambda a: (lambda u, s, vh: (u * s, vh))(*linalg.svd(a, full_matrices=False)),
}


# What reference kernels take half a minute for is run by hand.
@pytest.mark.parametrize("name", everyday(FACTORS, ["qr"]))
@pytest.mark.parametrize(
    ("dtype", "terms"),
    everyday([(F64, 2), (F64, 3), (F32, 2)], [(F64, 2)]),
)
def test_factors(name: str, dtype: torch.dtype, terms: int) -> None:
    for shape in ((5, 3), (3, 5))[: 1 + (terms > 2)]:
        a = numbers(dtype, terms, *shape)
        factors = FACTORS[name](a)
        limit = 64 * 5 * unit(a)
        assert off(a, *factors) <= limit
        assert off(a, *factors[:-1], lossy(factors[-1])) > limit
        if "qr" in name:
            assert skew(factors[0]) <= limit


@pytest.mark.slow
def test_many_columns_are_panels() -> None:
    a = numbers(F64, 2, 20, 20)
    assert off(a, *linalg.lu(a)) <= 64 * 20 * unit(a)
    x = linalg.lu_solve(*linalg.lu_factor(a), a[:, :1])
    assert float(abs(x[0, 0] - 1)) < 1e-27


def test_determinants_and_systems() -> None:
    """To the condition of small matrices, against mpmath; a batch is its matrices."""
    a, b = numbers(F64, 2, 2, 3, 3), numbers(F64, 2, 2, 3, 2, seed=1)
    found = linalg.det(a)
    sign, log = linalg.slogdet(a)
    factors = linalg.lu_factor(a)
    for k in range(2):
        with mpmath.workprec(BITS):
            want = mpmath.det(exact(a[k]))
            assert abs(found[k].to_mpmath() - want) <= 2.0**-98 * abs(want)
            assert abs(sign[k].to_mpmath() - want / abs(want)) <= 2.0**-98
            assert abs(log[k].to_mpmath() - mpmath.log(abs(want))) <= 2.0**-98
            ours = (linalg.lu_solve(*factors, b)[k], linalg.solve(a, b)[k])
            want = exact(a[k]) ** -1 * exact(b[k])
            assert all(size(exact(x) - want) <= 2.0**-95 * size(want) for x in ours)
    zero = mcf.complex(torch.zeros(2, 2, dtype=F64), mcf.tensor([[1, 1], [1, 1]], 2, F64))
    assert linalg.det(zero).item() == 0
    assert linalg.slogdet(zero).logabsdet.item() == -math.inf
    with pytest.raises(LinAlgError, match="singular"):
        linalg.solve(zero, zero)


@pytest.mark.slow
def test_systems_of_factors_from_either_side() -> None:
    a, b = numbers(F64, 2, 2, 4, 4), numbers(F64, 2, 2, 4, 3, seed=1)
    factors = linalg.lu_factor(a)
    t, right = a.to_plain(), b.to_plain()
    plain = linalg.lu_factor(t)
    for left, adjoint in ((True, True), (False, False), (False, True)):
        given = (b, right) if left else (b.mT, right.mT)
        ours = linalg.lu_solve(*factors, given[0], left=left, adjoint=adjoint).to_plain()
        assert torch.allclose(ours, linalg.lu_solve(*plain, given[1], left=left, adjoint=adjoint))


def test_cholesky() -> None:
    root = numbers(F64, 2, 6, 6)
    a = root @ root.mH
    low, up = linalg.cholesky(a), linalg.cholesky(a, upper=True)
    limit = 64 * 6 * unit(a)
    # The product itself is rounded.
    assert max(off(a, low, low.mH), off(a, up.mH, up)) <= limit
    assert off(a, lossy(low), low.mH) > limit
    assert bool((torch.diagonal(low).imag == 0).all())
    assert bool((torch.triu(low, 1) == 0).all())
    with pytest.raises(LinAlgError, match="not positive-definite"):
        linalg.cholesky(a - 100 * torch.eye(6, dtype=F64))


VALUES = {
    "distinct": [1, 2, 3, 5],
    "repeated": [1, 1, 1, 2],
    "equal": [2, 2, 2, 2],
    "near": [1, 1 + 2.0**-100, 1 + 2.0**-80, 1 + 2.0**-40],
    "deficient": [0, 0, 1, 1],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", everyday(VALUES, ["repeated"]))
def test_clusters_of_eigenvalues_and_singular_values(name: str) -> None:
    q, p = (linalg.qr(numbers(F64, 2, 4, 4, seed=k)).Q for k in (1, 2))
    values = mcf.tensor(VALUES[name][:1] * 4, 2, F64) * 0 + mcf.tensor(VALUES[name], 2, F64)
    h = (q * values) @ q.mH
    h = (h + h.mH) * 0.5
    limit = 64 * 4 * unit(h)
    w, v = linalg.eigh(h)
    assert bool((w[1:] >= w[:-1]).all())
    assert skew(v) <= limit
    assert off(h, v * w, v.mH) <= 2 * limit
    assert float(abs(w - values).max()) <= 2 * limit
    g = (q * values) @ p.mH
    u, s, vh = linalg.svd(g)
    assert max(skew(u), skew(vh.mH)) <= limit
    assert off(g, u * s, vh) <= 2 * limit
    assert float(abs(s.flip(0) - values).max()) <= 2 * limit


@pytest.mark.slow
def test_null_and_tiny_matrices() -> None:
    for a in (numbers(F64, 2, 4, 3) * 0.0, numbers(F64, 2, 4, 3, exponent=-900)):
        u, s, vh = linalg.svd(a)
        assert max(skew(u), skew(vh.mH)) <= 64 * 4 * unit(a)
        assert float(abs((u[:, :3] * s) @ vh - a).max()) <= 2.0**-990
        assert skew(linalg.qr(a).Q) <= 64 * 4 * unit(a)


DERIVATIVES: dict[str, Callable[[Any], Any]] = {
    "det": lambda z: linalg.det(z),
    "slogdet": lambda z: tuple(linalg.slogdet(z)),
    "lu": lambda z: tuple(linalg.lu(z))[1:],
    "lu_factor": lambda z: linalg.lu_factor(z)[0],
    "cholesky": lambda z: linalg.cholesky(z @ z.mH),
    "cholesky upper": lambda z: linalg.cholesky(z @ z.mH, upper=True),
    "triangular": lambda z: linalg.solve_triangular(z, z.mT, upper=True),
    "eigvalsh": lambda z: linalg.eigvalsh(z + z.mH),
    # What does not depend on the phases of vectors, which are nobody's choice.
    "eigh": lambda z: (lambda w, v: (w, abs(v) ** 2, v[:, :1] @ v[:, :1].mH))(
        *linalg.eigh(z + z.mH)
    ),
    "svd": lambda z: (lambda u, s, vh: (s, abs(u) ** 2, u[:, :2] @ vh[:2]))(
        *linalg.svd(z, full_matrices=False)
    ),
    "svd wide": lambda z: (lambda u, s, vh: (s, abs(vh) ** 2))(
        *linalg.svd(z[:2], full_matrices=False)
    ),
    "qr": lambda z: (lambda q, r: (abs(q) ** 2, abs(r) ** 2, q[:, :1] @ r[:1]))(
        *linalg.qr(z[:, :2])
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", everyday(DERIVATIVES, ["det", "slogdet", "cholesky", "eigh"]))
def test_derivatives_are_those_of_torch(name: str) -> None:
    """In float64; 2^-36 leaves room for torch's own errors, times the condition."""
    t = numbers(F64, 2, 3, 3, seed=5).to_plain().requires_grad_()
    z = mcf.complex_tensor(t.detach(), 2, F64, requires_grad=True)
    losses: list[Any] = []
    for given in (t, z):
        found = DERIVATIVES[name](given)
        loss: Any = 0
        for k, x in enumerate(found if isinstance(found, tuple) else (found,)):
            g = torch.arange(1.0, 1 + math.prod(x.shape), dtype=F64).reshape(x.shape) % 5 + k
            loss = loss + (x.real * g).sum() + ((x.imag * (g - 2)).sum() if x.is_complex() else 0)
        loss.backward()
        losses.append(loss)
    assert torch.allclose(z.grad.to_plain(), t.grad, rtol=2.0**-36, atol=2.0**-36)


def test_what_is_refused() -> None:
    a = numbers(F64, 2, 2, 3)
    for function in (linalg.det, linalg.slogdet, linalg.cholesky, linalg.eigh):
        with pytest.raises(RuntimeError, match=r"square matrices|batches"):
            function(a)
    with pytest.raises(RuntimeError, match="Incompatible shapes"):
        linalg.solve_triangular(a[:, :2], a.mT, upper=True)
    with pytest.raises(RuntimeError, match="unrecognized mode 'all'"):
        linalg.qr(a, "all")
    with pytest.raises(LinAlgError, match="non-finite"):
        linalg.svd(a / 0)
    with pytest.raises(mcf.UnsupportedError, match="square matrices"):
        linalg.lu_factor(a.requires_grad_())[0].real.sum().backward()
