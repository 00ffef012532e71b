"""Products, factors and functions of complex matrices: exact residuals and values, derivatives.

Running products are compared with exact products of fractions, derivatives with those of torch in
complex128. Caught mutants: an odd last element of a running product left out; a product of pairs
used one pair late; the variance of the imaginary parts forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import pytest
import torch

import mcf
from mcf.linalg import matrix_exponential
from tests.helpers.complexes import BITS, agrees_with_torch, numbers
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


@pytest.mark.slow
def test_null_and_tiny_matrices() -> None:
    for a in (numbers(F64, 2, 4, 3) * 0.0, numbers(F64, 2, 4, 3, exponent=-900)):
        u, s, vh = linalg.svd(a)
        assert max(skew(u), skew(vh.mH)) <= 64 * 4 * unit(a)
        assert float(abs((u[:, :3] * s) @ vh - a).max()) <= 2.0**-990
        assert skew(linalg.qr(a).Q) <= 64 * 4 * unit(a)


def gaussian(*shape: int, seed: int = 0, terms: int = 2, most: int = 9) -> Any:
    """Gaussian integers."""
    g = torch.Generator().manual_seed(seed)
    real, imag = (torch.randint(-most, most + 1, shape, generator=g).double() for _ in range(2))
    zeros = [[torch.zeros_like(real) for _ in range(terms - 1)] for _ in range(2)]
    return mcf.complex(mcf.MCFTensor((real, *zeros[0])), mcf.MCFTensor((imag, *zeros[1])))


def error(found: Any, wanted: Any) -> float:
    """|R - T| / |T|, T of mpmath."""
    with mpmath.workprec(BITS):
        return float(size(exact(found) - wanted) / size(wanted))


def test_powers_of_gaussian_integers_are_exact() -> None:
    a = gaussian(3, 3, seed=3)
    with mpmath.workprec(BITS):
        for n in (0, 1, 5, 12):
            assert error(linalg.matrix_power(a, n), exact(a) ** n) == 0
        inverse = linalg.matrix_power(a, -2)
        assert error(inverse, exact(a) ** -2) <= 2.0**-95
        assert error(linalg.multi_dot([a, a, a[:, 0]]), exact(a) ** 2 * exact(a[:, :1])) == 0
    with pytest.raises(TypeError, match="n must be an int"):
        a.matrix_power(0.5)


@pytest.mark.parametrize("terms", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_exponentials_of_nilpotent_matrices(terms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """I + N + N^2 / 2 + N^3 / 6; n (1 + |N|) u^terms e^|N| is an eighth of what is allowed."""
    n = 4
    a = torch.triu(gaussian(n, n, terms=terms, most=2), 1)
    with mpmath.workprec(BITS):
        m = exact(a)
        wanted = mpmath.eye(n) + m + m**2 / 2 + m**3 / 6
        norm = mpmath.mnorm(m, 1)
        limit = 8 * n * (1 + norm) * mpmath.exp(norm) * unit(a)

        def far(found: Any, factor: Any = 1) -> bool:
            return bool(mpmath.mnorm(exact(found) / factor - wanted, 1) > limit)

        found = linalg.matrix_exp(torch.stack([a, a * 0.0]))
        assert not far(found[0])
        assert error(found[1], mpmath.eye(n)) == 0
        assert far(lossy(found[0]))
        one = torch.eye(n, dtype=F64)
        assert not far(linalg.matrix_exp(a + one), mpmath.e)
        # The mutant: a polynomial of degree 9 in the place of 30.
        monkeypatch.setattr(matrix_exponential, "degree", lambda terms: (3, 3))
        assert far(linalg.matrix_exp(a + one), mpmath.e)


@pytest.mark.slow
def test_pseudoinverses_and_ranks() -> None:
    """Pseudoinverses of full and deficient rank: A P A = A, P A P = P, both products Hermitian."""
    for a, rank in (
        (gaussian(5, 3, seed=1), 3),
        (gaussian(5, 2, seed=2) @ gaussian(2, 4, seed=3), 2),
    ):
        p = linalg.pinv(a)
        # The condition numbers are below 100.
        limit = 64 * 5 * 100 * unit(a)
        assert int(linalg.matrix_rank(a)) == rank
        assert max(off(a, a, p, a), off(p, p, a, p)) <= limit
        for product in (a @ p, p @ a):
            assert off(product, product.mH) <= limit
        assert off(a, a, lossy(p), a) > limit
    h = gaussian(3, 2, seed=4)
    h = h @ h.mH
    assert int(linalg.matrix_rank(h, hermitian=True)) == 2
    assert off(h, h, linalg.pinv(h, hermitian=True), h) <= 64 * 3 * 1000 * unit(h)
    assert int(linalg.matrix_rank(gaussian(4, 4, seed=5), atol=1e6)) == 0


@pytest.mark.slow
def test_least_squares() -> None:
    """Solutions that are known: Gaussian integers, and those of least norm."""
    a, x = gaussian(6, 3, seed=6), gaussian(3, 2, seed=7)
    found = linalg.lstsq(a, a @ x)
    assert int(found.rank) == 3
    assert error(found.solution, exact(x)) <= 2.0**-95
    assert error(linalg.lstsq(a, (a @ x)[:, 0]).solution[:, None], exact(x[:, :1])) <= 2.0**-95
    b = gaussian(6, 2, seed=8)
    by_gels = linalg.lstsq(a, b, driver="gels")
    p = linalg.pinv(a)
    assert off(by_gels.solution, p, b) <= 2.0**-95
    rest = a @ by_gels.solution - b
    residuals = (rest.abs() ** 2).sum(0)
    assert float(abs(by_gels.residuals - residuals).max() / residuals.max()) <= 2.0**-95
    # The rest is orthogonal to the columns.
    with mpmath.workprec(BITS):
        assert size(exact(a.mH) * exact(rest)) <= 2.0**-95 * size(exact(a)) * size(exact(b))
    wide = linalg.lstsq(a.mH, x).solution
    assert off(wide, linalg.pinv(a.mH), x) <= 2.0**-95
    short = gaussian(6, 2, seed=9) @ gaussian(2, 3, seed=10)
    assert int(linalg.lstsq(short, b).rank) == 2
    assert off(linalg.lstsq(short, b).solution, linalg.pinv(short), b) <= 2.0**-95
    with pytest.raises(LinAlgError, match="full rank"):
        linalg.lstsq(short, b, driver="gels")


@pytest.mark.slow
def test_norms_and_condition_numbers() -> None:
    """Compare exactly for whole moduli, and for unitary matrices times numbers."""
    a = mcf.complex_tensor([[3 + 4j, 5 - 12j], [-8 + 15j, 0j]], 2, F64)
    assert [float(linalg.matrix_norm(a, p)) for p in (1, -1, math.inf, -math.inf)] == [
        22, 13, 18, 17,
    ]  # fmt: skip
    assert float(linalg.norm(a)) ** 2 == pytest.approx(25 + 169 + 289, rel=1e-15)
    assert linalg.norm(a, 1, keepdim=True).shape == (1, 1)
    q = linalg.qr(numbers(F64, 2, 3, 3, seed=2)).Q
    assert skew(q) <= 64 * 3 * unit(q)
    b = q * mcf.tensor([4, 2, 1], 2, F64)
    for ord, wanted in ((2, 4), (-2, 1), ("nuc", 7), ("fro", math.sqrt(21))):
        assert float(linalg.matrix_norm(b, ord)) == pytest.approx(wanted, rel=1e-15)
        assert float(linalg.norm(b, ord)) == pytest.approx(wanted, rel=1e-15)
        stacked = torch.stack([b, b], -1)
        assert linalg.matrix_norm(stacked, ord, (0, 1)).shape == (2,)
    assert float(linalg.cond(b)) == pytest.approx(4, rel=1e-15)
    assert float(linalg.cond(b, -2)) == pytest.approx(0.25, rel=1e-15)
    plain = b.to_plain()
    for p in (1, math.inf, "fro", "nuc"):
        assert float(linalg.cond(b, p)) == pytest.approx(float(linalg.cond(plain, p)), rel=1e-12)
    assert float(linalg.cond(b * 0.0, 1)) == math.inf


def test_systems_of_tensors_and_of_cholesky_factors() -> None:
    a = gaussian(2, 3, 6, seed=11)
    b = gaussian(2, 3, seed=12)
    x = linalg.tensorsolve(a, b)
    square = a.reshape(6, 6)
    assert off(b.reshape(6, 1), square, x.reshape(6, 1)) <= 2.0**-90
    inverse = linalg.tensorinv(a, 2)
    assert inverse.shape == (6, 2, 3)
    assert off(square, square, inverse.reshape(6, 6), square) <= 2.0**-90
    h = square @ square.mH
    low = linalg.cholesky(h)
    found = torch.cholesky_solve(b.reshape(6, 1), low)
    assert off(b.reshape(6, 1), h, found) <= 2.0**-75
    assert off(h, h, torch.cholesky_inverse(low), h) <= 2.0**-75
    _, info = linalg.cholesky_ex(-h)
    assert int(info) == 1
    assert int(linalg.inv_ex(h * 0.0).info) == 1
    assert int(linalg.solve_ex(h * 0.0, h).info) == 1
    assert int(linalg.lu_factor_ex(h * 0.0).info) == 1


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
    "solve": lambda z: linalg.solve(z, z[:, :2].conj() + 1),
    "solve from the right": lambda z: linalg.solve(z, z[:2] * 2, left=False),
    "solve of a vector": lambda z: linalg.solve(z, z[0]),
    "inv": lambda z: linalg.inv(z),
    "lu_solve from the right": lambda z: linalg.lu_solve(*linalg.lu_factor(z), z[:2], left=False),
    "lu_solve": lambda z: linalg.lu_solve(*linalg.lu_factor(z), z[:, :2]),
    "lu_solve adjoint": lambda z: linalg.lu_solve(
        *linalg.lu_factor(z), z[:2], left=False, adjoint=True
    ),
    "unit triangular": lambda z: linalg.solve_triangular(
        z, z[:, :2], upper=False, unitriangular=True
    ),
    "matrix_power": lambda z: linalg.matrix_power(z, 3),
    "matrix_exp": lambda z: linalg.matrix_exp(z),
    "pinv": lambda z: linalg.pinv(z[:, :2]),
    "pinv wide": lambda z: linalg.pinv(z[:2]),
    "lstsq": lambda z: linalg.lstsq(z[:, :2], z).solution,
    "norm": lambda z: linalg.norm(z, 2) + linalg.norm(z, 1) + linalg.matrix_norm(z, "nuc"),
    "cond": lambda z: linalg.cond(z),
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    everyday(
        DERIVATIVES,
        ["det", "slogdet", "cholesky", "eigh", "solve", "lu_solve", "pinv"],
    ),
)
def test_values_and_derivatives_are_those_of_torch(name: str) -> None:
    """In float64; 2^-30 leaves room for torch's own errors, times the condition."""
    t = numbers(F64, 2, 3, 3, seed=5).to_plain()
    agrees_with_torch(DERIVATIVES[name], t, 2.0**-30)


@pytest.mark.slow
def test_second_derivatives_of_a_solution() -> None:
    t = numbers(F64, 2, 2, 2, seed=5).to_plain().requires_grad_()
    z = mcf.complex_tensor(t.detach(), 2, F64, requires_grad=True)
    found = []
    for given in (t, z):
        loss = linalg.solve(given, given[:, :1] ** 2).abs().sum()
        first = torch.autograd.grad(loss, given, create_graph=True)[0]
        found.append(torch.autograd.grad(first.abs().sum(), given)[0])
    assert torch.allclose(found[1].to_plain(), found[0], rtol=2.0**-30, atol=2.0**-30)


@pytest.mark.parametrize(("dtype", "terms"), [(torch.float32, 2), (torch.bfloat16, 2)])
def test_systems_of_narrow_formats_in_either_registers(dtype: torch.dtype, terms: int) -> None:
    """Solved in the format itself; a residual is rounded at |A||X| besides, of some ten."""
    a, b = numbers(dtype, terms, 4, 4), numbers(dtype, terms, 4, 2, seed=1)
    limit = 8 * 4 * 2.0 ** (-terms * {torch.float32: 24, torch.bfloat16: 8}[dtype])
    for registers in ("float64", "float32"):
        with mcf.registers(registers):
            x = linalg.solve(a, b)
            assert x.dtype is dtype
            assert off(b, a, x) <= limit
            assert off(b, a, lossy(x)) > limit


def test_matrices_without_elements() -> None:
    z = numbers(F64, 2, 0, 0)
    assert linalg.det(z).item() == 1
    assert linalg.inv(z).shape == linalg.cholesky(z).shape == (0, 0)
    assert linalg.solve(z, numbers(F64, 2, 0, 3)).shape == (0, 3)


def test_powers_0_and_1() -> None:
    z = mcf.complex([[1.0, float("inf")], [float("nan"), 0.0]], [[1.0, 0.0], [2.0, float("inf")]])
    eye = torch.eye(2, dtype=torch.complex64)
    assert torch.equal(torch.linalg.matrix_power(z, 0).to_plain(), eye)
    w = mcf.complex([[1.0, 2.0], [3.0, 4.0]], 1.0)
    once = torch.linalg.matrix_power(w, 1)
    once.mul_(2)
    assert torch.equal(w.real.to_plain(), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))


@pytest.mark.parametrize("shape", [(3, 0), (0, 3), (2, 3, 0)])
def test_lu_without_elements(shape: tuple[int, ...]) -> None:
    like = torch.zeros(shape, dtype=torch.complex128)
    z = mcf.complex(like.real.clone(), like.imag.clone())
    for found, expected in zip(torch.linalg.lu(z), torch.linalg.lu(like), strict=True):
        assert found.shape == expected.shape
    assert torch.equal(torch.linalg.lu(z)[0].to_plain(), torch.linalg.lu(like)[0])


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


def _second(z: Any) -> Any:
    return linalg.lu_factor(z.clone().requires_grad_())[0].real.sum().backward()


# Factors of a 3 by 2 matrix.
REFUSED: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    **{
        f.__name__: (f, RuntimeError, r"square matrices|batches")
        for f in (linalg.det, linalg.slogdet, linalg.cholesky, linalg.eigh, linalg.matrix_exp)
    },
    **{
        f"driver of {f.__name__}": (
            lambda a, f=f: f(a, driver="gesvd"),
            mcf.UnsupportedError,
            "driver='gesvd' is an algorithm of cuSOLVER",
        )
        for f in (linalg.svd, linalg.svdvals)
    },
    **{
        f.__name__: (f, mcf.UnsupportedError, "not supported on mcf")
        for f in (linalg.ldl_factor, linalg.vander)
    },
    "triangular": (
        lambda a: linalg.solve_triangular(a[:2], a, upper=True), RuntimeError, "Incompatible shapes"
    ),
    "solve": (lambda a: linalg.solve(a[:2], a), RuntimeError, "Incompatible shapes"),
    "qr": (lambda a: linalg.qr(a, "all"), RuntimeError, "unrecognized mode 'all'"),
    "svd": (lambda a: linalg.svd(a / 0), LinAlgError, "non-finite"),
    "lu_factor": (_second, mcf.UnsupportedError, "square matrices"),
    "lstsq": (lambda a: linalg.lstsq(a, a[:2]), RuntimeError, r"size\(-2\) should match"),
    "lstsq number": (lambda a: linalg.lstsq(a, a[0, 0]), RuntimeError, r"shapes \[3, 2\] and \[\]"),
    "gelsd": (
        lambda a: linalg.lstsq(a, a, driver="gelsd"), mcf.UnsupportedError, "use None or 'gels'"
    ),
    "tensorinv": (lambda a: linalg.tensorinv(a, 1), RuntimeError, r"prod\(self"),
    "tensordot": (lambda a: torch.tensordot(a, a, 3), RuntimeError, "dims must be 0 to 2"),
    "dims": (lambda a: torch.tensordot(a, a, -1), RuntimeError, "dims must be 0 to 2"),
    "addmm": (
        lambda a: torch.addmm(torch.stack([a[:2]] * 3), a[:2], a[:2]),
        RuntimeError,
        r"shape \[3, 2, 2\] does not broadcast",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    call, error, said = REFUSED[name]
    with pytest.raises(error, match=said):
        call(gaussian(3, 2))


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


RUNNING = {
    "cumprod": lambda z: z.cumprod(1),
    "cumprod of columns": lambda z: torch.cumprod(z, dim=0),
    "var": lambda z: z.var(1),
    "var of all": lambda z: torch.var(z, correction=0),
    "std": lambda z: torch.std(z, 0, keepdim=True),
    "var_mean": lambda z: torch.var_mean(z, 1)[0] * torch.var_mean(z, 1)[1],
    "std_mean": lambda z: torch.std_mean(z, 1, correction=2)[0] + torch.std_mean(z, 1)[1],
}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", RUNNING)
def test_running_values_and_derivatives(name: str) -> None:
    """Within 1e-12 of complex128: its own error is a few units of 2^-53 an operation."""
    agrees_with_torch(RUNNING[name], numbers(F64, 2, 4, 5, seed=3).to_plain(), 1e-12)


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
