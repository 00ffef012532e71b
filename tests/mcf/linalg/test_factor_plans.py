"""Exact: factorisations at once have the bits, the layouts and the errors of torch's way.

Caught mutants: a determinant of A in the place of A^T's; vectors of a batch taken for a matrix;
what stands above a Cholesky factor left as it was; the last row of a triangular system taken from
the first; shares that a second call finds used up; scratch memory of fewer threads than come; a
smaller rank, or NaN, taken for full rank; Q not turned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

import mcf
from mcf.tensor import factor_plans, torch_functions
from tests.helpers import assert_alike
from tests.mcf.linalg.test_elimination_loops import F64, components

linalg: Any = torch.linalg


def numbers(*shape: int, terms: int = 2) -> Any:
    return mcf.MCFTensor(components(F64, terms, *shape))


def positive(a: Any) -> Any:
    return a @ a.mT + torch.eye(a.shape[-1], dtype=F64)


# Functions of a square matrix, or of a batch.
CALLS: dict[str, Callable[[Any], Any]] = {
    "det": lambda a: [torch.det(a), a.det(), linalg.det(a)],
    "slogdet": lambda a: [torch.slogdet(a), linalg.slogdet(a)],
    "logdet": lambda a: [torch.logdet(a), positive(a).logdet(), torch.logdet(a * 0)],
    "inv": lambda a: [linalg.inv(a), torch.inverse(a), a.inverse()],
    "solve": lambda a: [linalg.solve(a, a.flip(-1)), linalg.solve(a, a[..., :1])],
    "vectors": lambda a: [linalg.solve(a, a[..., 0]), linalg.solve(a, a.flatten()[: a.shape[-1]])],
    "lu_factor": lambda a: [linalg.lu_factor(a), linalg.lu_factor(a[..., :-1])],
    "cholesky": lambda a: [linalg.cholesky(positive(a)), linalg.cholesky(positive(a), upper=True),
                           linalg.cholesky(positive(a).tril())],
    "lu": lambda a: [linalg.lu(b) for b in (a, a[..., 1:], a[..., 1:, :])],
    "told": lambda a: [linalg.lu_factor_ex(a), linalg.lu_factor_ex(a[..., :-1], pivot=True),
                       linalg.inv_ex(a), linalg.inv_ex(a, check_errors=True),
                       linalg.solve_ex(a, a), linalg.solve_ex(a, a[..., 0]),
                       linalg.solve_ex(a, a, left=True), linalg.solve_ex(a, a, left=False)],
    # Of what is positive definite, and of what is mostly not.
    "cholesky_ex": lambda a: [linalg.cholesky_ex(b, upper=upper) for b in (positive(a), a)
                              for upper in (False, True)],
    "triangular": lambda a: [linalg.solve_triangular(a, a.flip(0), upper=upper, unitriangular=unit)
                             for upper in (False, True) for unit in (False, True)],
    "lu_solve": lambda a: [linalg.lu_solve(*linalg.lu_factor(a), b) for b in (a, a[..., ::2])],
    "qr": lambda a: [linalg.qr(b, mode) for b in (a, a[..., 1:], a[..., 1:, :])
                     for mode in ("reduced", "complete", "r")],
    # Of full rank, wide, and of smaller ranks that are seen and not.
    "lstsq": lambda a: [linalg.lstsq(b, b.flip(-1)) for b in (a, a[..., 1:], a[..., 1:, :])]
                       + [linalg.lstsq(a * s, a)
                          for s in (1e-200, 0.0, 2.0 ** -(4.0 * torch.arange(a.shape[-1])),
                                    2.0 ** -(120.0 * torch.arange(a.shape[-1])))]
                       + [linalg.lstsq(a, a, driver="gels"), linalg.lstsq(a, a, 0.5)],
    "eigh": lambda a: [linalg.eigh(a), linalg.eigh(a, "U"), linalg.eigh(a, UPLO="l"),
                       linalg.eigvalsh(a), linalg.eigvalsh(a, UPLO="u")],
    "svd": lambda a: [linalg.svd(a), linalg.svdvals(a), linalg.svd(a, False),
                      linalg.svdvals(a[..., :1].mT),
                      *(linalg.svd(b, full_matrices=False) for b in (a[..., 1:], a[..., 1:, :]))],
}  # fmt: skip

OPERANDS: dict[str, Callable[[], Any]] = {
    "2 rows": lambda: numbers(2, 2),
    "3 rows turned": lambda: numbers(3, 3).mT,
    "5 rows of others": lambda: numbers(7, 9)[1:6, ::2],
    "8 rows": lambda: numbers(8, 8),
    "a batch": lambda: numbers(3, 4, 4),
    "as many matrices as rows": lambda: numbers(4, 4, 4),
    "a batch turned": lambda: numbers(4, 4, 3).permute(2, 1, 0),
    "batches": lambda: numbers(2, 3, 3, 3),
    "one for all": lambda: numbers(3, 3).expand(2, 3, 3),
}


def flattened(result: Any) -> list[Any]:
    if isinstance(result, torch.Tensor):
        return [result]
    return [each for part in result for each in flattened(part)]


def kinds(result: Any) -> Any:
    return type(result), [*map(type, result)] if isinstance(result, list | tuple) else None


def both(call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """What is computed at once, and on torch's way."""
    at_once = call()
    with monkeypatch.context() as patched:
        patched.setattr(torch_functions, "DIRECT", {})
        return at_once, call()


EVERY_DAY = ("5 rows of others", "as many matrices as rows", "a batch turned")


# Each compiles loops of its own.
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in ("det", "triangular") else pytest.mark.slow) for n in CALLS],
)
def test_results_are_those_of_torchs_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _compare(name, EVERY_DAY, monkeypatch)


def test_what_is_singular_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    some = torch.ones(3, 4, 4, dtype=F64)
    some[1, :, 2] = 0
    batch = numbers(3, 4, 4) * some

    def told() -> list[Any]:
        found = [linalg.lu_factor_ex(batch), linalg.inv_ex(batch), linalg.solve_ex(batch, batch)]
        assert all(each.info.tolist() == [0, 3, 0] for each in found)
        with pytest.raises(torch.linalg.LinAlgError, match="Batch element 1"):
            linalg.inv_ex(batch, check_errors=True)
        return [x for each in found for x in each]

    for got, expected in zip(*both(told, monkeypatch), strict=True):
        assert_alike(got, expected, "told")


@pytest.mark.slow
def test_least_squares_of_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = numbers(5, 3), numbers(5)
    calls = [(a, b), (a.mT.contiguous().mT, b), (a[:3], b[::2])]
    got, expected = both(lambda: [linalg.lstsq(*given) for given in calls], monkeypatch)
    for x, y in zip(flattened(got), flattened(expected), strict=True):
        assert_alike(x, y, "lstsq")
    # Of a number in any place.
    for place in ((0, 0), (2, 2), (4, 1)):
        some = a.clone()
        some[place] = NAN
        with pytest.raises(torch.linalg.LinAlgError, match="non-finite"):
            linalg.lstsq(some, b)


# Of more matrices than one thread takes, and than a plan has an index for.
MANY: dict[str, Callable[[Any], Any]] = {
    "det": lambda a: [linalg.det(a)],
    "inv": lambda a: [linalg.inv(a)],
    "solve": lambda a: [linalg.solve(a, a[..., 0]), linalg.solve(a, a[..., :2])],
    "lu_factor": lambda a: [linalg.lu_factor(a), linalg.lu_factor_ex(a[..., :-1])],
    "cholesky": lambda a: [linalg.cholesky(positive(a), upper=upper) for upper in (False, True)],
    "cholesky_ex": lambda a: [linalg.cholesky_ex(a)],
    "lu": lambda a: [linalg.lu(a), linalg.lu(a[..., 1:])],
    "slogdet": lambda a: [linalg.slogdet(a), torch.logdet(positive(a))],
    "triangular": lambda a: [linalg.solve_triangular(a, a, upper=upper) for upper in (False, True)],
    "qr": lambda a: [linalg.qr(a, mode) for mode in ("reduced", "complete", "r")],
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n == "det" else pytest.mark.slow) for n in MANY]
)
def test_many_matrices_have_plans(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a = numbers(1200, 4, 4)
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            factor_plans._plans.clear()
            # The second time with what the first has left.
            for k in range(2):
                at_once, expected = both(lambda: MANY[name](a), monkeypatch)
                pairs = zip(flattened(at_once), flattened(expected), strict=True)
                for got, want in pairs:
                    assert_alike(got, want, f"{name} on {threads} threads, {k}")
            assert factor_plans._plans
            assert all(run is not None for run in factor_plans._plans.values())
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_results_of_all_operands(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _compare(name, OPERANDS, monkeypatch)


def _compare(name: str, operands: Iterable[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for what in operands:
        a = OPERANDS[what]()
        factor_plans._plans.clear()
        at_once, expected = both(lambda a=a: CALLS[name](a), monkeypatch)
        assert any(run is not None for run in factor_plans._plans.values()), what
        assert kinds(at_once[0]) == kinds(expected[0])
        pairs = zip(flattened(at_once), flattened(expected), strict=True)
        for k, (got, want) in enumerate(pairs):
            assert_alike(got, want, f"{name} of {what}, {k}")


@pytest.mark.slow
@pytest.mark.parametrize("terms", [1, 3, 4])
@pytest.mark.parametrize("name", CALLS)
def test_other_lengths(name: str, terms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    a = numbers(3, 4, 4, terms=terms)
    at_once, expected = both(lambda: CALLS[name](a), monkeypatch)
    for got, want in zip(flattened(at_once), flattened(expected), strict=True):
        assert_alike(got, want, f"{name} {terms}")


INF, NAN = float("inf"), float("nan")
SPECIAL = {
    "zeros": [[0.0, 0.0], [0.0, 0.0]],
    "singular": [[1.0, 2.0], [2.0, 4.0]],
    "zeros of either sign": [[-0.0, 1.0], [1.0, -0.0]],
    "negative": [[-3.0, 0.0], [-0.0, 2.0]],
    "not finite": [[INF, 1.0], [NAN, 2.0]],
    "not a number": [[NAN, 1.0], [1.0, 2.0]],
    "large": [[1e300, 1e300], [-1e300, 1e300]],
    "exchanged": [[0.0, 2.0], [-3.0, 0.0]],
    "a NaN and a zero": [[0.0, NAN], [0.0, 0.0]],
}


SPECIAL_CALLS = {name: call for name, call in CALLS.items() if name != "vectors"} | {
    "cholesky": linalg.cholesky,
    "upper": lambda a: linalg.cholesky(a, upper=True),
}
# Each other compiles loops of its own.
EVERY_DAY_CALLS = ("det", "inv", "triangular")


@pytest.mark.parametrize(
    "names",
    [EVERY_DAY_CALLS, pytest.param(tuple(SPECIAL_CALLS), marks=pytest.mark.slow)],
    ids=["some", "all"],
)
@pytest.mark.parametrize("special", SPECIAL)
def test_special_values_and_errors(
    special: str, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Singular matrices are refused with torch's words, alone and in a batch."""
    leading = torch.tensor(SPECIAL[special], dtype=F64)
    one = mcf.MCFTensor([leading, torch.zeros_like(leading)])
    whole = torch.stack([numbers(2, 2), one])
    for a in (one, whole):
        for name in names:
            call = SPECIAL_CALLS[name]

            def tried(a: Any = a, call: Any = call) -> Any:
                try:
                    return call(a)
                except RuntimeError as error:
                    return error

            at_once, expected = both(tried, monkeypatch)
            if isinstance(expected, RuntimeError):
                assert type(at_once) is type(expected)
                assert str(at_once) == str(expected)
                continue
            for got, want in zip(flattened(at_once), flattened(expected), strict=True):
                assert_alike(got, want, f"{name} of {special}")


A, B = numbers(3, 3), numbers(3, 2)
PIVOTS = torch.tensor([2, 3, 3], dtype=torch.int32)
REFUSED: dict[str, Callable[[], Any]] = {
    "rows": lambda: linalg.det(B),
    "a vector": lambda: linalg.inv(B[0]),
    "right sides": lambda: linalg.solve(A, B.mT),
    "batches": lambda: linalg.solve(numbers(2, 3, 3), numbers(3, 3, 2)),
    "a short vector": lambda: linalg.solve(A, B[0]),
    "more matrices": lambda: linalg.solve_triangular(numbers(2, 3, 3), B[:2], upper=True),
    "no side": lambda: linalg.solve_triangular(A, B),
    "a number": lambda: linalg.solve(A, 2.0),
    "no pivots": lambda: linalg.lu_solve(A, PIVOTS.double(), B),
    "right sides of factors": lambda: linalg.lu_solve(A, PIVOTS, B.mT),
    "a vector for factors": lambda: linalg.lu_solve(A, PIVOTS, B[:, 0]),
    "a mode": lambda: linalg.qr(A, "other"),
    "no mode": lambda: linalg.qr(A, None),
    "positions": lambda: linalg.cholesky(A, True),
    "no factors": lambda: linalg.lu_factor(B[0]),
    "an argument": lambda: linalg.qr(A, some=True),
    "another triangle": lambda: linalg.eigh(A, "l "),
    "no triangle": lambda: linalg.eigvalsh(A, UPLO=None),
    "no square": lambda: linalg.eigh(B),
    "a vector's values": lambda: linalg.svdvals(B[0]),
    "a driver": lambda: linalg.svd(A, driver="gesvd"),
    "two places": lambda: linalg.svd(A, False, None),
    "no truth": lambda: linalg.svd(A, "no"),
    "not finite": lambda: linalg.eigh(A * INF),
}


@pytest.mark.parametrize("name", REFUSED)
def test_errors_of_arguments(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = (TypeError, RuntimeError)
    with pytest.raises(kinds) as at_once:
        REFUSED[name]()
    monkeypatch.setattr(torch_functions, "DIRECT", {})
    with pytest.raises(kinds) as expected:
        REFUSED[name]()
    assert type(at_once.value) is type(expected.value)
    assert str(at_once.value) == str(expected.value)


@pytest.mark.slow
def test_what_has_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other formats, sizes and sides, plain operands, one matrix for several right-hand sides."""
    plain, eye = A.to_plain(), torch.eye(3, dtype=F64)
    calls: list[Callable[[], Any]] = [
        lambda: linalg.det(A.float()),
        lambda: linalg.det(numbers(33, 33)),
        lambda: linalg.det(numbers(0, 0)),
        lambda: linalg.lu_factor(A, pivot=False),
        lambda: linalg.lu_factor(B.mT),
        lambda: linalg.solve(A, eye),
        lambda: linalg.solve(plain, A),
        lambda: linalg.solve(A, A, left=False),
        lambda: linalg.solve(A, numbers(2, 3, 2)),
        lambda: linalg.solve(A, B.to(terms=3)),
        lambda: linalg.solve(A, numbers(3, 0)),
        lambda: linalg.solve(numbers(2, 3, 3), B),
        lambda: linalg.solve(numbers(3, 3, 3), A),
        lambda: linalg.solve_triangular(A, A, upper=True, left=False),
        lambda: linalg.solve_triangular(numbers(2, 3, 3), B, upper=True),
        lambda: torch.cholesky_solve(B, A.tril()),
        lambda: linalg.lu_solve(A, PIVOTS, B, adjoint=True),
        lambda: linalg.lu_solve(A, PIVOTS, A, left=False),
        lambda: linalg.lu_solve(A, PIVOTS, numbers(2, 3, 3)),
        lambda: linalg.lu_solve(A, PIVOTS, eye),
        lambda: linalg.lu_solve(A, PIVOTS[:2], B),
        lambda: linalg.eigh(A.float()),
        lambda: linalg.eigvalsh(numbers(33, 33)),
        lambda: linalg.svd(numbers(7, 3)),
        lambda: linalg.svd(numbers(3, 4)),
        lambda: linalg.svdvals(numbers(0, 3, 3)),
    ]
    for k, call in enumerate(calls):
        at_once, expected = both(call, monkeypatch)
        for got, want in zip(flattened(at_once), flattened(expected), strict=True):
            assert_alike(got, want, f"{k}")
