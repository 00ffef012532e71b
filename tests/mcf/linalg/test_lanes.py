"""Small matrices of a batch, each a lane, have the bits of one launch for each step.

Caught mutants: a pivot of another lane; the last matrix's repetitions stored; an exchange of rows
whose pivot is the row itself; NaN passed over in the search for a pivot; a column called flat for
its neighbour's sake; a determinant with the signs of the columns that change no places; the rows of
a unit triangle's right-hand sides not kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mcf.kernels import operations
from mcf.kernels.numba.loops.matrices import lane_text
from mcf.linalg import cholesky_factor, lu_factors, number_kinds, parts, qr_factors, triangular
from tests.helpers.everyday import everyday
from tests.mcf.linalg.test_elimination_loops import F64, assert_same_bits, components

INF, NAN = float("inf"), float("nan")
F32 = torch.float32


def uneven(dtype: torch.dtype, terms: int, *shape: int) -> parts.Components:
    """Matrices each of which takes another way: zeros, ties, what is not finite, far exponents."""
    a = [c.clone() for c in components(dtype, terms, *shape)]
    batch, m, n = shape
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


def batches() -> tuple[int, int]:
    """Fewer than a block, and two with one more."""
    wide = lane_text.wide()
    return wide // 2 + 1, 2 * wide + 1


SHAPES = [(1, 1), (3, 3), (4, 2), (8, 8)]


def square(a: parts.Components) -> parts.Components:
    n = min(a[0].shape[-2:])
    return parts.each(lambda c: c[:, :n, :n].contiguous(), a)


def positive(a: parts.Components) -> parts.Components:
    eye = torch.eye(a[0].shape[-1], dtype=a[0].dtype) * 8
    return operations.add(a, eye.expand_as(a[0]).contiguous())


# Functions of matrices of at least as many rows as columns.
CALLS: dict[str, Callable[[parts.Components], Any]] = {
    "lu": lambda a: [lu_factors.factor(a), lu_factors.factor(a, pivot=False)],
    "solutions": lambda a: [lu_factors.solved(square(a), b) for b in (square(a), first(a))],
    "determinants": lambda a: lu_factors.determined(square(a)),
    "cholesky": lambda a: [cholesky_factor.factor(b) for b in (square(a), positive(square(a)))],
    "substitution": lambda a: [
        triangular.solve(square(a), b, upper=upper, unitriangular=unit)
        for b in (square(a), first(a)) for upper in (False, True) for unit in (False, True)
    ],
    "qr": lambda a: [x for b in (a, parts.transpose(a)) for mode in ("reduced", "complete", "r")
                     for x in qr_factors.factor(b, mode) if x is not None],
}  # fmt: skip


def first(a: parts.Components) -> parts.Components:
    return parts.each(lambda c: c[..., :1].contiguous(), square(a))


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What was said of each batch."""
    said: list[bool] = []
    across = lane_text.across

    def asked(*args: Any, **kwargs: Any) -> bool:
        said.append(across(*args, **kwargs))
        return said[-1]

    monkeypatch.setattr(lane_text, "across", asked)
    return said


@pytest.mark.parametrize("name", everyday(CALLS, ["lu"]))
def test_pairs(name: str, taken: list[bool]) -> None:
    for m, n in SHAPES:
        for batch in batches():
            a = uneven(F64, 2, batch, m, n)
            assert_same_bits(lambda a=a: CALLS[name](a))
    assert taken
    assert all(taken)


def test_reflections(taken: list[bool]) -> None:
    """Of the slow test, what is done every day."""
    a = uneven(F64, 2, batches()[1], 4, 3)
    assert_same_bits(lambda: qr_factors.factor(a, "complete"))
    assert taken
    assert all(taken)


OTHERS = [(F64, 1), (F64, 3), (F64, 4), (F32, 1), (F32, 2), (F32, 4), (torch.bfloat16, 2)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype", "terms"),
    # Reflections are computed in float64.
    [(name, *kind) for name in CALLS for kind in OTHERS if name != "qr" or kind[0] is F64],
)
def test_other_formats(name: str, dtype: torch.dtype, terms: int, taken: list[bool]) -> None:
    for m, n in SHAPES[1:]:
        a = uneven(dtype, terms, lane_text.wide(8 if dtype is F64 else 4) + 3, m, n)
        assert_same_bits(lambda a=a: CALLS[name](a))
    assert taken
    assert all(taken)


@pytest.mark.slow
@pytest.mark.parametrize("terms", [1, 2])
def test_complex_numbers(terms: int, taken: list[bool]) -> None:
    """Those of functions that take their arithmetic."""
    of = number_kinds.COMPLEX
    for m, n in SHAPES[1:]:
        a = uneven(F64, terms, lane_text.wide() + 3, m, n)
        both = *a, *parts.each(lambda c: c.flip(0).contiguous(), a)
        some = square(both)
        calls: list[Callable[[], Any]] = [
            lambda both=both: lu_factors.factor(both, numbers=of),
            lambda some=some: lu_factors.solved(some, some, of),
            lambda some=some: lu_factors.determined(some, of),
            lambda some=some: cholesky_factor.factor(some, of),
            lambda some=some: triangular.solve(some, some, upper=True, numbers=of),
            lambda both=both: [qr_factors.factor(b, "complete", of)
                               for b in (both, parts.transpose(both))],
        ]  # fmt: skip
        for call in calls:
            assert_same_bits(call)
    assert taken
    assert all(taken)


def test_what_is_larger_or_few_is_taken_row_by_row() -> None:
    """A block that is half empty takes as long as its matrices one after the other."""
    wide = lane_text.wide()
    assert lane_text.across(wide // 2, lane_text.MOST)
    assert not lane_text.across(wide // 2 - 1, lane_text.MOST)
    assert not lane_text.across(wide, lane_text.MOST + 1)
    assert not lane_text.across(wide, 0)
    assert lane_text.wide(4) == 2 * wide
    assert [lane_text.blocks(n) for n in (1, wide, wide + 1)] == [1, 1, 2]
