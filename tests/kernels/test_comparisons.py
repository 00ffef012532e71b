"""Exact: comparisons of expansions are those of the values, in one kernel with a bool result.

Caught mutants: leading components alone; >= for "not <", which NaN is not; x > y with its operands
in their order; a sign whose NaN counts as 0.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

import mcf
from mcf.kernels import BF16, FP16, FP32, FP64, Format, exact, operations, operators
from mcf.kernels.algorithms import ieee
from mcf.kernels.operators import COMPARISONS, Operation
from tests.helpers import numbers
from tests.helpers.adversarial import all_pairs, specials
from tests.helpers.everyday import everyday
from tests.helpers.executors import EXECUTORS, on_each_executor
from tests.helpers.expansions import draw, partners, tensors

Components = tuple[Tensor, ...]

# The functions, and the same of Python's numbers.
FUNCTIONS: dict[Callable[..., Tensor], Callable[[Any, Any], bool]] = {
    operations.lt: operator.lt,
    operations.le: operator.le,
    operations.gt: operator.gt,
    operations.ge: operator.ge,
    operations.eq: operator.eq,
    operations.ne: operator.ne,
}
by_format = pytest.mark.parametrize("fmt", [BF16, FP16, FP32, FP64], ids=lambda f: f.name)
by_function = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)


def some(fmt: Format, terms: int, count: int) -> tuple[Components, Components]:
    """Numbers of the whole range and numbers near them or equal, then pairs of special values."""
    low, high = fmt.emin - fmt.p + 1, fmt.emax
    x = draw(fmt, terms, count, 1, low, high)
    y = [c.copy() for c in partners(fmt, x, 2, low, high)]
    for k in range(terms):
        y[k][::5] = x[k][::5]
    a, b = all_pairs(specials(fmt))
    rest = [torch.zeros_like(a)] * (terms - 1)
    first, second = (
        tuple(torch.cat(pair) for pair in zip(tensors(fmt, parts), [special, *rest], strict=True))
        for parts, special in ((x, a), (y, b))
    )
    return first, second


def values(x: Components) -> list[Any]:
    """Fractions; infinities and NaN as floats."""
    return [
        sum(parts, Fraction(0)) if math.isfinite(parts[0]) else float(parts[0])
        for parts in zip(*map(numbers, x), strict=True)
    ]


@pytest.mark.sampled
@by_format
@pytest.mark.parametrize("terms", [1, 2, 3, 4])
def test_by_value(fmt: Format, terms: int) -> None:
    x, y = some(fmt, terms, 2000)
    pairs = list(zip(values(x), values(y), strict=True))
    assert sum(p == q for p, q in pairs) >= 300
    assert sum(math.isnan(p) or math.isnan(q) for p, q in pairs) >= 10
    with mcf.executor("torch"):
        for function, compare in FUNCTIONS.items():
            result = function(x, y)
            assert result.dtype is torch.bool
            assert result.tolist() == [compare(p, q) for p, q in pairs]


def test_a_tie_has_two_forms() -> None:
    u = 2.0**-24
    one = (torch.tensor([1.0]), torch.tensor([u]))
    other = (torch.tensor([1 + 2 * u]), torch.tensor([-u]))
    assert operations.eq(one, other).item()
    zero = operations.sub(one, other)
    assert [t.item() for t in zero] == [0.0, 0.0]
    assert not math.copysign(1, zero[0].item()) < 0


def test_infinities_and_nan_compare_as_plain_numbers_do() -> None:
    values = [-math.inf, -1.0, -0.0, 0.0, 2.0, math.inf, math.nan]
    a, b = (torch.tensor(c) for c in zip(*itertools.product(values, values), strict=True))
    zero = torch.zeros_like(a)
    for function in FUNCTIONS:
        plain = getattr(torch, function.__name__)(a, b)
        assert torch.equal(function((a, zero), (b, zero)), plain)


# Each case compiles a kernel: by default pairs of each register in one comparison, and the others
# on one format.
COMPILED = everyday(
    itertools.product(COMPARISONS, (BF16, FP16, FP32, FP64), (1, 2, 3, 4)),
    lambda operation, fmt, terms: (
        (operation is operators.LT and terms == 2) or (fmt is FP32 and terms == 3)
    ),
    id=lambda operation, fmt, terms: f"{operation.name}-{fmt.name}-{terms}",
)


@pytest.mark.sampled(every=64)
@pytest.mark.parametrize(("operation", "fmt", "terms"), COMPILED)
@pytest.mark.parametrize("executor", EXECUTORS[1:])
def test_every_executor_says_the_same(
    executor: str, operation: Operation, fmt: Format, terms: int
) -> None:
    x, y = some(fmt, terms, 500)
    function = getattr(operations, operation.name)
    with mcf.executor("torch"):
        reference = function(x, y)
    with mcf.executor(executor):
        result = function(x, y)
    assert torch.equal(result, reference)
    # The bytes of a bool are 0 and 1.
    assert set(result.view(torch.uint8).tolist()) == {0, 1}


@pytest.mark.sampled
@by_format
@pytest.mark.parametrize("terms", [2, 3, 4])
def test_what_is_not_normalised_has_the_sign_of_its_difference(fmt: Format, terms: int) -> None:
    """Overlapping components: the comparisons say what `compare` says, whatever that is."""
    x, other = (
        tuple(tensors(fmt, draw(fmt, 1, 1000, first + k, -4, 4))[0] for k in range(terms))
        for first in (0, terms)
    )
    # A third is the same sum in another order.
    same = torch.arange(1000) % 3 == 0
    y = tuple(torch.where(same, a, b) for a, b in zip((*x[1:], x[0]), other, strict=True))
    with mcf.executor("torch"):
        sign, opposite = operations.compare(x, y), operations.compare(y, x)
        assert torch.equal(sign, -opposite)
        for function, compare in FUNCTIONS.items():
            expected = [compare(s, 0) for s in sign.tolist()]
            assert function(x, y).tolist() == expected
            assert 50 < sum(expected) < 1000


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("terms", [1, 2, 3, 4])
def test_the_formula_in_exact_arithmetic(terms: int) -> None:
    """The algorithm itself over rationals; fewer components are zeros behind."""
    x, y = some(BF16, terms, 60)
    rows = [list(zip(*(numbers(c) for c in t), strict=True)) for t in (x, y)]
    pairs = list(zip(values(x), values(y), strict=True))
    for family, compare in (
        (ieee.LT, operator.lt),
        (ieee.LE, operator.le),
        (ieee.EQ, operator.eq),
        (ieee.NE, operator.ne),
    ):
        bound = exact.bind(family[terms], BF16, roundings={"rc": BF16})
        found = [bound(a, b)[0] for a, b in zip(*rows, strict=True)]
        assert found == [int(compare(p, q)) for p, q in pairs]


@pytest.mark.sampled(every=12)
@by_function
@on_each_executor
def test_mixed_terms_and_shapes(executor: str, function: Callable[..., Tensor]) -> None:
    x, y = ([t[:60].reshape(5, 12) for t in c] for c in some(FP32, 3, 60))
    compare = FUNCTIONS[function]
    with mcf.executor(executor):
        for a, b in ((x, y[:2]), (x[:1], y), (x, [t[0, 0] for t in x]), (y, [t[:1] for t in x])):
            full = [[t.expand(5, 12).flatten() for t in c] for c in (a, b)]
            pairs = zip(*(values(tuple(c)) for c in full), strict=True)
            result = function(tuple(a), tuple(b))
            assert result.shape == (5, 12)
            assert result.flatten().tolist() == [compare(p, q) for p, q in pairs]
        assert function(tuple(t[:0] for t in x), y[0][:0]).shape == (0, 12)


def test_refusals_name_the_argument() -> None:
    x = torch.ones(2)
    for function in (operations.lt, operations.gt):
        with pytest.raises(TypeError, match=f"{function.__name__}: y must be a tensor or a tuple"):
            function(x, 1.0)  # type: ignore[arg-type]
