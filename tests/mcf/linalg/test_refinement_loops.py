"""The loop of corrections of orthogonal matrices has the bits of matrix products and torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mcf.kernels import operations
from mcf.kernels.numba.loops.matrices import refinement_loops
from mcf.kernels.refinement import DONE, STUCK
from mcf.linalg import eigen, orthogonal_rows, parts, singular
from tests.helpers.everyday import everyday
from tests.mcf.linalg.test_elimination_loops import F64, assert_same_bits, components
from tests.mcf.linalg.test_one_call import counted

SLOW = pytest.mark.slow


def positive(terms: int, *shape: int) -> parts.Components:
    """Symmetric matrices with a dominant diagonal."""
    a = components(F64, terms, *shape, shape[-1])
    return operations.add(
        operations.add(a, parts.transpose(a)), 4 * torch.eye(shape[-1], dtype=F64)
    )


@pytest.mark.parametrize(
    ("terms", "shape"),
    everyday(
        [
            (2, (2, 4, 6)),
            (2, (1, 1, 3)),
            (2, (1, 7, 20)),
            (2, (1, 33, 33)),
            (3, (2, 5, 5)),
            (4, (2, 4, 5)),
        ],
        [(2, (2, 4, 6))],
    ),
)
def test_general_and_positive_matrices(terms: int, shape: tuple[int, ...]) -> None:
    a = components(F64, terms, *shape)
    assert_same_bits(lambda: orthogonal_rows.orthogonal_rows(a))
    s = positive(terms, *shape[:-1])
    assert_same_bits(lambda: orthogonal_rows.orthogonal_rows(s, positive=True))


CLOSE = [[1.0, 2.0**-60, 0.0], [2.0**-60, 1.0, 2.0**-70], [0.0, 2.0**-70, 1.0 + 2.0**-52]]
ROWS = {
    "zeros": [[0.0] * 3] * 3,
    "deficient": [[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [0.0, 0.0, 1.0]],
    "vanishing": [[2.0**-260, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.5, 1.0]],
    "close": CLOSE,
    "graded": [[1.0, 2.0**-30, 2.0**-60], [2.0**-30, 2.0**-55, 0.0], [2.0**-60, 0.0, 2.0**-90]],
}


@pytest.mark.parametrize("name", everyday(ROWS, ["close"]))
def test_clusters_and_ranks(name: str) -> None:
    """Also of matrices that rotations in expansions finish."""
    leading = torch.tensor(ROWS[name], dtype=F64)[None]
    a = (leading, torch.zeros_like(leading))
    assert_same_bits(lambda: orthogonal_rows.orthogonal_rows(a))
    assert_same_bits(lambda: eigen.decompose(a)[:2])


@SLOW
def test_rows_that_are_apart_where_a_mean_is_small() -> None:
    """Which `test_spectral` has of torch's operations."""
    rows = [[-4322, -2936, -7567, 11926], [5765, 3907, 10086, -15912]]
    whole = torch.tensor([[*rows, [-21624, -14672, -37824, 59664]]], dtype=F64)
    a = (whole * 2.0**-16, torch.zeros_like(whole))
    assert_same_bits(lambda: orthogonal_rows.orthogonal_rows(a))
    assert_same_bits(lambda: singular.decompose(a))


def test_matrices_end_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch has each matrix's own result, and the number of corrections is its own."""
    both = torch.cat([positive(2, 1, 3)[0], torch.tensor(CLOSE, dtype=F64)[None]])
    a = (both, torch.zeros_like(both))
    calls = counted(monkeypatch, ("refine", "product"))
    w, x, squares, done = orthogonal_rows.orthogonal_rows(a)
    assert calls[0] == "refine"
    assert bool(done.all())
    for k in range(2):
        alone = orthogonal_rows.orthogonal_rows(tuple(c[k : k + 1] for c in a))
        for p, q in zip((*w, *x, *squares), [c for y in alone[:3] for c in y], strict=True):
            assert torch.equal(p[k], q[0])


def test_what_does_not_get_better_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that is no orthogonal matrix."""
    states: list[Any] = []
    real = refinement_loops.refine

    def noted(*args: Any) -> Any:
        states.append(real(*args))
        return states[-1]

    monkeypatch.setattr(refinement_loops, "refine", noted)
    monkeypatch.setattr(
        orthogonal_rows, "_start", lambda m, *_: (torch.ones_like(m[0][..., :3]) / 2,)
    )
    a = components(F64, 2, 1, 3, 3)
    assert_same_bits(lambda: orthogonal_rows.orthogonal_rows(a)[-1])
    assert states[0].tolist() == [STUCK] != [DONE]


def test_one_row_that_is_not_done_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its root stood in the place of the matrix, of which W M was computed again."""
    monkeypatch.setattr(
        orthogonal_rows, "_start", lambda m, *_: (torch.full((1, 1, 1), 0.5, dtype=F64),)
    )
    a = tuple(torch.full((1, 1, 1), x, dtype=F64) for x in (3.0, 2.0**-60))
    assert_same_bits(lambda: orthogonal_rows.orthogonal_rows(a))


def test_the_comparison_rejects_one_step_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: the loop makes the start orthogonal once less than the other program."""
    a = components(F64, 2, 1, 4, 4)
    real = refinement_loops.refine

    def less(*given: Any) -> Any:
        *operands, steps, tolerance, share = given
        return real(*operands, steps - 1, tolerance, share)

    monkeypatch.setattr(refinement_loops, "refine", less)
    with pytest.raises(AssertionError):
        assert_same_bits(lambda: orthogonal_rows.orthogonal_rows(a))
