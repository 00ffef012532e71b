"""Exact: operations by plan have the operator's bits, and a plan serves its own kind alone.

Caught mutants: a kind without the shape, the terms, the dtype, the executor or the place of a
number (which writes past a result's end); a number's zero without its sign; results in the memory
of an operand; a plan where functorch or a mode looks on.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import mcf
from mcf.expansions.launch import calls
from mcf.kernels import operations
from tests.helpers import assert_alike, assert_all_same_bits
from tests.helpers.executors import EXECUTORS
from tests.mcf.expansions.inputs import hard

BINARY = {
    operator.add: operations.add,
    operator.sub: operations.sub,
    operator.mul: operations.mul,
    operator.truediv: operations.div,
}
COMPARED = {
    operator.lt: operations.lt,
    operator.le: operations.le,
    operator.gt: operations.gt,
    operator.ge: operations.ge,
    operator.eq: operations.eq,
    operator.ne: operations.ne,
}
UNARY = {
    torch.sqrt: operations.sqrt,
    torch.rsqrt: operations.rsqrt,
    torch.reciprocal: operations.reciprocal,
}


@pytest.fixture(autouse=True)
def no_plans() -> Iterator[None]:
    calls._calls.clear()
    yield
    calls._calls.clear()


def _tensors(dtype: torch.dtype, terms: int, shape: tuple[int, ...], seed: int) -> mcf.MCFTensor:
    flat = hard(dtype, terms, max(8, math.prod(shape)), seed)
    return mcf.MCFTensor([c[: math.prod(shape)].reshape(shape) for c in flat])


def _same(got: Any, expected: tuple[Tensor, ...], what: str) -> None:
    assert got.terms == len(expected)
    assert_all_same_bits(got.components, expected, what)


# What a plan's kind is knows nothing of the operation: where kernels are compiled, one of each
# number of operands and kind of result stands for all, which are `slow`, as what is interpreted.
@pytest.mark.parametrize(
    ("executor", "every"),
    [("torch", True), ("numba", False), pytest.param("numba", True, marks=pytest.mark.slow)]
    + [
        pytest.param("triton", every, marks=[*EXECUTORS[2].marks, pytest.mark.slow])
        for every in (False, True)
    ],
)
def test_kinds_in_turn(executor: str, every: bool) -> None:
    """Each kind after all others, twice: found, then repeated."""
    few = slice(None) if every else slice(1)
    kinds = [
        (torch.float32, 2, (24,)),
        (torch.float32, 2, ()),
        (torch.bfloat16, 2, (24,)),
    ]
    with mcf.executor(executor):
        for _, (k, (dtype, terms, shape)) in itertools.product(range(2), enumerate(kinds)):
            x, y = (_tensors(dtype, terms, shape, seed) for seed in (2 * k, 2 * k + 1))
            one = _tensors(dtype, 1, shape, k)
            for function, reference in list(BINARY.items())[few]:
                _same(function(x, y), reference(x.components, y.components), "two alike")
                _same(function(one, y), reference(one.components, y.components), "one term first")
                _same(function(y, one), reference(y.components, one.components), "one term last")
            for function, compared in list(COMPARED.items())[few]:
                for a, b in ((x, y), (one, y), (y, one), (x, x)):
                    expected = compared(a.components, b.components)
                    assert torch.equal(function(a, b), expected)
            for unary, reference in list(UNARY.items())[few]:
                _same(unary(x), reference(x.components), "one operand")


def test_the_second_of_a_kind_has_a_plan() -> None:
    x = _tensors(torch.float64, 2, (8,), 1)
    assert not calls._calls
    x * x
    found = dict(calls._calls)
    assert len(found) == 1
    assert all(plan is not None for plan in found.values())
    x[1:] * x[1:]
    x * x
    assert len(calls._calls) == 2
    assert all(calls._calls[key] is plan for key, plan in found.items())


def test_executors_have_plans_of_their_own() -> None:
    x = _tensors(torch.float32, 2, (8,), 1)
    with mcf.executor("numba"):
        first = x * x
    with mcf.executor("torch"):
        second = x * x
    assert [plan is None for plan in calls._calls.values()] == [False, True]
    _same(first, second.components, "executors")


@pytest.mark.sampled(every=16)
@pytest.mark.parametrize("number", [3, -0.0, 0.0, 0.1, 2**60 + 1, math.inf, math.nan, 1e-300])
@pytest.mark.parametrize(("dtype", "terms"), [(torch.float64, 2), (torch.float32, 3)], ids=str)
def test_numbers(dtype: torch.dtype, terms: int, number: float) -> None:
    x = _tensors(dtype, terms, (16,), 3)
    zero = mcf.MCFTensor([torch.tensor([-0.0, 0.0], dtype=dtype)])
    parts = mcf.tensor(number, terms, dtype).components
    short = parts if bool(parts[1]) else parts[:1]
    for function, reference in BINARY.items():
        for _ in range(2):
            _same(function(x, number), reference(x.components, short), "number last")
            # torch has a number's quotient as a product with the reciprocal.
            if function is not operator.truediv:
                _same(function(number, x), reference(short, x.components), "number first")
        _same(function(zero, number), reference(zero.components, parts[:1]), "zeros")


def test_numbers_of_both_zeros_in_turn() -> None:
    x = mcf.MCFTensor([torch.tensor([-0.0]), torch.tensor([0.0])])
    assert [math.copysign(1, (x + z).item()) for z in (0.0, -0.0, 0.0, -0.0)] == [1, -1, 1, -1]


def test_what_is_not_contiguous_or_broadcast() -> None:
    x = _tensors(torch.float64, 2, (6, 8), 1)
    y = _tensors(torch.float64, 2, (8,), 2)
    for a, b in ((x.mT, x.mT), (x[:, ::2], x[:, 1::2]), (x, y), (x[:0], y), (x, y[3])):
        for function, reference in BINARY.items():
            expected = reference(a.components, b.components)
            _same(function(a, b), expected, "laid out otherwise")
            assert function(a, b).is_contiguous() or not expected[0].is_contiguous()
        for function, compared in COMPARED.items():
            assert torch.equal(function(a, b), compared(a.components, b.components))


def test_mixed_formats() -> None:
    x, y = _tensors(torch.float32, 2, (8,), 1), _tensors(torch.float64, 2, (8,), 2)
    for function, reference in BINARY.items():
        wide = tuple(c.double() for c in x.components)
        for _ in range(2):
            _same(function(x, y), reference(wide, y.components), "mixed")


def test_results_have_memory_of_their_own() -> None:
    x = _tensors(torch.float64, 2, (8,), 1)
    before = [c.clone() for c in x.components]
    first = x * x
    kept = [c.clone() for c in first.components]
    x * (x + 1)
    assert_all_same_bits(first.components, kept, "an earlier result")
    assert_all_same_bits(x.components, before, "the operand")


class _Seen(TorchDispatchMode):
    """Notes the operators of mcf that are called; leaves those of the tensor to it."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(t, mcf.MCFTensor) for t in types):
            return NotImplemented
        self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


def test_a_mode_sees_the_operator() -> None:
    x = _tensors(torch.float64, 2, (8,), 1)
    expected = (x * x).components
    with _Seen() as seen:
        got = x * x
    assert "mcf::expansion_mul" in seen.names
    assert_all_same_bits(got.components, expected, "under a mode")
    with _Seen() as seen:
        above = x > x
    # One kernel, with nothing behind it.
    assert [n for n in seen.names if n != "aten::promote_types"] == ["mcf::expansion_lt"]
    assert not above.any()


def test_functorch() -> None:
    x, y = _tensors(torch.float64, 2, (4, 3), 1), _tensors(torch.float64, 2, (4, 3), 2)
    expected = [(x * y).components, (x * 2).components]
    for _ in range(2):
        product = torch.func.vmap(lambda a, b: a * b)(x, y)
        assert_all_same_bits(product.components, expected[0], "vmap")
        below = torch.func.vmap(lambda a, b: a < b)(x, y)
        assert torch.equal(below, x < y)
        slope = torch.func.grad(lambda a: (a * a).sum())(x)
        assert_all_same_bits(slope.components, expected[1], "grad")


def test_plans_are_forgotten_beyond_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_MOST", 3)
    x = _tensors(torch.float64, 2, (8,), 1)
    for count in (1, 2, 3, 4, 5):
        _same(x[:count] * x[:count], operations.mul(x[:count].components, x[:count].components), "")
        assert len(calls._calls) <= 3


@pytest.mark.parametrize("terms", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_plain_operands_whose_memory_has_other_numbers(terms: int) -> None:
    """Exact. Mutants: a negative view read as it stands in memory; zeros without memory read."""
    x = mcf.tensor([-5.0, 0.5], dtype=torch.float64, terms=terms)
    given = torch.tensor([1.0, -2.0], dtype=torch.float64)
    views = [torch._neg_view(given), torch._efficientzerotensor((2,), dtype=torch.float64)]
    for plain, same in zip(views, (-given, torch.zeros_like(given)), strict=True):
        for function in (torch.maximum, torch.fmin, torch.add):
            found = function(x, plain)
            assert_alike(found, function(x, same), f"{function.__name__} {terms}")
        assert_alike(x.clamp(max=plain), x.clamp(max=same), str(terms))
        assert_alike(torch.where(x < 0, plain, x), torch.where(x < 0, same, x), str(terms))
