"""Every operation on every executor and format, against exact arithmetic.

Three layers: the values are those of the same algorithm over rationals (`mcf.kernels.exact`); the
bounds of the table hold, checked in integers that share no code with any executor; the bits agree
between executors, signs of zeros and special values included. The integer check rejects mutants.
"""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor

import mcf
from mcf.kernels import BF16, FP16, FP32, FP64, Format, exact, operations
from mcf.kernels.exact import Number
from mcf.kernels.operators import TRANSFORMS, Operation
from tests.helpers import assert_all_same_bits, mutants, numbers
from tests.helpers.everyday import everyday
from tests.helpers.executors import EXECUTORS
from tests.helpers.theorems import arguments, special_arguments, violations
from tests.helpers.toys import bound

FORMATS = [BF16, FP16, FP32, FP64]
by_format = pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
by_operation = pytest.mark.parametrize("operation", TRANSFORMS, ids=lambda o: o.name)
# What is shown of the reference holds of the others, which have its bits on more of the same inputs
# (`test_bits_are_those_of_the_reference`).
by_executor = pytest.mark.parametrize(
    "executor",
    [
        "torch",
        pytest.param("numba", marks=pytest.mark.slow),
        pytest.param("triton", marks=[*EXECUTORS[2].marks, pytest.mark.slow]),
    ],
)


def apply(operation: Operation, components: list[Tensor]) -> tuple[Tensor, ...]:
    """Call the operator with components grouped into its arguments."""
    return operations.transform(operation, *grouped(operation, components))


def grouped(operation: Operation, components: list[Tensor]) -> list[Tensor | tuple[Tensor, ...]]:
    """Components as the arguments of a function."""
    found: list[Tensor | tuple[Tensor, ...]] = []
    position = 0
    for terms in operation.components or ():
        part = components[position : position + terms]
        found.append(part[0] if terms == 1 else tuple(part))
        position += terms
    return found


@functools.cache
def inputs(operation: Operation, fmt: Format, n: int) -> list[Tensor]:
    """Hard cases and special values."""
    hard = arguments(operation.name, fmt, n, seed=1)
    special = special_arguments(operation.name, fmt, len(hard))
    return [torch.cat(pair) for pair in zip(hard, special, strict=True)]


@functools.cache
def expected(operation: Operation, fmt: Format, n: int) -> list[tuple[Number, ...]]:
    function = exact.bind(operation.algorithms[1], fmt, register=fmt.register)
    components = [numbers(t) for t in inputs(operation, fmt, n)]
    return [function(*x) for x in zip(*components, strict=True)]


def same(a: Number, b: Number) -> bool:
    return a == b or (a != a and b != b)


@pytest.mark.sampled(every=18)
@by_format
@by_operation
@by_executor
def test_values_are_those_of_exact_arithmetic(
    executor: str, operation: Operation, fmt: Format
) -> None:
    n = 400
    with mcf.executor(executor):
        results = apply(operation, inputs(operation, fmt, n))
    got = list(zip(*(numbers(r) for r in results), strict=True))
    for k, (g, e) in enumerate(zip(got, expected(operation, fmt, n), strict=True)):
        if not all(same(a, b) for a, b in zip(g, e, strict=True)):
            given = [t[k].item() for t in inputs(operation, fmt, n)]
            raise AssertionError(f"{operation.name}{given} is {g}, expected {e}")


@pytest.mark.sampled(every=6)
@by_format
@by_operation
@by_executor
def test_bounds_hold(executor: str, operation: Operation, fmt: Format) -> None:
    given = arguments(operation.name, fmt, 3000, seed=2)
    with mcf.executor(executor):
        results = apply(operation, given)
    broken, tried = violations(operation.name, fmt, given, results)
    assert broken == 0
    assert tried > 1000


# The short constant's halves add up; test_transforms_exhaustive rejects it for their length.
MUTANTS = [case for case in mutants.ALL if case[1] is not mutants.split_with_a_short_constant]


@pytest.mark.sampled(every=6)
@by_format
@pytest.mark.parametrize(("operation", "mutant"), MUTANTS, ids=mutants.name)
def test_bounds_reject_mutants(operation: str, mutant, fmt: Format) -> None:
    given = arguments(operation, fmt, 3000, seed=2)
    registers = [t.to(fmt.register.dtype) for t in given]
    results = [r.to(fmt.dtype) for r in bound(mutant, fmt)(*registers)]
    broken, _ = violations(operation, fmt, given, results)
    assert broken > 0


@pytest.mark.sampled
@by_format
@by_operation
def test_the_public_function_has_these_bits_where_the_result_is_finite(
    operation: Operation, fmt: Format
) -> None:
    given = inputs(operation, fmt, 3000)
    with mcf.executor("torch"):
        network = apply(operation, given)
        public = getattr(mcf, operation.name)(*grouped(operation, given))
    finite = network[0].isfinite() & network[1].isfinite()
    assert finite.sum() > 2000
    # Where the sum of -0 and -0 is one of zeros, its sign is IEEE 754's.
    finite &= network[0] != 0
    assert_all_same_bits([r[finite] for r in public], [r[finite] for r in network])


# Each case is compiled: by default in a format of wide registers and one that is its own register.
@pytest.mark.sampled(every=20)
@pytest.mark.parametrize(
    "fmt",
    everyday(FORMATS, lambda f: f not in (FP16, FP32)),
    ids=lambda f: f.name,
)
@by_operation
@pytest.mark.parametrize("executor", EXECUTORS[1:])
def test_bits_are_those_of_the_reference(executor: str, operation: Operation, fmt: Format) -> None:
    given = inputs(operation, fmt, 20000)
    with mcf.executor("torch"):
        reference = apply(operation, given)
    with mcf.executor(executor):
        assert_all_same_bits(apply(operation, given), reference, executor)


@pytest.mark.gpu
@by_format
@by_operation
def test_bits_on_a_gpu_are_those_of_the_cpu(operation: Operation, fmt: Format) -> None:
    given = inputs(operation, fmt, 200_000)
    reference = apply(operation, given)
    for executor in ("triton", "torch"):
        with mcf.executor(executor):
            results = apply(operation, [t.cuda() for t in given])
        assert_all_same_bits([r.cpu() for r in results], reference, executor)
