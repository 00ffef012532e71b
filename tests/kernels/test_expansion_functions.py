"""The functions on expansions: shapes, scaling, refusals, compilation."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor

import mcf
from mcf.kernels import BF16, FP16, FP32, FP64, Format, operations
from mcf.kernels.operators import COMMUTATIVE, Operation
from tests.helpers import assert_all_same_bits, numbers
from tests.helpers.executors import on_each_executor
from tests.helpers.expansions import draw, partners, tensors
from tests.helpers.worst import errors

FORMATS = [BF16, FP16, FP32, FP64]
by_format = pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
Components = tuple[Tensor, ...]


def some(fmt: Format, terms: int, count: int, seed: int) -> Components:
    return tensors(fmt, draw(fmt, terms, count, seed, -4, 4))


def call(operation: Operation, *arguments: object, **options: object) -> Components:
    result = getattr(operations, operation.name)(*arguments, **options)
    return (result,) if isinstance(result, Tensor) else result


@pytest.mark.sampled(every=9)
@by_format
@pytest.mark.parametrize("terms", [1, 2, 3, 4])
@pytest.mark.parametrize("operation", COMMUTATIVE, ids=lambda o: o.name)
def test_commutative(operation: Operation, fmt: Format, terms: int) -> None:
    x = draw(fmt, terms, 3000, 1, -8, 8)
    y = partners(fmt, x, 2, -8, 8)
    a, b, *rest = (tensors(fmt, x), tensors(fmt, y), *[tensors(fmt, y)] * 1)
    rest = rest[: len(operation.arguments) - 2]
    with mcf.executor("torch"):
        assert_all_same_bits(call(operation, a, b, *rest), call(operation, b, a, *rest))
        assert_all_same_bits(call(operation, a, b[0], *rest), call(operation, b[0], a, *rest))


def test_mixed_numbers_of_components() -> None:
    x, y = some(FP32, 3, 500, 1), some(FP32, 2, 500, 2)
    for a, b in ((x, y), (y, x), (x, y[0]), (y[:1], x)):
        for name in ("add", "sub", "mul", "div"):
            # Values, and not executors: a loop for each of these would be compiled for this test.
            with mcf.executor("torch"):
                result = getattr(operations, name)(a, b)
            assert len(result) == 3
            grouped = [c if isinstance(c, tuple) else (c,) for c in (a, b)]
            if name == "sub":
                grouped[1] = tuple(-t for t in grouped[1])
            found = errors("add" if name == "sub" else name, FP32, grouped, result)
            assert found.worst(72) < 16


@on_each_executor
def test_one_number_for_all_elements(executor: str) -> None:
    x = tuple(t.reshape(5, 60) for t in some(FP32, 2, 300, 1))
    y = tuple(t[0, 0] for t in x)
    full = tuple(t.expand(5, 60).contiguous() for t in y)
    for a in (x, tuple(t.T for t in x), tuple(t[:, ::2] for t in x)):
        shape = a[0].shape
        expected_y = tuple(t[:1, :1].expand(shape).contiguous() for t in full)
        dense = tuple(t.contiguous() for t in a)
        with mcf.executor("torch"):
            expected = operations.fma(dense, expected_y, dense)
        with mcf.executor(executor):
            assert_all_same_bits(operations.fma(a, y, a), expected)


def test_broadcasting() -> None:
    row, column = some(FP32, 2, 6, 1), tuple(t[:, None] for t in some(FP32, 2, 5, 2))
    expected = operations.add(
        tuple(t.expand(5, 6).contiguous() for t in row),
        tuple(t.expand(5, 6).contiguous() for t in column),
    )
    assert_all_same_bits(operations.add(row, column), expected)
    assert operations.add(row, (torch.ones(0, 1),))[0].shape == (0, 6)


@pytest.mark.sampled(every=4)
@by_format
def test_ldexp_is_exact_or_rounded_once(fmt: Format) -> None:
    x = tensors(fmt, draw(fmt, 2, 500, 1, fmt.emin - fmt.p + 1, fmt.emax))
    for k in (0, 1, -1, 7, -9, fmt.emax, 2 * fmt.emin, -2 * fmt.emin, 1 - fmt.p, 5000, -5000):
        result = operations.ldexp(x, k)
        scaled = [[v * Fraction(2) ** k for v in numbers(t)] for t in x]
        rn = mcf.kernels.exact.rounding(fmt)
        expected = [[rn(v) for v in c] for c in scaled]
        for position, (r, e) in enumerate(zip(result, expected, strict=True)):
            for got, want, lead in zip(numbers(r), e, expected[0], strict=True):
                assert got == (want if position == 0 or math.isfinite(lead) else 0)
    each = torch.arange(-250, 250)
    assert_all_same_bits(
        [t[3:4] for t in operations.ldexp(x, each)],
        operations.ldexp(tuple(t[3:4] for t in x), -247),
    )


@by_format
def test_abs_and_neg(fmt: Format) -> None:
    x = some(fmt, 3, 300, 1)
    for got, t in zip(operations.neg(x), x, strict=True):
        assert_all_same_bits([got], [-t])
    plain = [sum(v, Fraction(0)) for v in zip(*map(numbers, x), strict=True)]
    absolute = operations.abs(x)
    assert [sum(v, Fraction(0)) for v in zip(*map(numbers, absolute), strict=True)] == [
        abs(v) for v in plain
    ]
    assert not torch.signbit(operations.abs((torch.tensor([-0.0]),))[0]).any()


# Each number is a loop of its own: by default one number is compiled, which is not a power of two.
@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(("count", "executor"), [(1, "torch"), (2, "torch"), (5, "numba"),
                                                 (16, "torch")])  # fmt: skip
def test_renormalize_to_any_number_of_components(count: int, executor: str) -> None:
    floats = [some(FP32, 1, 200, seed)[0] for seed in range(count)]
    for terms in (1, 2, 3, 4):
        with mcf.executor(executor):
            result = operations.renormalize(tuple(floats), terms)
        assert len(result) == terms
        found = errors("renormalize", FP32, [tuple(floats)], result)
        assert found.worst(24 * terms) <= 1.001
    with mcf.executor(executor):
        assert len(operations.renormalize(tuple(floats))) == min(count, 4)
    # A sum that fits is exact, whatever cancels on the way.
    big = torch.full((1,), 2.0**90)
    tiny = torch.full((1,), 2.0**-90)
    exact = operations.renormalize((tiny, big, torch.ones(1), -big, -tiny), 2)
    assert [t.item() for t in exact] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (((torch.ones(2),) * 5, torch.ones(2)), ValueError, "x must have 1 to 4 components, got 5"),
        (((), torch.ones(2)), ValueError, "x must have 1 to 4 components, got 0"),
        ((1.0, torch.ones(2)), TypeError, "x must be a tensor or a tuple of tensors.*got float"),
        ((torch.ones(2), (1.0,)), TypeError, "y must be a tensor or a tuple"),
        ((torch.ones(2), torch.ones(2).double()), TypeError, r"y\[0\] has dtype torch.float64"),
        ((torch.ones(2).int(), torch.ones(2).int()), TypeError, r"x\[0\] has dtype torch.int32"),
        ((torch.ones(2), torch.ones(3)), ValueError, "shapes do not broadcast"),
        ((torch.ones(2).to_sparse(), torch.ones(2)), TypeError, "layout"),
        ((torch.ones(2, requires_grad=True), torch.ones(2)), RuntimeError, "no derivative"),
    ],
)
def test_refusals(arguments: tuple[object, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match="add: .*" + message):
        operations.add(*arguments)  # type: ignore[arg-type]


def test_refusals_of_numbers() -> None:
    x = (torch.ones(2),)
    with pytest.raises(ValueError, match="terms must be 1 to 4, got 5"):
        operations.renormalize(x, 5)
    with pytest.raises(TypeError, match="terms must be an int"):
        operations.renormalize(x, 2.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="exponent must hold integers"):
        operations.ldexp(x, torch.ones(2))
    with pytest.raises(TypeError, match="exponent must be an int or a tensor"):
        operations.ldexp(x, 1.5)  # type: ignore[arg-type]


def test_the_old_name_of_the_module() -> None:
    with pytest.warns(DeprecationWarning, match=r"is called mcf\.kernels\.operations"):
        from mcf.kernels import expansions
    assert expansions is operations
    with pytest.raises(AttributeError, match="has no attribute 'expansion'"):
        _ = mcf.kernels.expansion
