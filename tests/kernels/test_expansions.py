"""Arithmetic on expansions of one to four components on every executor: bits, special values."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

import mcf
from mcf.kernels import BF16, FP16, FP32, FP64, Format, expansions
from tests.helpers import assert_all_same_bits
from tests.helpers.adversarial import all_pairs, specials
from tests.helpers.executors import EXECUTORS
from tests.helpers.expansions import draw, is_normalised, partners, tensors

FORMATS = [BF16, FP16, FP32, FP64]
by_format = pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
by_terms = pytest.mark.parametrize("terms", [1, 2, 3, 4])
by_operation = pytest.mark.parametrize("operation", expansions.OPERATIONS, ids=lambda o: o.name)
Components = tuple[Tensor, ...]


def inputs(
    operation: expansions.Operation, fmt: Format, terms: int, count: int
) -> list[Components]:
    """Hard numbers over the whole range, then every pair of special values."""
    low, high = fmt.emin - fmt.p + 1, fmt.emax
    x = draw(fmt, terms, count, 1, low, high)
    y = partners(fmt, x, 2, low, high)
    a, b = all_pairs(specials(fmt))
    zero = torch.zeros_like(a)
    rest = [zero] * (terms - 1)
    given = [
        tuple(torch.cat(pair) for pair in zip(tensors(fmt, parts), [special, *rest], strict=True))
        for parts, special in ((x, a), (y, b))
    ]
    return given[: len(operation.arguments)]


@by_terms
@by_format
@by_operation
@pytest.mark.parametrize("executor", EXECUTORS[1:])
def test_bits_are_those_of_the_reference(
    executor: str, operation: expansions.Operation, fmt: Format, terms: int
) -> None:
    given = inputs(operation, fmt, terms, 2000)
    function = getattr(expansions, operation.name)
    with mcf.executor("torch"):
        reference = function(*given)
    with mcf.executor(executor):
        assert_all_same_bits(function(*given), reference, executor)


PLAIN = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "sqrt": torch.sqrt,
}


@by_terms
@by_format
@by_operation
def test_special_values_are_those_of_plain_arithmetic(
    operation: expansions.Operation, fmt: Format, terms: int
) -> None:
    zero, one = 0.0, 1.5
    values = [zero, -zero, one, -one, math.inf, -math.inf, math.nan]
    pairs = torch.tensor(list(itertools.product(values, values)), dtype=fmt.dtype)
    x, y = pairs[:, 0].contiguous(), pairs[:, 1].contiguous()
    rest = [torch.zeros_like(x)] * (terms - 1)
    given = [(x, *rest), (y, *rest)][: len(operation.arguments)]
    high, *low = getattr(expansions, operation.name)(*given)
    plain = PLAIN[operation.name](*(g[0] for g in given))
    special = ~torch.isfinite(plain) | (plain == 0)
    assert int(special.sum()) >= 20
    assert_all_same_bits([high[special]], [plain[special]], operation.name)
    for t in low:
        assert bool((t[special] == 0).all())


@by_terms
@by_format
@by_operation
def test_results_are_normalised(operation: expansions.Operation, fmt: Format, terms: int) -> None:
    given = inputs(operation, fmt, terms, 5000)
    result = getattr(expansions, operation.name)(*given)
    finite = torch.isfinite(result[0])
    assert int(finite.sum()) > 2000
    assert bool(is_normalised([t[finite] for t in result], fmt).all())
    for t in result[1:]:
        assert bool((t[~finite] == 0).all())
