"""Elimination in complex arithmetic: one loop, one launch a step and Triton have the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch

import mcf
from mcf.kernels import operations
from mcf.linalg import lu_factors, number_kinds, qr_factors, triangular
from mcf.linalg.number_kinds import COMPLEX
from mcf.linalg.parts import Components, each
from tests.helpers.everyday import everyday
from tests.mcf.linalg.test_loops import F64, SPECIAL, assert_same_bits, components


def parts(dtype: torch.dtype, terms: int, *shape: int) -> Components:
    """Complex numbers, the imaginary parts those of the real ones in another order."""
    x = components(dtype, terms, *shape)
    return (*x, *each(lambda c: c.flip(-1).flip(-2), x))


def dominant(a: Components) -> Components:
    """The same with a large real diagonal."""
    n = a[0].shape[-1]
    real, imag = number_kinds.halves(a)
    return (*operations.add(real, torch.eye(n, dtype=a[0].dtype) * 4 * n), *imag)


CALLS: dict[str, Callable[[Components, Components], Any]] = {
    "lu": lambda a, b: lu_factors.factor(a, numbers=COMPLEX),
    "lu without exchanges": lambda a, b: lu_factors.factor(a, False, COMPLEX),
    "solve": lambda a, b: lu_factors.solved(a, b, COMPLEX)[0],
    "det": lambda a, b: lu_factors.determined(a, COMPLEX)[0],
    "cholesky": lambda a, b: triangular.cholesky(dominant(a), COMPLEX),
    "substitution": lambda a, b: [
        triangular.solve(a, b, upper=upper, unitriangular=unit, numbers=COMPLEX)
        for upper, unit in ((True, False), (False, True))
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("terms", "shape"),
    [
        (2, (1, 1)),
        (2, (2, 1)),
        (2, (2, 6, 6)),
        (2, (3, 5)),
        (2, (34, 33)),
        (1, (5, 3)),
        (3, (4, 3)),
    ],
)
def test_reflections_have_the_bits_of_launches(terms: int, shape: tuple[int, ...]) -> None:
    """In one call, and in panels with products between; odd and even numbers of rows."""
    a = parts(F64, terms, *shape)
    for mode in ("reduced", "complete", "r"):
        assert_same_bits(lambda mode=mode: [*filter(None, qr_factors.factor(a, mode, COMPLEX))])


@pytest.mark.slow
def test_the_comparison_rejects_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: a fold whose terms are added from the last to the first."""
    product = number_kinds.matmul

    def mutant(x: Components, y: Components) -> Components:
        return product(each(lambda c: c.flip(-1), x), each(lambda c: c.flip(-2), y))

    monkeypatch.setattr(number_kinds, "matmul", mutant)
    with pytest.raises(AssertionError):
        assert_same_bits(lambda: qr_factors.factor(parts(F64, 2, 6, 4), "reduced", COMPLEX))


@pytest.mark.slow
@pytest.mark.parametrize("special", SPECIAL)
def test_reflections_of_special_values(special: str) -> None:
    leading = torch.tensor(SPECIAL[special], dtype=F64)
    zero = torch.zeros_like(leading)
    for a in ((leading, zero, zero, zero), (zero, zero, leading, zero)):
        assert_same_bits(lambda a=a: qr_factors.factor(a, "reduced", COMPLEX))


# One loop does all three.
EVERYDAY = ("lu", "solve", "det")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "terms", "size"),
    everyday(
        [
            (F64, 2, 5),
            (F64, 1, 5),
            (F64, 2, 40),
            (F64, 3, 5),
            (F64, 4, 34),
            (torch.float32, 2, 9),
            (torch.bfloat16, 1, 5),
        ],
        [(F64, 2, 5)],
    ),
)
@pytest.mark.parametrize("name", everyday(CALLS, EVERYDAY))
def test_one_loop_has_the_bits_of_launches(
    name: str, dtype: torch.dtype, terms: int, size: int
) -> None:
    a, b = parts(dtype, terms, 2, size, size), parts(dtype, terms, 2, size, 3)
    assert_same_bits(lambda: CALLS[name](a, b))


@pytest.mark.slow
@pytest.mark.parametrize("special", everyday(SPECIAL, ["not a number"]))
@pytest.mark.parametrize("name", everyday(CALLS, ["solve"]))
def test_special_values(name: str, special: str) -> None:
    """Zero pivots, ties between pivots, NaN among them, and their `info`."""
    leading = torch.tensor(SPECIAL[special], dtype=F64)
    zero = torch.zeros_like(leading)
    for a in ((leading, zero, zero, zero), (zero, zero, leading, zero)):
        assert_same_bits(lambda a=a: CALLS[name](a, a))


@pytest.mark.parametrize(
    ("dtype", "terms", "size"),
    everyday([(F64, 1, 3), (F64, 2, 34), (F64, 4, 4), (torch.float32, 2, 5)], [(F64, 1, 3)]),
)
@pytest.mark.parametrize("name", everyday(CALLS, ["lu"]))
def test_triton_has_the_bits_of_launches(
    name: str, dtype: torch.dtype, terms: int, size: int
) -> None:
    pytest.importorskip("triton", reason="triton has wheels for Linux only")
    from tests.mcf.linalg import test_triton_panels

    a, b = parts(dtype, terms, size, size), parts(dtype, terms, size, 2)
    test_triton_panels.assert_same_bits(lambda: CALLS[name](a, b))


def exact(x: Components) -> Any:
    return mpmath.matrix(mcf.complex(*map(mcf.MCFTensor, number_kinds.halves(x))).to_mpmath())


def moduli(m: Any) -> Any:
    return m.apply(abs)


def backward_error(a: Any, *factors: Any) -> float:
    """The largest |A - F G| / (|A| + |F||G|) of an element, exact but for the quotient."""
    with mpmath.workprec(2000):
        f, g = factors
        product, sizes = f * g, moduli(f) * moduli(g)
        return float(max(
            abs(a[i, j] - product[i, j]) / (abs(a[i, j]) + sizes[i, j])
            for i in range(a.rows) for j in range(a.cols)
        ))  # fmt: skip


def limit(n: int, terms: int) -> float:
    """Of n updates of both parts, two fused products each, and of a quotient.

    A part of an update errs by at most d |z| for each of the two, d the bound of `fma` and z what
    is there, at most |A| + |L||U| and what the two add to it.
    """
    fused = mcf.bound("fma", terms, F64)
    step = fused.relative + fused.of_terms
    return (4 * n * step + mcf.bound("complex_div", terms, F64).relative) * 2


def gaussian(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    real, imag = (torch.randint(-1000, 1001, (n, n), generator=g).double() for _ in range(2))
    return real, imag


@pytest.mark.usefixtures("on_torch")
@pytest.mark.parametrize("terms", everyday([2, 1, 3, 4], [2]))
def test_backward_errors_of_gaussian_integers(terms: int) -> None:
    """Below the bound of the steps; mutants err a hundred times as much at least."""
    n = 6
    zeros = torch.zeros(terms - 1, n, n, dtype=F64).unbind()
    real, imag = gaussian(n, 1)
    a = (real, *zeros, imag, *zeros)
    whole = exact(a)
    factors, pivots, _ = lu_factors.factor(a, numbers=COMPLEX)
    order = lu_factors.permutation(pivots, n).tolist()
    rows = mpmath.matrix([[whole[i, j] for j in range(n)] for i in order])
    low, up = lu_factors.lower(factors), lu_factors.upper(factors)
    assert backward_error(rows, exact(low), exact(up)) <= limit(n, terms)
    b = each(lambda c: c.mT.contiguous(), a)
    x = lu_factors.solved(a, b, COMPLEX)[0]
    # L, U and what is taken off in both substitutions.
    with mpmath.workprec(2000):
        sizes = moduli(exact(low)) * moduli(exact(up)) * moduli(exact(x))
        off = whole * exact(x) - exact(b)
        worst = float(max(abs(off[i, j]) / (sizes[order.index(i), j])
                          for i in range(n) for j in range(n)))  # fmt: skip
    assert worst <= 3 * limit(n, terms)
    square = COMPLEX.matmul(a, COMPLEX.adjoint(a))
    root, info = triangular.cholesky(square, COMPLEX)
    assert not int(info)
    with mpmath.workprec(2000):
        adjoint = exact(root).transpose_conj()
    assert backward_error(exact(square), exact(root), adjoint) <= limit(n, terms)
    if terms > 1:
        lossy = each(lambda c: c.clone(), up)
        lossy[terms - 1].zero_()
        assert backward_error(rows, exact(low), exact(lossy)) > 100 * limit(n, terms)
        assert backward_error(exact(square), exact(low), adjoint) > 100 * limit(n, terms)


@pytest.mark.usefixtures("on_torch")
def test_mutants_of_the_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product that forgets the conjugate, and pivots by the real part alone, are found out."""
    n = 4
    real, imag = gaussian(n, 2)
    zero = torch.zeros(n, n, dtype=F64)
    a = (real, zero, imag, zero)
    square = COMPLEX.matmul(a, COMPLEX.adjoint(a))
    monkeypatch.setattr(number_kinds.Complex, "less_conjugate", number_kinds.Complex.less_product)
    root, _ = triangular.cholesky(square, COMPLEX)
    with mpmath.workprec(2000):
        adjoint = exact(root).transpose_conj()
    assert backward_error(exact(square), exact(root), adjoint) > 1e-3
    # Of no real part the largest imaginary one is the pivot, as of i A that of A.
    _, pivots, _ = lu_factors.factor((zero, zero, real, zero), numbers=COMPLEX)
    _, wanted, _ = lu_factors.factor((real, zero))
    assert torch.equal(pivots, wanted)
    monkeypatch.setattr(number_kinds.Complex, "magnitude", number_kinds.Real.magnitude)
    _, pivots, info = lu_factors.factor((zero, zero, real, zero), numbers=COMPLEX)
    assert int(info) == 1
