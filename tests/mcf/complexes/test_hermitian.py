"""Eigenvectors and singular vectors of complex matrices against exact arithmetic.

Integers in units of 2^-2000 and less: nothing of a residual is rounded. Bounds are those of
docs/numerics.md, Singular vectors: of `eigh` 64 n u^terms of the residual and 32 n u^terms of what
vectors lack of orthonormal ones, of `svd` 160 k u^terms. Found are one to four n u^terms.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import mcf
from mcf.kernels import operations
from mcf.kernels.formats import format_of
from mcf.kernels.rotation import rotations as declaration
from mcf.linalg import orthogonal_rows, spectral
from mcf.linalg.number_kinds import COMPLEX, halves
from mcf.linalg.parts import Components, each, padded
from tests.helpers.everyday import everyday
from tests.helpers.matrices import ONE, exact, graded, uniform
from tests.mcf.linalg.test_loops import assert_same_bits

F64 = torch.float64
Exact = tuple[Any, Any]


def both(x: Components) -> Exact:
    """Real and imaginary parts, exactly."""
    real, imag = halves(x)
    return exact(real), exact(imag)


def adjoint(x: Exact) -> Exact:
    return x[0].T, -x[1].T


def times(x: Exact, y: Exact) -> Exact:
    return x[0] @ y[0] - x[1] @ y[1], x[0] @ y[1] + x[1] @ y[0]


def size(x: Exact) -> int:
    """The square of the Frobenius norm."""
    return int((x[0] * x[0]).sum() + (x[1] * x[1]).sum())


def at_most(error: Exact, scale: Exact, limit: int, x: Components) -> None:
    """|error| <= limit u^terms |scale|, both in the same units."""
    allowed = limit * format_of(x[0].dtype).u ** (len(x) // 2)
    found, most = size(error) * allowed.denominator**2, size(scale) * allowed.numerator**2
    assert found <= most, f"{float(found // max(most, 1)) ** 0.5:.1f} times the bound"


def orthonormal(v: Components, limit: int) -> None:
    w = both(v)
    n = w[0].shape[1]
    eye = np.eye(n, dtype=object) * ONE * ONE
    gram = times(adjoint(w), w)
    at_most((gram[0] - eye, gram[1]), (eye, 0 * eye), limit * n, v)


def eigh_errors(a: Components) -> None:
    values, vectors, done = spectral.eigh(a, numbers=COMPLEX)
    assert bool(done)
    whole, v, w = both(COMPLEX.of_triangle(a, upper=False)), both(vectors), exact(values)
    n, av = len(w), times(whole, v)
    scale = whole[0] * ONE, whole[1] * ONE
    at_most((av[0] - v[0] * w, av[1] - v[1] * w), scale, 64 * n, a)
    orthonormal(vectors, 32)
    assert (np.diff(w) >= 0).all()


def svd_errors(a: Components, full: bool = False) -> None:
    u, values, vh, done = spectral.svd(a, full, numbers=COMPLEX)
    assert bool(done)
    assert u is not None
    assert vh is not None
    whole, s, k = both(a), exact(values), min(a[0].shape)
    scale = whole[0] * ONE, whole[1] * ONE
    for given, one, other in (
        (whole, u, COMPLEX.adjoint(vh)),
        (adjoint(whole), COMPLEX.adjoint(vh), u),
    ):
        left, right = both(one), both(other)
        product = times(given, tuple(p[:, :k] for p in right))  # type: ignore[arg-type]
        error = tuple(p - q[:, :k] * s for p, q in zip(product, left, strict=True))
        at_most(error, (scale if one is u else adjoint(scale)), 160 * k, a)  # type: ignore[arg-type]
        orthonormal(one, 160)
    assert (s >= 0).all()
    assert (np.diff(s) <= 0).all()


def general(terms: int, *shape: int, dtype: torch.dtype = F64) -> Components:
    real, imag = (uniform(dtype, terms, *shape, seed=k) for k in (0, 100))
    return (*real, *imag)


def hermitian(x: Components) -> Components:
    return COMPLEX.of_triangle(x, upper=False)


def real(x: torch.Tensor, terms: int) -> Components:
    found = padded((x.double(),), terms)
    return (*found, *each(torch.zeros_like, found))


def with_values(terms: int, values: list[float], below: int = 0) -> Components:
    """A Hermitian matrix near V diag(w) V^H; `below` puts w on the scale 2^-below beside 1."""
    n = len(values)
    _, v, _ = spectral.eigh(general(terms, n, n), numbers=COMPLEX)
    w = torch.tensor(values, dtype=F64)
    spread = operations.renormalize((torch.ones(n, dtype=F64), w * 2.0**-below), terms)
    factor = spread if below else padded((w,), terms)
    x = COMPLEX.by_parts(lambda p: operations.mul(p, factor), v)
    return hermitian(COMPLEX.matmul(x, COMPLEX.adjoint(v)))


def near_identity(terms: int, scale: float = 1.0) -> Components:
    """Norms too close for corrections at once."""
    x = general(1, 3, 3)
    apart = [c * (scale * 2.0 ** (8 - 53 * terms)) for c in x]
    eye = torch.eye(3, dtype=F64)
    parts = [(eye, apart[0]), (torch.zeros_like(eye), apart[1])]
    return tuple(c for p in parts for c in operations.renormalize(p, terms))


def graded_rows(terms: int, n: int) -> Components:
    x = graded(terms, n)
    return (*x, *each(lambda c: c.flip(1).contiguous(), x))


# By the number of components.
HERMITIAN: dict[str, Callable[[int], Components]] = {
    "one": lambda k: general(k, 1, 1),
    "two": lambda k: general(k, 2, 2),
    "odd": lambda k: general(k, 5, 5),
    "zero": lambda k: real(torch.zeros(4, 4), k),
    "identity": lambda k: real(torch.eye(5) * 3, k),
    "diagonal": lambda k: real(torch.diag(torch.tensor([3.0, -1.0, 2.0, -3.0])), k),
    "rank_one": lambda k: hermitian(
        COMPLEX.matmul(general(k, 5, 1), COMPLEX.adjoint(general(k, 5, 1)))
    ),
    "equal": lambda k: with_values(k, [1, 1, 1, -2, -2, 0]),
    "cluster": lambda k: with_values(k, [0, 1, 2, 4], below=70),
    "two_clusters": lambda k: with_values(k, [1, 1 + 2.0**-40, 1 + 2.0**-30, -1, -1 - 2.0**-45, 5]),
    "near_identity": near_identity,
    "nearer_identity": lambda k: near_identity(k, 2.0**-5),
    "graded": lambda k: graded_rows(k, 5),
}


@pytest.mark.parametrize(
    ("name", "terms"),
    everyday(itertools.product(HERMITIAN, (1, 2, 3, 4)), [("equal", 2), ("zero", 2)]),
)
def test_eigenvectors(name: str, terms: int) -> None:
    with mcf.executor("torch"):
        eigh_errors(HERMITIAN[name](terms))


GENERAL: dict[str, Callable[[int], Components]] = {
    "one": lambda k: general(k, 1, 1),
    "row": lambda k: general(k, 1, 4),
    "tall": lambda k: general(k, 9, 3),
    "wide": lambda k: general(k, 4, 5),
    "square": lambda k: general(k, 5, 5),
    "zero": lambda k: real(torch.zeros(4, 3), k),
    "identity": lambda k: real(torch.eye(5), k),
    "rank_one": lambda k: COMPLEX.matmul(general(k, 5, 1), general(k, 1, 5)),
    "rank_two": lambda k: COMPLEX.matmul(general(k, 5, 2), general(k, 2, 4)),
    "near_identity": near_identity,
    "graded": lambda k: graded_rows(k, 5),
}


@pytest.mark.parametrize(
    ("name", "terms"), everyday(itertools.product(GENERAL, (1, 2, 3, 4)), [("rank_two", 2)])
)
def test_singular_vectors(name: str, terms: int) -> None:
    with mcf.executor("torch"):
        svd_errors(GENERAL[name](terms), full=name in ("row", "tall", "zero", "rank_two"))


@pytest.mark.slow
@pytest.mark.parametrize("terms", [1, 2, 4])
def test_float32(terms: int) -> None:
    """In two components of float64, rounded once."""
    with mcf.executor("torch"):
        eigh_errors(hermitian(general(terms, 4, 4, dtype=torch.float32)))
        svd_errors(general(terms, 4, 3, dtype=torch.float32))


@pytest.mark.parametrize(
    ("terms", "shape"),
    everyday(
        [
            (1, (2, 3, 3)),
            *[
                (k, s)
                for k in (1, 2, 3, 4)
                for s in ((2, 2, 1), (2, 3, 3), (1, 9, 14))
                if (k, s) != (1, (2, 3, 3))
            ],
        ],
        [(1, (2, 3, 3))],
    ),
)
def test_loops_of_sweeps_have_the_bits_of_torch(terms: int, shape: tuple[int, ...]) -> None:
    """Even and odd numbers of rows and of columns, and columns that only follow."""
    a = general(terms, *shape)
    tolerance = 2.0 ** (4 - 53 * terms)
    for width in sorted({shape[2], max(1, shape[2] - 3)}):
        assert_same_bits(lambda w=width: orthogonal_rows.orthogonalize(a, w, tolerance, COMPLEX))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "terms"),
    [
        (name, k)
        for name in ("square", "rank_two", "near_identity", "tall", "zero", "large")
        for k in ((2,) if name == "large" else (1, 2, 3, 4))
    ],
)
def test_loops_of_corrections_have_the_bits_of_torch(name: str, terms: int) -> None:
    """Also of matrices that rotations in expansions finish."""
    a = general(2, 33, 33) if name == "large" else GENERAL[name](terms)
    assert_same_bits(lambda: spectral.svd(a, numbers=COMPLEX))
    if a[0].shape[0] == a[0].shape[1]:
        assert_same_bits(lambda: spectral.eigh(a, numbers=COMPLEX))


SPECIAL = [
    [[0.0, -0.0], [0.0, 0.0]],
    [[1.0, 1.0], [1.0, 1.0]],
    [[2.0**-251, 0.0], [1.0, 2.0**-300]],
    [[1.0, 2.0], [torch.nan, -2.0]],
    [[torch.inf, 2.0], [1.0, -2.0]],
]


@pytest.mark.parametrize(
    "rows", SPECIAL, ids=["zeros", "parallel", "vanishing", "not_a_number", "infinite"]
)
def test_special_values(rows: list[list[float]]) -> None:
    part = torch.tensor(rows, dtype=F64)[None]
    for a in ((part, torch.zeros_like(part)), (torch.zeros_like(part), part), (part, part)):
        assert_same_bits(lambda a=a: orthogonal_rows.orthogonalize(a, 2, 2.0**-49, COMPLEX))


@pytest.mark.slow
def test_a_matrix_of_a_batch_has_the_bits_that_it_has_alone() -> None:
    some = [near_identity(2), hermitian(general(2, 3, 3)), real(torch.eye(3), 2)]
    batch = tuple(torch.stack(c) for c in zip(*some, strict=True))
    with mcf.executor("torch"):
        for decompose in (spectral.eigh, spectral.svd):
            together = [x for x in decompose(batch, numbers=COMPLEX) if isinstance(x, tuple)]
            for i, a in enumerate(some):
                alone = [x for x in decompose(a, numbers=COMPLEX) if isinstance(x, tuple)]
                for x, y in zip(together, alone, strict=True):
                    assert all(torch.equal(c[i], d) for c, d in zip(x, y, strict=True))


def test_one_triangle_is_read_and_the_real_part_of_the_diagonal() -> None:
    a = hermitian(general(2, 2, 2))
    strict = torch.ones(2, 2).triu(1) > 0
    spoilt = each(lambda c: torch.where(strict, torch.nan, c), a)
    for c in spoilt[2:]:
        c.diagonal().fill_(7.0)
    with mcf.executor("torch"):
        wanted = spectral.eigh(a, numbers=COMPLEX)[1]
        other = COMPLEX.adjoint(spoilt)
        for given, upper in ((spoilt, False), (other, True)):
            found = spectral.eigh(given, upper, COMPLEX)[1]
            assert all(torch.equal(c, d) for c, d in zip(found, wanted, strict=True))


def test_what_is_not_finite_is_refused() -> None:
    z = mcf.complex(*(mcf.MCFTensor(p) for p in halves(general(2, 2, 2))))
    for bad, part in ((torch.nan, z.real), (torch.inf, z.imag)):
        part[1, 0] = bad
        for f in (torch.linalg.eigh, torch.linalg.svdvals):
            with (
                mcf.executor("torch"),
                pytest.raises(torch.linalg.LinAlgError, match="non-finite"),  # type: ignore[attr-defined]
            ):
                f(z)


def test_matrices_without_elements() -> None:
    for shape in ((0, 3), (0, 0), (2, 0, 3)):
        z = mcf.complex(*(mcf.zeros(*shape, terms=2, dtype=F64) for _ in range(2)))
        plain = torch.zeros(*shape, dtype=torch.complex128)
        for full in (True, False):
            found, wanted = (torch.linalg.svd(x, full_matrices=full) for x in (z, plain))
            assert [x.shape for x in found] == [x.shape for x in wanted]


def test_a_wrong_phase_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: a sine of expansions that is turned by conj(p) in place of p."""
    right = declaration(2, 2)

    x = general(2, 1, 2, 2)
    plain = orthogonal_rows._plain

    def mutated(algorithm: Any) -> Any:
        found = plain(algorithm)
        if algorithm is not right.rotation:
            return found
        return lambda a, b, g, t: found(a, b, COMPLEX.conj(g), t)

    with mcf.executor("torch"):
        assert bool(orthogonal_rows.orthogonalize(x, 2, 2.0**-102, COMPLEX)[1])
        monkeypatch.setattr(orthogonal_rows, "_plain", mutated)
        assert not bool(orthogonal_rows.orthogonalize(x, 2, 2.0**-102, COMPLEX)[1])


@pytest.mark.slow
def test_a_step_less_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant ends its corrections two squares too early."""
    early = {1: 2.0**-49, 4: 2.0**-150}
    monkeypatch.setattr(orthogonal_rows, "tolerance", early.__getitem__)
    monkeypatch.setattr(orthogonal_rows, "LIMITS", orthogonal_rows.LIMITS._replace(mixed=2**60))
    with mcf.executor("torch"), pytest.raises(AssertionError, match="times the bound") as found:
        eigh_errors(hermitian(general(4, 5, 5)))
    assert float(str(found.value).split()[0]) > 16


@pytest.mark.slow
def test_what_is_not_diagonal_is_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same mutant: what V^H A V has off its diagonal is looked at."""
    early = {1: 2.0**-49, 4: 2.0**-150}
    monkeypatch.setattr(orthogonal_rows, "tolerance", early.__getitem__)
    with mcf.executor("torch"):
        assert not bool(spectral.eigh(hermitian(general(4, 5, 5)), numbers=COMPLEX)[2])
