"""Eigenvalues, singular values and vectors of real and complex matrices against exact arithmetic.

Integers in units of 2^-2000 and less: nothing of a residual is rounded. Residuals of real matrices
and all vectors of `eigh` are within 32 n u^terms of the Frobenius norm, less than the docstrings
say; those of complex ones within the bounds of docs/numerics.md, 64 n and 160 n u^terms. Products
leave some tenths of n u^terms, rotations some n u^terms. `test_a_step_less_is_found_out` and
`test_a_wrong_phase_is_found_out` have the mutants.
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
from mcf.kernels.expansion_bounds import expansion_bound
from mcf.kernels.fold_bounds import fold_bound
from mcf.kernels.formats import FP64, format_of
from mcf.kernels.rotation import rotations as declaration
from mcf.linalg import orthogonal_rows, spectral
from mcf.linalg.number_kinds import COMPLEX, REAL, Real, halves
from mcf.linalg.parts import Components, each, part
from tests.helpers import assert_alike, assert_all_same_bits
from tests.helpers.everyday import everyday
from tests.helpers.matrices import ONE, exact, graded, plain, size, uniform
from tests.mcf.linalg.test_loops import assert_same_bits

pytestmark = pytest.mark.usefixtures("on_torch")

F64 = torch.float64
KINDS = pytest.mark.parametrize("numbers", [REAL, pytest.param(COMPLEX, marks=pytest.mark.slow)])


def whole_of(x: Components, numbers: Real) -> Any:
    """The exact matrix; [[X, -Y], [Y, X]] for X + iY, whose norms are those of X + iY, twice."""
    if numbers is REAL:
        return exact(x)
    real, imag = map(exact, halves(x))
    return np.block([[real, -imag], [imag, real]])


def at_most(error: Any, scale: Any, limit: int, x: Components, numbers: Real) -> None:
    """|error| <= limit u^terms |scale| in the Frobenius norm, both in the same units."""
    most = limit * format_of(x[0].dtype).u ** (len(x) // numbers.parts)
    found, allowed = size(error) * most.denominator**2, size(scale) * most.numerator**2
    assert found <= allowed, f"{float(found // max(allowed, 1)) ** 0.5:.1f} times the bound"


def orthonormal(v: Components, limit: int, numbers: Real) -> None:
    w = whole_of(v, numbers)
    eye = np.eye(w.shape[1], dtype=object) * ONE * ONE
    at_most(w.T @ w - eye, eye, limit * v[0].shape[1], v, numbers)


def eigh_errors(a: Components, numbers: Real = REAL) -> None:
    values, vectors, done = spectral.eigh(a, numbers=numbers)
    assert done
    whole = whole_of(numbers.of_triangle(a, upper=False), numbers)
    v, w = whole_of(vectors, numbers), exact(values)
    error = whole @ v - v * np.tile(w, numbers.parts)
    at_most(error, whole * ONE, 32 * numbers.parts * len(w), a, numbers)
    orthonormal(vectors, 32, numbers)
    assert (np.diff(w) >= 0).all()


def svd_errors(a: Components, full: bool = False, numbers: Real = REAL, limit: int = 0) -> None:
    """Check A V = U diag(s), and of complex matrices also A^H U = V diag(s)."""
    u, values, vh, done = spectral.svd(a, full, numbers=numbers)
    assert done
    assert u is not None
    assert vh is not None
    limit = limit or (32 if numbers is REAL else 160)
    v, s, k = numbers.adjoint(vh), exact(values), min(a[0].shape)
    sides = (a, u, v), (numbers.adjoint(a), v, u)
    for given, left, right in sides[: numbers.parts]:
        whole = whole_of(given, numbers)
        first, second = (whole_of(part(x, slice(None), slice(k)), numbers) for x in (left, right))
        error = whole @ second - first * np.tile(s, numbers.parts)
        at_most(error, whole * ONE, limit * k, a, numbers)
    for vectors in (u, v):
        orthonormal(vectors, limit, numbers)
        assert vectors[0].shape[1] == (vectors[0].shape[0] if full else k)
    assert (s >= 0).all()
    assert (np.diff(s) <= 0).all()


def general(numbers: Real, terms: int, *shape: int, dtype: torch.dtype = F64) -> Components:
    parts = (uniform(dtype, terms, *shape, seed=100 * k) for k in range(numbers.parts))
    return tuple(c for p in parts for c in p)


def hermitian(numbers: Real, x: Components) -> Components:
    return numbers.of_triangle(x, upper=False)


def real(numbers: Real, x: torch.Tensor, terms: int) -> Components:
    return numbers.of_real(plain(x.double(), terms))


def product(numbers: Real, terms: int, m: int, k: int, n: int) -> Components:
    return numbers.matmul(general(numbers, terms, m, k), general(numbers, terms, k, n))


def with_values(numbers: Real, terms: int, values: list[float], below: int = 0) -> Components:
    """A Hermitian matrix near V diag(w) V^H; `below` puts w on the scale 2^-below beside 1."""
    n = len(values)
    _, v, _ = spectral.eigh(general(numbers, terms, n, n), numbers=numbers)
    w = torch.tensor(values, dtype=F64)
    spread = operations.renormalize((torch.ones(n, dtype=F64), w * 2.0**-below), terms)
    factor = spread if below else plain(w, terms)
    x = numbers.by_parts(lambda p: operations.mul(p, factor), v)
    return hermitian(numbers, numbers.matmul(x, numbers.adjoint(v)))


def near_identity(numbers: Real, terms: int, scale: float = 1.0) -> Components:
    """Norms too close for corrections at once."""
    first = [torch.eye(3, dtype=F64), torch.zeros(3, 3, dtype=F64)]
    apart = [c * (scale * 2.0 ** (8 - 53 * terms)) for c in general(numbers, 1, 3, 3)]
    pairs = zip(first[: numbers.parts], apart, strict=True)
    return tuple(c for p in pairs for c in operations.renormalize(p, terms))


def graded_rows(numbers: Real, terms: int) -> Components:
    x = graded(terms, 9 - 2 * numbers.parts)
    return x if numbers is REAL else (*x, *each(lambda c: c.flip(1).contiguous(), x))


# By the arithmetic and the number of components.
Make = Callable[[Real, int], Components]
HERMITIAN: dict[str, Make] = {
    "one": lambda of, k: general(of, k, 1, 1),
    "two": lambda of, k: hermitian(of, general(of, k, 2, 2)),
    "odd": lambda of, k: hermitian(of, general(of, k, 5, 5)),
    "zero": lambda of, k: real(of, torch.zeros(4, 4), k),
    "identity": lambda of, k: real(of, torch.eye(5) * 3, k),
    "diagonal": lambda of, k: real(of, torch.diag(torch.tensor([3.0, -1.0, 2.0, -3.0])), k),
    "rank_one": lambda of, k: hermitian(
        of, of.matmul(general(of, k, 5, 1), of.adjoint(general(of, k, 5, 1)))
    ),
    "equal": lambda of, k: with_values(of, k, [1, 1, 1, -2, -2, 0]),
    "cluster": lambda of, k: with_values(of, k, [0, 1, 2, 4], below=70),
    "two_clusters": lambda of, k: with_values(
        of, k, [1, 1 + 2.0**-40, 1 + 2.0**-30, -1, -1 - 2.0**-45, 5]
    ),
    "near_identity": near_identity,
    "nearer_identity": lambda of, k: near_identity(of, k, 2.0**-5),
    "graded": lambda of, k: hermitian(of, graded_rows(of, k)),
}


def decided(numbers: Real, terms: int) -> Any:
    """The executor: reference kernels where loops take long to compile."""
    return mcf.executor("auto" if numbers is REAL and terms < 4 else "torch")


@pytest.mark.parametrize(
    ("name", "terms", "numbers"),
    everyday(
        itertools.product(HERMITIAN, (1, 2, 3, 4), (REAL, COMPLEX)),
        [("one", 2, REAL), ("odd", 4, REAL), ("equal", 2, COMPLEX), ("zero", 2, COMPLEX)],
    ),
)
def test_eigenvectors(name: str, terms: int, numbers: Real) -> None:
    with decided(numbers, terms):
        eigh_errors(HERMITIAN[name](numbers, terms), numbers)


@pytest.mark.parametrize(
    "shift",
    everyday([-108, -112, -110, -109, -107, -106, -104, -100], [-108]),
)
def test_loops_see_rows_that_are_not_apart(shift: int) -> None:
    """Found by a climb: the loop's look at the rows had lost its limit, 160 n u^2 were left."""
    found = []
    for first, other, last in ((-2008, 1278, 834), (1000, 3000, 1000), (7, -2047, 5)):
        some = torch.tensor([[first, other], [other, last]], dtype=F64) * 2.0**shift
        a = operations.renormalize((torch.eye(2, dtype=F64), some), 2)
        for executor in ("auto", "torch"):
            with mcf.executor(executor):
                eigh_errors(a)
                svd_errors(a)
                found.append(spectral.eigh(a)[:2])
        assert_all_same_bits(*([c for x in y for c in x] for y in found[-2:]))


GENERAL: dict[str, Make] = {
    "one": lambda of, k: general(of, k, 1, 1),
    "row": lambda of, k: general(of, k, 1, 4),
    "tall": lambda of, k: general(of, k, 9, 3),
    "wide": lambda of, k: general(of, k, 4, 5),
    "square": lambda of, k: general(of, k, 5, 5),
    "zero": lambda of, k: real(of, torch.zeros(4, 3), k),
    "identity": lambda of, k: real(of, torch.eye(5), k),
    "rank_one": lambda of, k: product(of, k, 5, 1, 5),
    "rank_two": lambda of, k: product(of, k, 5, 2, 4),
    "equal": HERMITIAN["equal"],
    "cluster": HERMITIAN["cluster"],
    "near_identity": near_identity,
    "graded": graded_rows,
}


@pytest.mark.parametrize(
    ("name", "terms", "numbers"),
    everyday(
        itertools.product(GENERAL, (1, 2, 3, 4), (REAL, COMPLEX)),
        lambda name, k, of: (
            k == (4 if name == "square" else 2)
            and name not in ("equal", "cluster")
            and (of is REAL or name == "rank_two")
        ),
    ),
)
def test_singular_vectors(name: str, terms: int, numbers: Real) -> None:
    full = name in ("row", "tall", "zero", "rank_two")
    with decided(numbers, terms):
        svd_errors(GENERAL[name](numbers, terms), full, numbers)


@pytest.mark.parametrize(
    ("dtype", "terms", "numbers"),
    everyday(
        [
            *itertools.product((torch.float32, torch.bfloat16, torch.float16), (1, 2), (REAL,)),
            (torch.float32, 4, REAL),
            *((torch.float32, k, COMPLEX) for k in (1, 2, 4)),
        ],
        lambda dtype, terms, of: of is REAL and terms > 1 and dtype is not torch.bfloat16,
    ),
)
def test_narrow_formats(dtype: torch.dtype, terms: int, numbers: Real) -> None:
    """They are computed in two components of float64, and rounded once."""
    eigh_errors(hermitian(numbers, general(numbers, terms, 5, 5, dtype=dtype)), numbers)
    svd_errors(general(numbers, terms, 5, 4, dtype=dtype), numbers=numbers)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "terms"),
    [
        (name, k)
        for name in ("square", "rank_two", "near_identity", "tall", "zero", "large")
        for k in ((2,) if name == "large" else (1, 2, 3, 4))
    ],
)
def test_loops_of_complex_corrections_have_the_bits_of_torch(name: str, terms: int) -> None:
    """Also of matrices that rotations in expansions finish."""
    a = general(COMPLEX, 2, 33, 33) if name == "large" else GENERAL[name](COMPLEX, terms)
    assert_same_bits(lambda: spectral.svd(a, numbers=COMPLEX), "auto")
    if a[0].shape[0] == a[0].shape[1]:
        assert_same_bits(lambda: spectral.eigh(a, numbers=COMPLEX), "auto")


@KINDS
def test_a_step_less_is_found_out(numbers: Real, monkeypatch: pytest.MonkeyPatch) -> None:
    """With four components products take the error from 2^-50 to 2^-98, 2^-190 and 2^-212.

    The look at V^H A V refuses it, and without that the residual shows it.
    """
    n = 9 - 2 * numbers.parts
    a = hermitian(numbers, general(numbers, 4, n, n))
    early = {1: 2.0**-49, 4: 2.0**-150}
    monkeypatch.setattr(orthogonal_rows, "tolerance", early.__getitem__)
    assert not spectral.eigh(a, numbers=numbers)[-1]
    monkeypatch.setattr(spectral, "unmixed", lambda *_: torch.tensor([True]))
    with pytest.raises(AssertionError, match="times the bound") as found:
        eigh_errors(a, numbers)
    assert float(str(found.value).split()[0]) > 16


def test_a_wrong_phase_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: a sine of expansions that is turned by conj(p) in place of p."""
    right = declaration(2, 2)
    x = general(COMPLEX, 2, 1, 2, 2)
    usual = orthogonal_rows._plain

    def mutated(algorithm: Any) -> Any:
        found = usual(algorithm)
        if algorithm is not right.rotation:
            return found
        return lambda a, b, g, t: found(a, b, COMPLEX.conj(g), t)

    assert bool(orthogonal_rows.orthogonalize(x, 2, 2.0**-102, COMPLEX)[1])
    monkeypatch.setattr(orthogonal_rows, "_plain", mutated)
    assert not bool(orthogonal_rows.orthogonalize(x, 2, 2.0**-102, COMPLEX)[1])


@KINDS
def test_a_matrix_of_a_batch_has_the_bits_that_it_has_alone(numbers: Real) -> None:
    """One converges by rotations, one by products, and one at once."""
    some = [near_identity(numbers, 2), hermitian(numbers, general(numbers, 2, 3, 3))]
    some.append(real(numbers, torch.eye(3), 2))
    batch = tuple(torch.stack(c) for c in zip(*some, strict=True))
    for decompose in (spectral.eigh, spectral.svd):
        together = [x for x in decompose(batch, numbers=numbers) if isinstance(x, tuple)]
        for i, a in enumerate(some):
            alone = [x for x in decompose(a, numbers=numbers) if isinstance(x, tuple)]
            for x, y in zip(together, alone, strict=True):
                assert all(torch.equal(c[i], d) for c, d in zip(x, y, strict=True))


def test_a_singular_matrix_leaves_the_others_of_its_batch_alone() -> None:
    """The basis that it lacks is completed and looked at; those of the others need neither."""
    rows = torch.tensor([[-6.0, 7, -1], [3, 3, 8], [-8, 6, -6]], dtype=torch.float64)
    batch = mcf.from_components((torch.stack([rows, 0 * rows]), torch.zeros(2, 3, 3).double()))
    both, alone = torch.linalg.svd(batch), torch.linalg.svd(batch[0])
    for x, y in zip(both, alone, strict=True):
        assert_alike(x[0], y, "svd")


def test_small_rows_of_a_singular_matrix_are_as_rotations_leave_them() -> None:
    rows = [[-8.0, 4, 2, 1], [-9, -5, 9, 1], [8, 2, -6, -1], [0, 0, 0, 0]]
    a = mcf.tensor(rows, dtype=F64)
    u, s, vt = torch.linalg.svd(a)
    assert ((u * s) @ vt - a).norm() < 160 * 4 * 2.0**-106 * a.norm()
    assert (vt @ vt.mT - torch.eye(4, dtype=F64)).norm() < 160 * 4 * 2.0**-106


def test_executors_have_the_same_bits() -> None:
    a = with_values(REAL, 2, [0, 1, 2], below=70)
    found = []
    for name in ("torch", "numba"):
        with mcf.executor(name):
            found.append((spectral.eigh(a)[1], spectral.svd(a)[0]))
    for x, y in zip(*found, strict=True):
        assert x is not None
        assert y is not None
        assert all(torch.equal(c, d) for c, d in zip(x, y, strict=True))


def test_powers_of_two_do_not_change_the_digits() -> None:
    a = hermitian(REAL, uniform(F64, 2, 4, 4))
    big = each(lambda c: c * 2.0**900, a)
    values, vectors, _ = spectral.eigh(a)
    others, same, _ = spectral.eigh(big)
    assert all(torch.equal(x, y) for x, y in zip(vectors, same, strict=True))
    assert all(torch.equal(x * 2.0**900, y) for x, y in zip(values, others, strict=True))


@pytest.mark.parametrize("numbers", [REAL, COMPLEX])
def test_one_triangle_is_read_and_the_real_part_of_the_diagonal(numbers: Real) -> None:
    n = 6 - 2 * numbers.parts
    a = hermitian(numbers, general(numbers, 2, n, n))
    strict = torch.ones(n, n).triu(1) > 0
    spoilt = each(lambda c: torch.where(strict, torch.nan, c), a)
    for c in spoilt[2:]:
        c.diagonal().fill_(7.0)
    wanted = spectral.eigh(a, numbers=numbers)[1]
    for given, upper in ((spoilt, False), (numbers.adjoint(spoilt), True)):
        found = spectral.eigh(given, upper, numbers)[1]
        assert all(torch.equal(c, d) for c, d in zip(found, wanted, strict=True))


def test_complex_numbers_that_are_not_finite_are_refused() -> None:
    z = mcf.complex(*(mcf.MCFTensor(p) for p in halves(general(COMPLEX, 2, 2, 2))))
    for bad, of_z in ((torch.nan, z.real), (torch.inf, z.imag)):
        of_z[1, 0] = bad
        for f in (torch.linalg.eigh, torch.linalg.svdvals):
            with pytest.raises(torch.linalg.LinAlgError, match="non-finite"):  # type: ignore[attr-defined]
                f(z)


@pytest.mark.parametrize("terms", everyday([2, 1, 3, 4], [2]))
def test_what_is_nearly_a_multiple_of_the_identity(terms: int) -> None:
    """Norms too close for corrections at once, which stopped there, up to 4 times the bound off."""
    below = 53 * terms - 8
    elements = torch.tensor([[-73.0, 20.0, 45.0], [91.0, -64.0, 8.0], [33.0, 77.0, 52.0]]) / 64
    for n in (2, 3) if terms > 2 else (2,):
        for scale in (1.0, 2.0):
            apart = elements[:n, :n].double() * (scale * 2.0**-below)
            eye = torch.eye(n, dtype=F64)
            x = operations.renormalize((eye, apart), terms)
            svd_errors(x)
            eigh_errors(hermitian(REAL, x))


def test_vectors_of_a_small_singular_value() -> None:
    """The iteration ends at cosines of 128 u^terms: 160 n u^terms, and 32 are not true."""
    rows = [[29108861, -36092795, 210482], [87118611, -109567744, 627438]]
    x = mcf.tensor(rows, terms=2, dtype=F64).components
    svd_errors(x, limit=160)
    with pytest.raises(AssertionError, match="times the bound"):
        svd_errors(x)


def test_a_small_row_is_orthogonal_to_a_large_one() -> None:
    """The mean of both numerators is small here, the rows' product was not: 1217 n u^2.

    The mean adds to it what W lacks in orthogonality times the large row's square.
    """
    rows = [[-4322, -2936, -7567, 11926], [5765, 3907, 10086, -15912]]
    x = mcf.tensor([*rows, [-21624, -14672, -37824, 59664]], terms=2, dtype=F64).components
    svd_errors(x)


def test_what_the_end_of_the_iteration_proves() -> None:
    """The figures of docs/numerics.md: with f, d and r of products, quotients and roots."""

    limits = orthogonal_rows.LIMITS

    def both(k: int, f: float, d: float, r: float) -> tuple[float, float]:
        off, own = 128 + f + d, f + 2 * r + d
        whole = k * (128 + f) + k**0.5 * f + d
        return whole / k, ((own**2 + (k - 1) * off**2) ** 0.5 + k**0.5 * (128 + 2 * f)) / k

    def of(operation: str, terms: int) -> float:
        return float(expansion_bound(operation, terms).relative(F64) / FP64.u**terms)

    pairs = of("div", 2), of("sqrt", 2)

    def turned(k: int, f: float, d: float, r: float) -> tuple[float, float]:
        """After rotations."""
        own, off, drift = limits.own * k + f, limits.off + f, limits.drift * k + k**0.5 * f
        cosine = ((f + 2 * r + d) ** 2 + (k - 1) * (limits.cosine + f + d) ** 2) ** 0.5
        first = own + (k - 1) * off + drift + d
        return first / k, (cosine + own + (k - 1) ** 0.5 * off + drift) / k

    def factored(k: int, f: float, after: bool) -> float:
        """Of what a factorisation Q R comes before; after rotations or corrections."""
        lost = orthogonal_rows.LOST * k + orthogonal_rows.MORE + k**0.5 * f
        own, off = limits.own * k + f, limits.off + f
        whole = own + (k - 1) * off if after else k * (128 + f)
        columns = own + (k - 1) ** 0.5 * off if after else k**0.5 * (128 + f)
        basis = ((k - 1) ** 0.5 + 1) * (orthogonal_rows.BASIS + f)
        return max(whole, columns + basis) / k + lost / k

    def fold(longer: int) -> float:
        return float(fold_bound(FP64, 2, longer, 1).absolute / FP64.u**2)

    for k in range(1, 49):
        for longer in range(k, 2 * k + 1):
            real, complex_ = fold(longer), 2**0.5 * fold(2 * longer)
            for ended, f, most in (
                (both, real, (266, 303)),
                (turned, real, (241, 234)),
                (both, complex_, (440, 366)),
                (turned, complex_, (414, 295)),
            ):
                assert all(x < m for x, m in zip(ended(k, f, *pairs), most, strict=True))
    for terms in (2, 3, 4):
        d, r = of("div", terms), of("sqrt", terms)
        for k in range(2, 300):
            first, second = both(k, 3, d, r)
            assert first < 160
            assert second < (160 if k > 2 else 170)
            first, second = both(k, 3 * 2**0.5, d, r)
            assert first < 160
            assert second < (160 if k > 2 else 173)
            assert max(factored(k, f, after) for f in (3, 4.25) for after in (False, True)) < 160
            assert max(turned(k, 3, d, r) + turned(k, 3 * 2**0.5, d, r)) < 124
            f = 3 * 2**0.5
            for cosine, vectors, values in ((16, 56, 160), (limits.cosine, 104, 208)):
                own, off = f + 2 * r + 2 * d, cosine + f + 2 * d
                lacking = (own**2 + (k - 1) * off**2) ** 0.5 * k**-0.5
                assert lacking < vectors
                assert limits.mixed + 2 * f + lacking < values
