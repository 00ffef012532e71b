"""Sums, dot products and matrix products: the same bits everywhere, and within their bounds.

*Exact*: bits of the three executors, and of one thread and two. *Proven bound*:
`mcf.kernels.fold_bounds` against rational arithmetic on nearly cancelling terms. Mutants: a merge
without a rounding error, a term without a cross product, a combination that settles nothing of the
low registers.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from torch import Tensor

import mcf
from mcf.kernels import operations
from mcf.kernels import registry as folds
from mcf.kernels.algorithms import fold_terms, two_prod, two_sum
from mcf.kernels.algorithms.primitives import ZERO, rn
from mcf.kernels.bind import Algorithm
from mcf.kernels.fold import BLOCK, LANES, Fold, product_fold, sum_fold
from mcf.kernels.fold_bounds import FoldBound, fold_bound
from mcf.kernels.formats import BF16, FORMATS, FP32, FP64, Format
from tests.helpers import assert_same_bits
from tests.helpers.everyday import everyday
from tests.helpers.executors import EXECUTORS
from tests.helpers.sums import cancelling, exact_dot, exact_sum, values

CASES = [(fmt, terms) for fmt in FORMATS.values() for terms in (1, 2, 3, 4)]
# With the format of the registers: float64, or float32 for narrower components.
IN_REGISTERS = [(fmt, n, FP64) for fmt, n in CASES] + [
    (fmt, n, FP32) for fmt, n in CASES if fmt != FP64
]
# What runs by default: what other tests compile too.
EVERYDAY = ((FP64, 2, FP64), (FP32, 2, FP32))
by_case = pytest.mark.parametrize(
    ("fmt", "terms", "register"),
    everyday(IN_REGISTERS, EVERYDAY),
    ids=lambda c: getattr(c, "name", c),
)
# One element; around the lanes; rows left over; a last block shorter and longer than the lanes.
LENGTHS = (1, 2, LANES - 1, LANES + 3, 6 * LANES + 5, BLOCK + 7, BLOCK + 3 * LANES + 1)


def check_sums(fmt: Format, terms: int, register: Format, executor: str) -> None:
    for length in LENGTHS:
        x = list(cancelling(fmt, terms, (2, length), length))
        y = list(cancelling(fmt, terms, (2, length), length + 1))
        specs = [
            (product_fold(fmt, terms, terms, terms, register), [x, y]),
            (product_fold(fmt, terms, 1, terms, register), [x, y[:1]]),
            (sum_fold(fmt, terms, terms, register), [x]),
        ]
        # Each is compiled: by default one in float32 registers.
        for spec, operands in specs[:1] if (fmt, terms, register) == EVERYDAY[1] else specs:
            with mcf.executor("torch"):
                expected = folds.fold(spec, operands)
            assert expected.dtype == register.dtype
            with mcf.executor(executor):
                actual = folds.fold(spec, operands)
            assert_same_bits(actual, expected, f"{executor} {spec.name} {length}")


@pytest.mark.sampled(every=2)
@by_case
def test_numba_sums_have_the_bits_of_torch(fmt: Format, terms: int, register: Format) -> None:
    check_sums(fmt, terms, register, "numba")


@pytest.mark.slow
@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("executor", EXECUTORS[2:])
@by_case
def test_triton_sums_have_the_bits_of_torch(
    fmt: Format, terms: int, register: Format, executor: str
) -> None:
    check_sums(fmt, terms, register, executor)


# Terms are loaded as in the sums above, and added up in the same registers.
@by_case
def test_products_of_matrices_have_the_same_bits(fmt: Format, terms: int, register: Format) -> None:
    executors = ["numba", "triton"] if fmt in (BF16, FP64) or register == FP32 else ["numba"]
    for inner in (1, 3, 4, 11):
        x = list(cancelling(fmt, terms, (2, 3, inner), inner))
        y = list(cancelling(fmt, terms, (2, inner, 131), inner + 1))
        for left, right in ((x, y), (x[:1], y), (x, y[:1])):
            spec = product_fold(fmt, len(left), len(right), terms, register)
            with mcf.executor("torch"):
                expected = folds.product(spec, left, right)
            for executor in executors:
                if executor == "triton":
                    pytest.importorskip("triton")
                    # The interpreter takes seconds; the other cases have all lengths.
                    if inner > 3 and (fmt, terms, register) in EVERYDAY:
                        continue
                with mcf.executor(executor):
                    actual = folds.product(spec, left, right)
                assert_same_bits(actual, expected, f"{executor} {spec.name} {inner}")


@pytest.mark.parametrize("fmt", [FP64, FP32], ids=lambda f: f.name)
def test_any_number_of_threads_gives_the_same_bits(
    fmt: Format, set_threads: Callable[[int], None]
) -> None:
    x = list(cancelling(fmt, 2, (3, 5 * BLOCK + 9), 0))
    spec = product_fold(fmt, 2, 2, 2, fmt)
    a = [c[:, :1280].reshape(3, 40, 32).contiguous() for c in x]
    b = [c.mT.contiguous() for c in a]
    results = []
    for threads in (1, 2, 3):
        set_threads(threads)
        results.append((folds.fold(spec, [x, x]), folds.product(spec, a, b)))
    for sums, products in results[1:]:
        assert_same_bits(sums, results[0][0])
        assert_same_bits(products, results[0][1])


def test_a_row_does_not_depend_on_the_others() -> None:
    x = list(cancelling(FP64, 2, (7, 1000), 0))
    spec = sum_fold(FP64, 2, 2)
    together = folds.fold(spec, [x])
    for k in range(7):
        assert_same_bits(folds.fold(spec, [[c[k : k + 1] for c in x]])[:, 0], together[:, k])


def worst(
    spec: Fold, bound: FoldBound, x: list[Tensor], y: list[Tensor] | None, length: int
) -> Fraction:
    """The largest error of a register sum over the allowed one."""
    state = folds.fold(spec, [x] if y is None else [x, y])
    largest = Fraction(0)
    for row in range(len(x[0])):
        given = [c[row] for c in x]
        exact, size = exact_sum(given) if y is None else exact_dot(given, [c[row] for c in y])
        got = sum(values([s[row : row + 1] for s in state]), Fraction(0))
        # The registers are not rounded to the format yet: only the absolute part is theirs.
        error = abs(got - exact)
        largest = max(largest, error / (bound.absolute * size))
    return largest


@pytest.mark.sampled(every=12)
@pytest.mark.parametrize(("fmt", "terms"), CASES, ids=lambda c: getattr(c, "name", c))
def test_bound(fmt: Format, terms: int) -> None:
    for rows, length in ((50, 1), (20, 5), (3, 300), (2, 9 * LANES)):
        x = list(cancelling(fmt, terms, (rows, length), length))
        y = list(cancelling(fmt, terms, (rows, length), length + 1))
        bound = fold_bound(fmt, terms, length)
        with mcf.executor("torch"):
            assert worst(sum_fold(fmt, terms, terms), bound, x, None, length) <= 1
            assert worst(product_fold(fmt, terms, terms, terms), bound, x, y, length) <= 1


def product_without_a_cross_term(x, y):
    p, e = two_prod(x[0], y[0])
    return p, rn(e + rn(x[0] * y[1]))


def product_of_rounded_products(x, y):
    return rn(x[0] * y[0]), rn(rn(x[0] * y[1]) + rn(x[1] * y[0]))


def merge_without_the_error(a, b):
    return rn(a[0] + b[0]), rn(a[1] + b[1])


def combine_without_the_error(a, b):
    return rn(a[0] + b[0]), rn(a[1] + b[1])


def combine_that_drops_a_low_register(a, b):
    s, t = two_sum(a[0], b[0])
    return s, rn(a[1] + t)


def product33_without_an_error(x, y):
    p, e = two_prod(x[0], y[0])
    q, f = two_prod(x[0], y[1])
    r, g = two_prod(x[1], y[0])
    q, h = two_sum(q, r)
    low = rn(rn(rn(x[0] * y[2]) + rn(x[2] * y[0])) + rn(x[1] * y[1]))
    return p, rn(q + e), rn(low + rn(rn(f + g) + h))


def merge3_without_an_error(a, b):
    s0, t = two_sum(a[0], b[0])
    s1, e = two_sum(a[1], b[1])
    return s0, rn(s1 + t), rn(rn(a[2] + b[2]) + e)


MUTANTS: list[tuple[int, str, Algorithm]] = [
    (2, "term", product_without_a_cross_term),
    (2, "term", product_of_rounded_products),
    (2, "merge", merge_without_the_error),
    (2, "combine", combine_without_the_error),
    (2, "combine", combine_that_drops_a_low_register),
    (3, "term", product33_without_an_error),
    (3, "merge", merge3_without_an_error),
    (3, "combine", merge3_without_an_error),
]


@dataclasses.dataclass(frozen=True, eq=False)
class Mutant(Fold):
    broken: tuple[str, Algorithm] = ("", two_sum)

    @property
    def merge(self) -> Algorithm:
        return self.broken[1] if self.broken[0] == "merge" else super().merge

    @property
    def combine(self) -> Algorithm:
        return self.broken[1] if self.broken[0] == "combine" else super().combine


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("terms", "part", "algorithm"), MUTANTS, ids=[f"{p}-{a.__name__}" for _, p, a in MUTANTS]
)
def test_the_bound_catches(terms: int, part: str, algorithm: Algorithm) -> None:
    spec = product_fold(FP64, terms, terms, terms)
    term = algorithm if part == "term" else spec.term
    fields = (spec.name, term, spec.formats, spec.components, spec.state)
    length = 9 * LANES
    x = list(cancelling(FP64, terms, (2, length), 0))
    y = list(cancelling(FP64, terms, (2, length), 1))
    with mcf.executor("torch"):
        broken = Mutant(*fields, broken=(part, algorithm))
        assert worst(broken, fold_bound(FP64, terms, length), x, y, length) > 2


# Numba compiles each number of terms.
@pytest.mark.parametrize(
    ("executor", "terms"),
    everyday(
        itertools.product(("torch", "numba"), (1, 2, 3, 4)),
        lambda executor, terms: executor == "torch" or terms == 2,
    ),
)
def test_infinities_and_nan_come_out_of_sums_as_from_additions(executor: str, terms: int) -> None:
    inf, nan = torch.inf, torch.nan
    spec = sum_fold(FP64, terms, terms)
    for special, expected in (
        ((inf,), inf),
        ((-inf, -inf), -inf),
        ((inf, -inf), nan),
        ((nan,), nan),
        ((nan, inf), nan),
    ):
        for length in (7, 300, 2000):
            for places in ((0, 1), (5, 6), (length - 2, length - 1)):
                x = torch.ones(1, length, dtype=torch.float64)
                for place, value in zip(places, special, strict=False):
                    x[0, place] = value
                components = [x, *(torch.zeros_like(x) for _ in range(terms - 1))]
                with mcf.executor(executor):
                    first = folds.fold(spec, [components])[0]
                assert_same_bits(first, torch.tensor([expected], dtype=torch.float64))


def test_zero_stays_the_name_of_the_constant() -> None:
    # `value1_in2` and its kind return it as a register.
    assert fold_terms.WIDE_SUM[1, 2]((1.0,)) == (1.0, ZERO)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_partial_sum_that_is_not_finite_loses_its_errors(executor: str) -> None:
    nan, inf = float("nan"), float("inf")
    first = torch.tensor([inf, -inf, nan, 1.0, -0.0, 0.0], dtype=torch.float64)
    second = torch.tensor([nan, nan, 1.0, 2.0**-30, -0.0, 0.0], dtype=torch.float64)
    third = torch.tensor([nan, inf, nan, 2.0**-90, -0.0, -0.0], dtype=torch.float64)
    finite = first.isfinite()
    low = [torch.where(finite, t, 0.0) for t in (second, third)]
    with mcf.executor("torch"):
        expected = operations.renormalize((first, *low), 3)
    with mcf.executor(executor):
        actual = torch.ops.mcf.expansion_settle([first, second, third])
    for k in range(3):
        assert_same_bits(actual[k], expected[k], f"component {k}")
