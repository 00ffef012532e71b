"""Exact: loops over matrices have the bits of one tensor operation for each step.

Caught mutants: a pivot of another lane; NaN passed over in the search for a pivot; a column called
flat because of the next one; a determinant with the signs of the columns that stay; the rows of a
unit triangle's right-hand sides not stored; rows of L subtracted from the diagonal on
(`test_matrices_and_panels`, `test_special_values`); the last tree of a fold left out
(`test_corrections`); a tolerance of sweeps twice as large (`test_sweeps_of_special_values`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import mcf
from mcf.kernels import operations, registry
from mcf.kernels.formats import FP32, FP64, format_of
from mcf.kernels.numba.loops.matrices import elimination, matrix_loop, refinement, reflection
from mcf.kernels.refinement import DONE, STUCK
from mcf.linalg import (
    lu_factors,
    number_kinds,
    orthogonal_rows,
    parts,
    qr_factors,
    spectral,
    triangular,
)
from mcf.linalg.number_kinds import COMPLEX, REAL, Real
from tests.helpers.everyday import everyday

F32, F64 = torch.float32, torch.float64
INF, NAN = float("inf"), float("nan")
Components = parts.Components
FORMATS = everyday(itertools.product((F64, F32, torch.bfloat16), (1, 2, 3, 4)), [(F64, 2)])


def components(dtype: torch.dtype, terms: int, *shape: int) -> Components:
    """Numbers in (-1, 1) with all components in use."""
    g = torch.Generator().manual_seed(sum(shape))
    fmt = format_of(dtype)
    unit = 2 ** (fmt.p - 1)
    found = []
    for k in range(terms):
        numbers = torch.randint(-unit, unit + 1, shape, generator=g)
        found.append((numbers.double() / unit * float(fmt.u) ** k).to(dtype))
    return operations.renormalize(tuple(found)) if terms > 1 else tuple(found)


def uneven(dtype: torch.dtype, terms: int, batch: int, m: int, n: int) -> Components:
    """Matrices each of which takes another way: zeros, ties, nonfinite, far exponents."""
    a = [c.clone() for c in components(dtype, terms, batch, m, n)]
    kind = torch.arange(batch) % 9
    far = torch.arange(batch) % 7 * (300 if dtype is F64 else 36) - (1000 if dtype is F64 else 120)
    for c in a:
        c[kind == 1] = torch.ldexp(c[kind == 1], far[kind == 1, None, None])
        c[kind == 2, :, 0] = 0
        c[kind == 3, 1:] = -0.0
        c[kind == 5, m - 1] = c[kind == 5, 0]
        c[kind == 6] = 0
        c[kind == 7, m - 1, n - 1] = 0
    a[0][kind == 6] = torch.sign(a[0][kind == 6] + torch.ones(m, n, dtype=dtype))
    a[0][kind == 4, 0, 0] = NAN
    a[0][kind == 7, m - 1, n - 1] = INF
    a[0][kind == 8, m - 1, 0] = NAN
    return operations.renormalize(tuple(a)) if terms > 1 else tuple(a)


def flattened(x: Any) -> list[torch.Tensor]:
    if x is None:
        return []
    return [x] if isinstance(x, torch.Tensor) else [c for part in x for c in flattened(part)]


def assert_equal_bits(found: Any, wanted: Any) -> None:
    """Zeros of either sign and NaN differ by their bits alone; a NaN has any payload."""
    for x, y in zip(flattened(found), flattened(wanted), strict=True):
        assert x.shape == y.shape
        assert torch.equal(x, y) or bool(((x == y) | ((x != x) & (y != y))).all())
        assert torch.equal(torch.signbit(x) & (x == x), torch.signbit(y) & (y == y))


def assert_same_bits(call: Callable[[], Any], executor: str = "") -> None:
    with mcf.executor("torch"):
        wanted = call()
    if executor:
        with mcf.executor(executor):
            assert_equal_bits(call(), wanted)
        return
    before = torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            found = call()
        finally:
            torch.set_num_threads(before)
        assert_equal_bits(found, wanted)


def counted(monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]) -> list[str]:
    """The calls of an executor's methods from now on."""
    calls: list[str] = []
    kind = type(registry.on(torch.device("cpu")))

    def noted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            calls.append(name)
            return real(*args, **more)

        return call

    for name in names:
        monkeypatch.setattr(kind, name, noted(name, getattr(kind, name)))
    return calls


def of_kind(a: Components, numbers: Real) -> Components:
    """The numbers, or complex ones whose imaginary parts are those in another order."""
    return a if numbers is REAL else (*a, *parts.each(lambda c: c.flip(0, -1).contiguous(), a))


def square(a: Components) -> Components:
    n = min(a[0].shape[-2:])
    return parts.each(lambda c: c[..., :n, :n].contiguous(), a)


def first(a: Components) -> Components:
    return parts.each(lambda c: c[..., :1].contiguous(), square(a))


def positive(a: Components, numbers: Real = REAL) -> Components:
    n = a[0].shape[-1]
    real = len(a) // numbers.parts
    eye = torch.eye(n, dtype=a[0].dtype) * 2 * n
    return (*operations.add(a[:real], eye.expand_as(a[0]).contiguous()), *a[real:])


# Functions of matrices of any shape, and of their arithmetic.
CALLS: dict[str, Callable[[Components, Real], Any]] = {
    "lu": lambda a, of: [lu_factors.factor(a, pivot, of) for pivot in (True, False)],
    "solutions": lambda a, of: [lu_factors.solved(square(a), b, of) for b in (square(a), first(a))],
    "determinants": lambda a, of: lu_factors.determined(square(a), of),
    "cholesky": lambda a, of: [
        triangular.cholesky(b, of) for b in (square(a), positive(square(a), of))
    ],
    "substitution": lambda a, of: [
        triangular.solve(square(a), b, upper=upper, left=left, unitriangular=unit, numbers=of)
        for left, b in ((True, square(a)), (True, first(a)), (False, parts.transpose(first(a))))
        for upper, unit in itertools.product((False, True), repeat=2)
    ],
    "qr": lambda a, of: [
        qr_factors.factor(b, mode, of)
        for b in (a, parts.transpose(a)) for mode in ("reduced", "complete", "r")
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "dtype", "terms", "of"),
    everyday(
        [(name, d, k, of) for name in CALLS for d in (F64, F32, torch.bfloat16)
         for k in (1, 2, 3, 4) for of in (REAL, COMPLEX)
         if (name != "qr" or d is F64) and (of is REAL or k < 4)],
        lambda name, dtype, k, of: dtype is F64 and k == 2 and of is REAL and name != "qr",
    ),
)  # fmt: skip
def test_matrices_and_panels(name: str, dtype: torch.dtype, terms: int, of: Real) -> None:
    """One column, a batch, a second panel, more right-hand sides than a tile has."""
    for shape in ((1, 1), (5, 3), (2, 9, 7), (2, 40, 34), (34, 70)):
        if max(shape) < 40 or (terms == 2 if name in ("solutions", "substitution") else of is REAL):
            a = of_kind(components(dtype, terms, *shape), of)
            assert_same_bits(lambda a=a: CALLS[name](a, of))


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether lanes were chosen, for each new shape."""
    said: list[bool] = []

    def asked(*args: Any) -> bool:
        said.append(matrix_loop.across(*args))
        return said[-1]

    for module, cached in (
        (elimination, (elimination._panel, elimination._substitution)),
        (reflection, (reflection._call,)),
    ):
        monkeypatch.setattr(module, "across", asked)
        for each in cached:
            if hasattr(each, "cache_clear"):
                each.cache_clear()
    return said


@pytest.mark.parametrize(
    ("name", "dtype", "terms", "of"),
    everyday(
        [(name, d, k, of) for name in CALLS
         for d, k, of in ((F64, 1, REAL), (F64, 2, REAL), (F64, 3, REAL), (F64, 4, REAL),
                          (F32, 1, REAL), (F32, 2, REAL), (F32, 4, REAL),
                          (torch.bfloat16, 2, REAL), (F64, 1, COMPLEX), (F64, 2, COMPLEX))
         if name != "qr" or d is F64],
        lambda name, dtype, terms, of: dtype is F64 and terms == 2 and of is REAL,
    ),
)  # fmt: skip
def test_lanes(name: str, dtype: torch.dtype, terms: int, of: Real, taken: list[bool]) -> None:
    """Fewer matrices than a block, and two blocks with one more."""
    wide = matrix_loop.wide(FP64 if dtype is F64 else FP32)
    for m, n in ((1, 1), (3, 3), (4, 2), (8, 8)):
        for batch in (wide // 2 + 1, 2 * wide + 1):
            a = uneven(dtype, terms, batch, m, n)
            a = of_kind(a, of)
            assert_same_bits(lambda a=a: CALLS[name](a, of))
    assert taken
    assert all(taken)


def test_larger_matrices_or_few_use_no_lanes() -> None:
    """A block that is half empty takes as long as its matrices one after the other."""
    wide = matrix_loop.wide(FP64)
    assert matrix_loop.across(FP64, wide // 2, 8, 8)
    assert not matrix_loop.across(FP64, wide // 2 - 1, 8, 8)
    assert not matrix_loop.across(FP64, wide, 9, 8)
    assert not matrix_loop.across(FP64, wide, 0, 8)
    assert matrix_loop.wide(FP32) == 2 * wide


SPECIAL: dict[str, Sequence[Sequence[float]]] = {
    "zeros": [[0.0, 0.0], [0.0, -0.0]],
    "singular": [[1.0, 1.0], [1.0, 1.0]],
    "not a number": [[1.0, NAN, 2.0], [3.0, 4.0, 5.0], [-3.0, 1.0, INF]],
    "infinite": [[1.0, INF], [-INF, 2.0]],
    "negative": [[2.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, -1.0]],
    "tied": [[1.0, 2.0, 3.0], [-1.0, 5.0, 1.0], [1.0, -2.0, 4.0]],
    "flat": [[-2.0, 1.0], [0.0, 2.0**-700], [0.0, 2.0**-700]],
}


@pytest.mark.parametrize(
    ("name", "of"),
    everyday(itertools.product(SPECIAL, (REAL, COMPLEX)), lambda name, of: of is REAL),
)
def test_special_values(name: str, of: Real) -> None:
    """Zero pivots, ties between pivots, NaN among them, and their `info`; flat columns."""
    leading = torch.tensor(SPECIAL[name], dtype=F64)
    zero = torch.zeros_like(leading)
    for a in ((leading, zero, zero, zero)[: 2 * of.parts], (zero, zero, leading, zero)):
        for call in CALLS.values():
            assert_same_bits(lambda a=a, call=call: call(a[: 2 * of.parts], of))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("exponent", [-1060, -1022, -900, 900, 1022])
def test_columns_at_the_ends_of_the_range(exponent: int) -> None:
    a = operations.ldexp(components(F64, 2, 6, 4), exponent)
    assert_same_bits(lambda: qr_factors.factor(a))


def test_components_of_unlike_strides() -> None:
    hi, lo = positive(components(F64, 2, 9, 9))
    a = (hi, lo.mT.contiguous().mT)
    for call in CALLS.values():
        assert_same_bits(lambda call=call: call(a, REAL))


def test_the_comparison_rejects_another_order() -> None:
    """The mutant: the same product taken off in one sum, not step by step."""
    a = positive(components(F64, 2, 9, 9))
    calls = iter([triangular.BLOCK, 2, 2])

    def call() -> Any:
        before, triangular.BLOCK = triangular.BLOCK, next(calls)
        try:
            return triangular.solve(a, a, upper=False)
        finally:
            triangular.BLOCK = before

    with pytest.raises(AssertionError):
        assert_same_bits(call)


@pytest.mark.slow
def test_the_comparison_rejects_another_order_of_complex_products(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The mutant: a fold whose terms are added from the last to the first."""
    product = number_kinds.matmul

    def mutant(x: Components, y: Components) -> Components:
        flipped = parts.each(lambda c: c.flip(-1), x), parts.each(lambda c: c.flip(-2), y)
        return product(*flipped)

    monkeypatch.setattr(number_kinds, "matmul", mutant)
    a = of_kind(components(F64, 2, 6, 4), COMPLEX)
    with pytest.raises(AssertionError):
        assert_same_bits(lambda: qr_factors.factor(a, "reduced", COMPLEX))


def test_a_small_system_is_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Larger ones, more right-hand sides and one matrix for many right-hand sides are several."""
    calls = counted(monkeypatch, ("eliminate", "substitute", "product"))
    a, b = components(F64, 2, 9, 9), components(F64, 2, 9, 3)
    lu_factors.solved(a, b)
    lu_factors.determined(a)
    assert calls == ["eliminate"] * 2
    for x, y in (((33, 33), (33, 1)), ((3, 3), (3, 65)), ((3, 3), (2, 3, 1))):
        calls.clear()
        a, b = components(F64, 2, *x), components(F64, 2, *y)
        solution, factors = lu_factors.solved(a, b)
        assert len(calls) >= 3
        assert_equal_bits(solution, lu_factors.solve(*lu_factors.factor(a)[:2], b))
        assert solution[0].shape == torch.Size((*y[:-1], y[-1]))
        assert factors[0][0].shape == a[0].shape


def test_a_small_qr_is_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch, ("reflect", "product", "run"))
    for shape in ((5, 3), (3, 5)):
        a = components(F64, 2, *shape)
        for mode in ("reduced", "complete", "r"):
            calls.clear()
            qr_factors.factor(a, mode)
            assert calls == ["reflect"]


def test_narrow_formats_are_rounded_once() -> None:
    """Round float64 factors for float32 and 16-bit components."""
    a = components(F32, 3, 5, 4)
    wide = qr_factors.factor(qr_factors.convert(a, F64, 2))
    narrow = [qr_factors.convert(x, F32, 3) for x in wide if x is not None]
    assert_equal_bits(qr_factors.factor(a), narrow)


SHAPES = [(2, 2, 1), (2, 3, 3), (1, 9, 14)]


@pytest.mark.parametrize(
    ("terms", "shape", "of"),
    everyday(
        [
            *itertools.product((1, 2, 3, 4), [(1, 1, 3), *SHAPES, (3, 6, 21)], (REAL,)),
            *itertools.product((1, 2, 3, 4), SHAPES, (COMPLEX,)),
        ],
        lambda k, s, of: s[1] == 3 and k < 3 if of is REAL else (k, s[1]) == (1, 3),
    ),
)
def test_sweeps(terms: int, shape: tuple[int, int, int], of: Real) -> None:
    """Even and odd numbers of rows and of columns, and columns that only follow."""
    a = of_kind(components(F64, terms, *shape), of)
    for width in sorted({shape[2], max(1, shape[2] - 3)}):
        assert_same_bits(
            lambda w=width: orthogonal_rows.orthogonalize(a, w, 2.0 ** (4 - 53 * terms), of)
        )


SPECIAL_ROWS = {
    "zeros": [[0.0, -0.0], [0.0, 0.0]],
    "parallel": [[1.0, 1.0], [1.0, 1.0]],
    "of_one_norm": [[1.0, 2.0], [1.0, -2.0]],
    "vanishing": [[2.0**-251, 0.0], [1.0, 2.0**-300]],
    # Rotated by the tolerance 2^-49, and not by twice as much.
    "nearly_orthogonal": [[1.0, 0.0], [1.5 * 2.0**-49, 1.0]],
    "not_a_number": [[1.0, 2.0], [NAN, -2.0]],
    "infinite": [[INF, 2.0], [1.0, -2.0]],
}


@pytest.mark.parametrize("name", SPECIAL_ROWS)
def test_sweeps_of_special_values(name: str) -> None:
    x = torch.tensor(SPECIAL_ROWS[name], dtype=F64)[None]
    zero = torch.zeros_like(x)
    for a, of in (((x,), REAL), ((x, zero), COMPLEX), ((zero, x), COMPLEX), ((x, x), COMPLEX)):
        assert_same_bits(lambda a=a, of=of: orthogonal_rows.orthogonalize(a, 2, 2.0**-49, of))


def test_orthogonal_rows_stay() -> None:
    """The mutant is another tolerance, by which the last bits differ."""
    a = components(F64, 1, 1, 8, 8)
    (x,), done = orthogonal_rows.orthogonalize(a, 8, 2.0**-49)
    (again,), _ = orthogonal_rows.orthogonalize((x,), 8, 2.0**-49)
    (finer,), _ = orthogonal_rows.orthogonalize((x,), 8, 2.0**-57)
    assert done
    assert torch.equal(x, again)
    assert not torch.equal(x, finer)


@pytest.mark.parametrize(
    ("terms", "shape"),
    everyday(
        [(2, (2, 4, 6)), (2, (1, 1, 3)), (2, (1, 7, 20)), (2, (1, 33, 33)), (3, (2, 5, 5)),
         (4, (2, 4, 5))],
        [(2, (2, 4, 6))],
    ),
)  # fmt: skip
def test_corrections(terms: int, shape: tuple[int, ...]) -> None:
    a = components(F64, terms, *shape)
    assert_same_bits(lambda: orthogonal_rows.orthogonal_rows(a))
    s = components(F64, terms, *shape[:-1], shape[1])
    s = positive(operations.add(s, parts.transpose(s)))
    assert_same_bits(lambda: orthogonal_rows.orthogonal_rows(s, positive=True))


CLOSE = [[1.0, 2.0**-60, 0.0], [2.0**-60, 1.0, 2.0**-70], [0.0, 2.0**-70, 1.0 + 2.0**-52]]
ROWS = {
    "zeros": [[0.0] * 3] * 3,
    "deficient": [[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [0.0, 0.0, 1.0]],
    "vanishing": [[2.0**-260, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.5, 1.0]],
    "close": CLOSE,
    "graded": [[1.0, 2.0**-30, 2.0**-60], [2.0**-30, 2.0**-55, 0.0], [2.0**-60, 0.0, 2.0**-90]],
    # Rows that are apart where a mean is small.
    "apart": [[x * 2.0**-16 for x in row] for row in (
        [-4322, -2936, -7567, 11926], [5765, 3907, 10086, -15912],
        [-21624, -14672, -37824, 59664])],
}  # fmt: skip


@pytest.mark.parametrize("name", everyday(ROWS, ["close"]))
def test_corrections_of_clusters_and_ranks(name: str) -> None:
    """Also of matrices that rotations in expansions finish."""
    leading = torch.tensor(ROWS[name], dtype=F64)[None]
    a = (leading, torch.zeros_like(leading))
    assert_same_bits(lambda: orthogonal_rows.orthogonal_rows(a))
    assert_same_bits(lambda: spectral.svd(a))
    if leading.shape[1] == leading.shape[2]:
        assert_same_bits(lambda: spectral.eigh(a)[:2])


def test_corrections_that_end_at_unlike_steps() -> None:
    """A batch has each matrix's own result, and the number of corrections is its own."""
    both = torch.cat([positive(components(F64, 1, 1, 3, 3))[0], torch.tensor([CLOSE], dtype=F64)])
    a = (both, torch.zeros_like(both))
    *found, done = orthogonal_rows.orthogonal_rows(a)
    assert bool(done.all())
    for k in range(2):
        alone = orthogonal_rows.orthogonal_rows(tuple(c[k : k + 1] for c in a))[:3]
        assert_equal_bits([c[k : k + 1] for c in flattened(found)], alone)


def test_corrections_that_do_not_converge(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that is no orthogonal matrix, and one row whose norm was read for the matrix."""
    states: list[Any] = []
    real = refinement.refine

    def noted(*args: Any) -> Any:
        states.append(real(*args))
        return states[-1]

    monkeypatch.setattr(refinement, "refine", noted)
    monkeypatch.setattr(
        orthogonal_rows, "_start", lambda m, *_: (torch.full_like(m[0][..., : len(m[0][0])], 0.5),)
    )
    a = components(F64, 2, 1, 3, 3)
    assert_same_bits(lambda: orthogonal_rows.orthogonal_rows(a)[-1])
    assert states[0].tolist() == [STUCK] != [DONE]
    one = tuple(torch.full((1, 1, 1), x, dtype=F64) for x in (3.0, 2.0**-60))
    assert_same_bits(lambda: orthogonal_rows.orthogonal_rows(one))


def test_the_comparison_rejects_one_step_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: the loop makes the start orthogonal once less than the other program."""
    a = components(F64, 2, 1, 4, 4)
    real = refinement.refine

    def less(*given: Any) -> Any:
        *operands, steps, tolerance, share = given
        return real(*operands, steps - 1, tolerance, share)

    monkeypatch.setattr(refinement, "refine", less)
    with pytest.raises(AssertionError):
        assert_same_bits(lambda: orthogonal_rows.orthogonal_rows(a))
