"""Triton's kernels of panels, in its interpreter: the bits of plain torch operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="triton has wheels for Linux only")

import mcf
from mcf.kernels import elimination, operations, reflection, rotation
from mcf.kernels.formats import BF16, FP32, FP64
from mcf.kernels.triton import elimination_kernels, reflection_kernels, rotation_kernels
from mcf.kernels.triton.panel_source import BARRIER
from mcf.linalg import lu_factors, orthogonal_rows, qr_factors, triangular
from mcf.linalg.number_kinds import COMPLEX, REAL, Real
from tests.helpers.everyday import everyday
from tests.mcf.linalg import test_loops
from tests.mcf.linalg.test_loops import (
    CALLS,
    F32,
    F64,
    SPECIAL,
    SPECIAL_ROWS,
    components,
    counted,
    of_kind,
)


def assert_same_bits(call: Callable[[], Any]) -> None:
    test_loops.assert_same_bits(call, "triton")


REALS = [
    *((F64, 1, (4, 6)), (F64, 2, (2, 5, 4)), (F64, 1, (7, 6)), (F64, 3, (5, 7)), (F64, 4, (4, 4))),
    *((F64, 1, (34, 36)), (F64, 2, (34, 33)), (F32, 1, (5, 5)), (F32, 2, (2, 7, 6))),
    *((torch.bfloat16, 1, (5, 5)), (torch.bfloat16, 2, (4, 6))),
]
COMPLEXES = [(F64, 1, (3, 3)), (F64, 2, (34, 34)), (F64, 4, (4, 4)), (F32, 2, (5, 5))]


@pytest.mark.parametrize(
    ("name", "dtype", "terms", "shape", "of"),
    everyday(
        [
            (name, *case, of)
            for name in CALLS
            for of, cases in ((REAL, REALS), (COMPLEX, COMPLEXES))
            for case in cases
            if name != "qr"
        ],
        lambda name, _, terms, shape, of: (
            shape == ((4, 6) if of is REAL else (3, 3))
            and terms == 1
            and (of is REAL or name == "lu")
        ),
    ),
)
def test_eliminations(
    name: str, dtype: torch.dtype, terms: int, shape: tuple[int, ...], of: Real
) -> None:
    """Fewer and more rows than columns, batches, a second panel, triangles of both kinds."""
    a = of_kind(components(dtype, terms, *shape), of)
    assert_same_bits(lambda: CALLS[name](a, of))


@pytest.mark.parametrize("name", everyday(SPECIAL, ["tied"]))
def test_special_pivots(name: str) -> None:
    leading = torch.tensor(SPECIAL[name], dtype=F64)
    a = (leading, torch.zeros_like(leading))
    assert_same_bits(lambda: lu_factors.factor(a))
    assert_same_bits(lambda: triangular.cholesky(a))


@pytest.mark.parametrize(
    ("terms", "shape"),
    everyday(
        [(1, (5, 3)), (2, (2, 9, 7)), (2, (34, 34)), (2, (3, 5)), (3, (6, 4)), (4, (5, 3))],
        [(1, (5, 3))],
    ),
)
def test_reflections(terms: int, shape: tuple[int, ...]) -> None:
    a = components(F64, terms, *shape)
    assert_same_bits(lambda: qr_factors.factor(a, "complete"))


@pytest.mark.slow
@pytest.mark.parametrize("exponent", [-1060, -1022, 900, 1022])
def test_columns_at_the_ends_of_the_range(exponent: int) -> None:
    a = operations.ldexp(components(F64, 2, 6, 4), exponent)
    assert_same_bits(lambda: qr_factors.factor(a))


@pytest.mark.parametrize(
    ("terms", "shape"),
    everyday(
        [
            (1, (1, 3, 2)),
            (1, (2, 3, 3)),
            (1, (1, 9, 14)),
            (1, (2, 2, 1)),
            (2, (2, 4, 5)),
            (3, (1, 3, 3)),
            (4, (1, 3, 2)),
        ],
        [(1, (1, 3, 2))],
    ),
)
def test_rotations(terms: int, shape: tuple[int, int, int]) -> None:
    """Even and odd numbers of rows and of columns, and columns that only follow."""
    a = components(F64, terms, *shape)
    for width in sorted({shape[2], max(1, shape[2] - 3)}):
        assert_same_bits(
            lambda width=width: orthogonal_rows.orthogonalize(a, width, 2.0 ** (4 - 53 * terms))
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECIAL_ROWS)
def test_special_rows(name: str) -> None:
    a = (torch.tensor(SPECIAL_ROWS[name], dtype=F64)[None],)
    assert_same_bits(lambda: orthogonal_rows.orthogonalize(a, 2, 2.0**-49))


def test_a_panel_is_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not one for each of its columns."""
    a = components(F64, 1, 4, 3)
    with mcf.executor("triton"):
        names = ("eliminate", "reflect", "rotate", "run", "product")
        calls = counted(monkeypatch, names)
        lu_factors.factor(a)
        orthogonal_rows.orthogonalize(tuple(c[None] for c in a), 3, 2.0**-49)
        qr_factors._panel(tuple(c.clone() for c in a), slice(0, 3))
    assert calls == ["eliminate", "rotate", "reflect"]


SOURCES = {
    "lu": lambda: elimination_kernels.panel_source(elimination.elimination("lu", FP64, 2)),
    "cholesky": lambda: elimination_kernels.panel_source(
        elimination.elimination("cholesky", BF16, 1)
    ),
    "substitution": lambda: elimination_kernels.substitution_source(
        elimination.elimination("substitution", FP32, 3)
    ),
    "reflection": lambda: reflection_kernels.source(reflection.reflection(2)),
    "rotations": lambda: rotation_kernels.source(rotation.rotations(1)),
    "rotations_of_two": lambda: rotation_kernels.source(rotation.rotations(2)),
}


def unguarded(text: str) -> list[str]:
    """Stores into operands that have no barrier right before or after all of their components."""
    lines = [line.strip() for line in text.splitlines()]
    stores = [k for k, line in enumerate(lines) if line.startswith("tl.store(p_")]
    assert stores
    found = []
    for k in stores:
        before, after = k - 1, k + 1
        while before in stores:
            before -= 1
        while after in stores:
            after += 1
        if not lines[before] == lines[after] == BARRIER:
            found.append(lines[k])
    return found


@pytest.mark.parametrize("name", SOURCES)
def test_stores_stand_between_barriers(name: str) -> None:
    """The interpreter has one thread and cannot see a race. The mutant lacks one barrier."""
    text = SOURCES[name]()
    assert unguarded(text) == []
    first = text.index(BARRIER)
    assert unguarded(text[:first] + "pass" + text[first + len(BARRIER) :])


MUTANTS = [
    (
        "lu",
        "place = tl.reduce(tl.where(size == most, row, rows), 0, SMALLEST)",
        "place = tl.reduce(tl.where(size == most, row, -1), 0, LARGEST)",
    ),
    ("reflection", "while f + 4 <=", "while f + 400 <="),
    ("rotations", "+ here + half", "+ here + count - half"),
]


@pytest.mark.parametrize(("kind", "right", "wrong"), MUTANTS, ids=[m[0] for m in MUTANTS])
def test_the_comparison_rejects(
    kind: str, right: str, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutants: the last of equal pivots, sums in another order, halves of others."""
    module: Any = {
        "lu": elimination_kernels,
        "reflection": reflection_kernels,
        "rotations": rotation_kernels,
    }[kind]
    name = "panel_source" if kind == "lu" else "source"
    real = getattr(module, name)

    def mutated(spec: Any) -> str:
        text: str = real(spec)
        assert right in text
        return text.replace(right, wrong)

    monkeypatch.setattr(module, name, mutated)
    monkeypatch.setattr(module, "kernel", module.kernel.__wrapped__)
    tied = (torch.tensor(SPECIAL["tied"], dtype=F64),)
    calls: dict[str, Callable[[], Any]] = {
        "lu": lambda: lu_factors.factor(tied),
        "reflection": lambda: qr_factors.factor(components(F64, 2, 7, 2)),
        "rotations": lambda: orthogonal_rows.orthogonalize(
            components(F64, 1, 1, 2, 6), 6, 2.0**-49
        ),
    }
    with pytest.raises(AssertionError):
        assert_same_bits(calls[kind])
