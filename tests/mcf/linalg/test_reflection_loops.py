"""The loop of a panel's reflections has the bits of one launch for each step."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mcf.kernels import operations
from mcf.linalg import number_kinds, parts, qr_factors
from mcf.reductions import products
from tests.helpers.everyday import everyday
from tests.mcf.linalg.test_elimination_loops import F64, assert_same_bits, components


def panel(a: parts.Components) -> tuple[Any, ...]:
    """R, V and T of the first panel."""
    r = parts.each(torch.clone, a)
    v, t, _ = qr_factors._panel(r, slice(0, min(32, *a[0].shape[-2:])))
    return parts.each(torch.triu, r), v, t


@pytest.mark.slow
@pytest.mark.parametrize(
    ("terms", "shapes"),
    everyday(
        [
            (2, [(1, 1), (2, 3), (5, 3), (2, 9, 7), (34, 40)]),
            (2, [(2, 41, 34)]),
            *[(k, [(5, 3), (2, 9, 7), (34, 40), (41, 34)]) for k in (1, 3, 4)],
        ],
        [(2, [(1, 1), (2, 3), (5, 3), (2, 9, 7), (34, 40)])],
    ),
)
def test_panels_and_factors(terms: int, shapes: list[tuple[int, ...]]) -> None:
    """Fewer, as many and more rows than columns, a batch, a second panel, lengths of folds."""
    for shape in shapes:
        a = components(F64, terms, *shape)
        if max(shape) < 32:
            assert_same_bits(lambda a=a: panel(a))
        # Which begins with the panel.
        assert_same_bits(lambda a=a: qr_factors.factor(a, "complete"))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("exponent", [-1060, -1022, -900, 900, 1022])
def test_columns_at_the_ends_of_the_range(exponent: int) -> None:
    a = operations.ldexp(components(F64, 2, 6, 4), exponent)
    assert_same_bits(lambda: panel(a))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    "rows",
    [
        [[0.0, 0.0], [0.0, -0.0]],
        [[1.0, 1.0], [1.0, 1.0]],
        [[-2.0, 1.0], [0.0, 2.0**-700], [0.0, 2.0**-700]],
        [[1.0, torch.nan, 2.0], [3.0, 4.0, 5.0], [-3.0, 1.0, torch.inf]],
        [[1.0, torch.inf], [-torch.inf, 2.0]],
    ],
    ids=["zeros", "deficient", "flat", "not_a_number", "infinite"],
)
def test_special_values(rows: list[list[float]]) -> None:
    leading = torch.tensor(rows, dtype=F64)
    assert_same_bits(lambda: panel((leading, torch.zeros_like(leading))))


def _reversed(x: parts.Components, y: parts.Components) -> parts.Components:
    """The same products, whose terms are added from the last to the first."""
    return products.matmul(parts.each(lambda c: c.flip(-1), x), parts.each(lambda c: c.flip(-2), y))


def _turned(
    v: parts.Components, t: parts.Components, x: parts.Components, arithmetic: number_kinds.Real
) -> parts.Components:
    """Products of reflections from the last to the first."""
    return REFLECT(v, parts.transpose(t), x, arithmetic)


REFLECT = qr_factors._reflect


@pytest.mark.parametrize(
    ("module", "name", "mutant"),
    [(number_kinds, "matmul", _reversed), (qr_factors, "_reflect", _turned)],
    ids=["order", "transposed"],
)
def test_the_comparison_rejects(
    module: Any, name: str, mutant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutants: what launches of single steps have that the loop's declaration has not."""
    a = components(F64, 2, 6, 4)
    assert_same_bits(lambda: qr_factors.factor(a))
    monkeypatch.setattr(module, name, mutant)
    with pytest.raises(AssertionError):
        assert_same_bits(lambda: qr_factors.factor(a))


def test_narrow_formats_are_rounded_once() -> None:
    """Of float32 and 16-bit components the factors are those in float64, rounded."""
    a = components(torch.float32, 3, 5, 4)
    wide = qr_factors.convert(a, F64, 2)
    for x, y in zip(qr_factors.factor(a), qr_factors.factor(wide), strict=True):
        assert x is not None
        assert y is not None
        narrow = qr_factors.convert(y, torch.float32, 3)
        assert all(torch.equal(p, q) for p, q in zip(x, narrow, strict=True))
