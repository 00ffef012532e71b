"""Sums, products and moments in float32 registers, `mcf.set_registers("float32")`.

*Proven bound* (`mcf.bound(..., registers="float32")`), against rational arithmetic, on inputs that
nearly cancel and at the ends of the range. Each bound rejects its mutants: arguments without their
last component, a merge, a term and a combination without an error, gaps that are not scaled.
"""

from __future__ import annotations

import functools
from fractions import Fraction

import pytest
import torch
from torch import Tensor

import mcf
from mcf.kernels.fold import LANES, product_fold, sum_fold
from mcf.kernels.fold_bounds import fold_bound
from mcf.kernels.formats import BF16, FP16, FP32, Format
from mcf.reductions import folds, sums
from mcf.reductions.sum_bounds import ROWS
from tests.helpers.sums import Components, cancelling, values
from tests.kernels.test_fold import MUTANTS, Mutant, worst
from tests.mcf import test_reduction_bounds
from tests.mcf.test_reduction_bounds import computed, exactly, given, spread

pytestmark = pytest.mark.usefixtures("float32_registers")


CASES = [(fmt, n) for fmt in (BF16, FP16, FP32) for n in (1, 2, 3, 4)]
MARGIN = 2
ids = lambda c: getattr(c, "name", c)  # noqa: E731


excess = functools.partial(test_reduction_bounds.excess, register=FP32)


def sum_of(x: Components) -> Fraction:
    return sum(values(x), Fraction(0))


@pytest.mark.parametrize(
    ("operation", "fmt", "terms"),
    [(o, f, n) for f, n in CASES for o in ROWS if (o, f) != ("polyval", FP16) or n == 1],
    ids=ids,
)
@pytest.mark.sampled(every=15)
def test_bound(operation: str, fmt: Format, terms: int) -> None:
    assert excess(operation, fmt, terms, given(operation, fmt, terms)) <= 1
    if operation in ("mean", "var", "std"):
        assert excess(operation, fmt, terms, (spread(fmt, terms, 6),)) <= 1


@pytest.mark.parametrize("operation", [o for o in ROWS if o != "polyval"])
@pytest.mark.parametrize(("fmt", "terms"), [(FP32, 2), (FP32, 3), (FP32, 4), (BF16, 3)], ids=ids)
@pytest.mark.sampled(every=9)
def test_bounds_reject_the_loss_of_a_component(operation: str, fmt: Format, terms: int) -> None:
    assert excess(operation, fmt, terms, given(operation, fmt, terms), drop=1) > MARGIN


@pytest.mark.parametrize(("fmt", "terms"), CASES, ids=ids)
@pytest.mark.sampled(every=10)
def test_bound_of_a_fold(fmt: Format, terms: int) -> None:
    for rows, length in ((50, 1), (20, 5), (3, 300), (2, 9 * LANES)):
        x = list(cancelling(fmt, terms, (rows, length), length))
        y = list(cancelling(fmt, terms, (rows, length), length + 1))
        bound = fold_bound(fmt, terms, length, register=FP32)
        assert worst(sum_fold(fmt, terms, terms, FP32), bound, x, None, length) <= 1
        product = product_fold(fmt, terms, terms, terms, FP32)
        assert worst(product, bound, x, y, length) <= 1
        single = product_fold(fmt, terms, 1, terms, FP32)
        assert worst(single, bound, x, y[:1], length) <= 1


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("terms", "part", "algorithm"), MUTANTS, ids=[f"{p}-{a.__name__}" for _, p, a in MUTANTS]
)
def test_the_bound_of_a_fold_catches(terms: int, part: str, algorithm: object) -> None:
    spec = product_fold(FP32, terms, terms, terms, FP32)
    term = algorithm if part == "term" else spec.term
    fields = (spec.name, term, spec.formats, spec.components, spec.state, FP32)
    length = 9 * LANES
    x = list(cancelling(FP32, terms, (2, length), 0))
    y = list(cancelling(FP32, terms, (2, length), 1))
    broken = Mutant(*fields, broken=(part, algorithm))  # type: ignore[arg-type]
    bound = fold_bound(FP32, terms, length, register=FP32)
    assert worst(broken, bound, x, y, length) > MARGIN


def test_a_matrix_product_has_a_bound_up_to_some_length() -> None:
    assert mcf.bound("matmul", 2, count=1 << 22, registers="float32").of_terms < 2.0**-25
    with pytest.raises(ValueError, match="combinations in a row"):
        mcf.bound("matmul", 2, count=1 << 23, registers="float32")


def gaps(scale: float, terms: int) -> Components:
    """Numbers beside 1 whose squared gaps are below the range of float32, or of its low parts."""
    near = torch.tensor([0.0, 1.0, 3.0, 4.5, -2.0, 7.0]) * scale
    zeros = [torch.zeros_like(near) for _ in range(terms - 2)]
    return torch.ones_like(near), near, *zeros


def test_small_gaps_keep_their_squares(monkeypatch: pytest.MonkeyPatch) -> None:
    x = (gaps(2.0**-74, 4),)
    assert excess("var", FP32, 4, x) <= 1
    assert excess("std", FP32, 4, x) <= 1
    unscaled = lambda x: (list(x), torch.zeros(len(x[0]), dtype=torch.int64))  # noqa: E731
    monkeypatch.setattr(sums, "scaled_rows", unscaled)
    assert excess("std", FP32, 4, x) > MARGIN


@pytest.mark.parametrize("scale", [2.0**-120, 2.0**110])
@pytest.mark.parametrize("fmt", [BF16, FP32], ids=ids)
@pytest.mark.parametrize("operation", ["norm", "std", "mean", "sum"])
@pytest.mark.sampled(every=3)
def test_ends_of_the_range(operation: str, fmt: Format, scale: float) -> None:
    x = tuple((c.float() * scale).to(fmt.dtype) for c in spread(fmt, 2, 3))
    assert excess(operation, fmt, 2, (x,)) <= 1


@pytest.mark.parametrize("fmt", [BF16, FP32], ids=ids)
def test_products_below_the_range_cost_what_the_bound_says(fmt: Format) -> None:
    x, y = (tuple((c.float() * 2.0**-68).to(fmt.dtype) for c in spread(fmt, 2, s)) for s in (1, 2))
    assert excess("dot", fmt, 2, (x, y)) <= 1
    # And they do cost something: in float64 registers nothing is lost.
    exact, size, count = exactly("dot", (x, y))
    relative = ROWS["dot"].bound(fmt, 2, count, FP32).error(exact, size)
    lost = abs(sum_of(computed("dot", (x, y), 2)) - exact)
    assert lost > relative
    with mcf.registers("float64"):
        lost = abs(sum_of(computed("dot", (x, y), 2)) - exact)
        assert lost <= ROWS["dot"].bound(fmt, 2, count).error(exact, size) + fmt.min_subnormal


def test_a_count_that_no_float32_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for number, parts in ((2**24 + 1.0, 2), (5 - 0.1, 3), (7.0, 1)):
        found = sums._count(number, torch.ones(()))
        assert len(found) == parts
        assert sum(Fraction(c.item()) for c in found) == Fraction(number)
    x = mcf.tensor([1.0, 2.0, 4.0, 8.0], 2)
    [exact] = values((torch.tensor([0.1], dtype=torch.float64),))
    got = sum_of(x.var(correction=0.1).components)
    true = Fraction(115, 4) / (4 - exact)
    assert abs(got - true) <= Fraction(2) ** -40 * true
    rounded = lambda number, like: (torch.tensor(float(number)),)  # noqa: E731
    monkeypatch.setattr(sums, "_count", rounded)
    got = sum_of(x.var(correction=0.1).components)
    assert abs(got - true) > Fraction(2) ** -40 * true


def test_the_bound_is_that_of_the_choice() -> None:
    def of(registers: str | None) -> float:
        return mcf.bound("dot", 2, count=1000, registers=registers).of_terms

    assert of("float32") == of(None) > of("float64")
    with mcf.registers("auto"):
        assert of(None) == of("float64")
    with mcf.registers("float64"):
        assert of("float32") > of(None)
    # Components of float64 have registers of their own width under every choice.
    wide = [mcf.bound("dot", 2, torch.float64, count=9, registers=r) for r in ("float64", None)]
    assert wide[0] == wide[1]
    with pytest.raises(ValueError, match="registers must be 'float64', 'float32' or None, got 16"):
        mcf.bound("dot", 2, count=9, registers=16)  # type: ignore[arg-type]


def test_float64_components_do_not_depend_on_the_choice() -> None:
    x = tuple(c.double() for c in cancelling(FP32, 2, (300,), 3))
    narrow = folds.row_sums([c[None] for c in x], 2)
    with mcf.registers("float64"):
        wide = folds.row_sums([c[None] for c in x], 2)
    assert [c.item() for c in narrow] == [c.item() for c in wide]


def test_exact_sums_do_not_depend_on_the_choice() -> None:
    x: Tensor = mcf.from_components(cancelling(FP32, 2, (300,), 3))
    found = [mcf.sum(x, reproducible=True)]
    with mcf.registers("float64"):
        found.append(mcf.sum(x, reproducible=True))
    assert found[0].components[0] == found[1].components[0]
    assert found[0].components[1] == found[1].components[1]
