"""Arithmetic on expansions of one to four components on every executor: bits, special values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

import mcf
from mcf.kernels import BF16, FP16, FP32, FP64, Format, operations, operators
from mcf.kernels.components import padded
from tests.helpers import assert_all_same_bits
from tests.helpers.adversarial import all_pairs, specials
from tests.helpers.everyday import everyday
from tests.helpers.executors import EXECUTORS
from tests.helpers.expansions import draw, is_normalised, partners, tensors

FORMATS = [BF16, FP16, FP32, FP64]
by_format = pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
by_terms = pytest.mark.parametrize("terms", [1, 2, 3, 4])
by_operation = pytest.mark.parametrize("operation", operators.OPERATIONS, ids=lambda o: o.name)
Components = tuple[Tensor, ...]


def apply(operation: operators.Operation, given: Sequence[Components]) -> Components:
    result = getattr(operations, operation.name)(*given)
    return (result,) if isinstance(result, Tensor) else result


def inputs(operation: operators.Operation, fmt: Format, terms: int, count: int) -> list[Components]:
    """Hard numbers over the whole range, then every pair of special values."""
    low, high = fmt.emin - fmt.p + 1, fmt.emax
    x = draw(fmt, terms, count, 1, low, high)
    y = partners(fmt, x, 2, low, high)
    a, b = all_pairs(specials(fmt))
    zero = torch.zeros_like(a)
    rest = [zero] * (terms - 1)
    given = [
        tuple(torch.cat(pair) for pair in zip(tensors(fmt, parts), [special, *rest], strict=True))
        for parts, special in ((x, a), (y, b), (x[::-1] if terms == 1 else y, b.flip(0)))
    ]
    return given[: len(operation.arguments)]


# Each case compiles a kernel: by default pairs of each register, lengths of one format, and what
# differs by operation: the others are `slow`.
_SOME = {
    (FP16, 2): ("mul", "sqrt"),
    (FP32, 1): ("fma", "rsqrt"),
    (FP32, 3): ("add", "mul"),
    (FP32, 4): ("add", "div"),
}
COMPILED = everyday(
    itertools.product(operators.OPERATIONS, FORMATS, (1, 2, 3, 4)),
    lambda operation, fmt, terms: (
        (fmt, terms) in ((BF16, 2), (FP32, 2), (FP64, 2))
        or operation.name in _SOME.get((fmt, terms), ())
    ),
    id=lambda operation, fmt, terms: f"{operation.name}-{fmt.name}-{terms}",
)


@pytest.mark.sampled(every=10)
@pytest.mark.parametrize(("operation", "fmt", "terms"), COMPILED)
@pytest.mark.parametrize("executor", EXECUTORS[1:])
def test_bits_are_those_of_the_reference(
    executor: str, operation: operators.Operation, fmt: Format, terms: int
) -> None:
    given = inputs(operation, fmt, terms, 2000)
    with mcf.executor("torch"):
        reference = apply(operation, given)
    with mcf.executor(executor):
        assert_all_same_bits(apply(operation, given), reference, executor)


# Which zeros are multiplied does not depend on the format: one is compiled, torch has all of them.
@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("executor", "fmt"),
    everyday(
        itertools.product(EXECUTORS, FORMATS),
        lambda executor, fmt: executor == "torch" or fmt == FP32,
    ),
    ids=lambda c: getattr(c, "name", c),
)
@pytest.mark.parametrize("given", [(1, 1, 3), (2, 1, 4), (1, 2, 4)], ids=str)
def test_factors_that_lack_the_same_components(
    executor: str, given: tuple[int, ...], fmt: Format
) -> None:
    x, y, z = inputs(operators.FMA, fmt, 4, 200)
    short, terms = [c[:n] for c, n in zip((x, y, z), given, strict=True)], max(given)
    with mcf.executor("torch"):
        reference = operations.fma(*(padded(c, terms) for c in short))
    with mcf.executor(executor):
        assert_all_same_bits(operations.fma(*short), reference, executor)


PLAIN = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "fma": lambda x, y, z: x * y + z,
    "square": torch.square,
    "sqrt": torch.sqrt,
    "reciprocal": torch.reciprocal,
    "rsqrt": torch.rsqrt,
    "compare": lambda x, y: torch.where(x == y, 0.0, (x - y).clamp(-1, 1)),
}


@pytest.mark.sampled(every=6)
@by_terms
@by_format
@by_operation
def test_special_values_are_those_of_plain_arithmetic(
    operation: operators.Operation, fmt: Format, terms: int
) -> None:
    values = [0.0, -0.0, 1.5, -1.5, math.inf, -math.inf, math.nan]
    count = len(operation.arguments)
    table = torch.tensor(list(itertools.product(values, repeat=count)), dtype=fmt.dtype)
    leading = [c.contiguous() for c in table.T]
    rest = [torch.zeros_like(leading[0])] * (terms - 1)
    with mcf.executor("torch"):
        high, *low = apply(operation, [(x, *rest) for x in leading])
    plain = PLAIN[operation.name](*leading)
    special = ~torch.isfinite(plain) | (plain == 0)
    assert int(special.sum()) >= 4
    assert_all_same_bits([high[special]], [plain[special]], operation.name)
    assert bool(torch.isfinite(high[~special]).all())
    for t in low:
        assert bool((t[special] == 0).all())


@pytest.mark.sampled(every=27)
@by_terms
@by_format
@by_operation
def test_results_are_normalised(operation: operators.Operation, fmt: Format, terms: int) -> None:
    given = inputs(operation, fmt, terms, 5000)
    with mcf.executor("torch"):
        result = apply(operation, given)
    finite = torch.isfinite(result[0])
    assert int(finite.sum()) > 2000
    assert bool(is_normalised([t[finite] for t in result], fmt).all())
    for t in result[1:]:
        assert bool((t[~finite] == 0).all())


@pytest.mark.parametrize("executor", EXECUTORS[1:])
@pytest.mark.parametrize("terms", [2, 3, 4])
def test_a_float_divides_as_an_expansion_of_one_component(executor: str, terms: int) -> None:
    # Beyond two terms the lacking components of the divisor are the number 0.0 in the kernel.
    x = tuple(torch.tensor([3.0, -0.0]) * 2.0 ** (-25 * k) for k in range(terms))
    y = (torch.tensor([7.0, 5.0]),)
    with mcf.executor("torch"):
        reference = operations.div(x, y)
    with mcf.executor(executor):
        assert_all_same_bits(operations.div(x, y), reference, executor)
