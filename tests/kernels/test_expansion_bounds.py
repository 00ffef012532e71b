"""The bounds of the table hold on hard inputs, in exact arithmetic, and reject wrong algorithms.

On the torch executor; that the others give its bits is in test_expansions.py. The mutants are made
from the algorithms: in each, one step (a TwoSum, a product, a nested network) loses its last
component. Those of one component have no such steps: they round toward zero.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from fractions import Fraction
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import Tensor

import mcf
from mcf.kernels import BF16, FP32, FP64, Format, expansion_operators, expansions, functions
from mcf.kernels.algorithms import (
    distillation,
    ieee,
    products,
    quotients,
    roots,
    short_products,
    sums,
)
from mcf.kernels.bind import Binder
from mcf.kernels.bounds import BOUNDS
from mcf.kernels.expansion_bounds import EXPANSION_BOUNDS, ExpansionBound, bound, expansion_bound
from mcf.kernels.torch.primitives import primitives
from tests.helpers.survey import ALL, CHUNK, Case
from tests.helpers.worst import arguments, errors

# Per operation, number of components and format; `make test` takes the least that says something,
# the search by mutation finds worse (`tests/kernels/test_search.py`).
INPUTS = int(os.environ.get("MCF_BOUND_INPUTS", "10000"))
# Chunks come in twos, from the middle of the range and from its bottom, with equal shares.
CHUNKS = 2 * -(-INPUTS // (2 * CHUNK))


@pytest.mark.parametrize("case", ALL, ids=str)
def test_bounds_hold(case: Case) -> None:
    live = 0
    for chunk in range(CHUNKS):
        with mcf.executor("torch"):
            found = case.trial(chunk, slice(-(-INPUTS // CHUNKS)))
        assert found.broken == [], "numbers of inputs whose results break the bound"
        assert found.disordered == [], "numbers of inputs whose results are not normalised"
        live += found.live
    assert live > INPUTS // 2


def test_a_quotient_that_was_not_normalised() -> None:
    """Number 831950 of four bf16 components: one sweep over the corrected quotient was too few."""
    chunk, at = divmod(831_950, CHUNK)
    with mcf.executor("torch"):
        found = Case("div", False, 4, BF16).trial(chunk, slice(at, at + 1))
    assert found.live == 1
    assert found.disordered == []


ALGORITHMS: dict[tuple[str, int, bool], FunctionType] = {
    ("add", 2, False): sums.sum2,
    ("add", 3, False): sums.sum3,
    ("add", 4, False): sums.sum4,
    ("add", 2, True): sums.plus_float2,
    ("mul", 2, False): products.product2,
    ("mul", 3, False): products.product3,
    ("mul", 4, False): products.product4,
    ("mul", 2, True): short_products.times_float2,
    ("mul", 3, True): short_products.times_float3,
    ("mul", 4, True): short_products.times_float4,
    ("div", 2, False): quotients.quotient2,
    ("div", 3, False): quotients.quotient3,
    ("div", 4, False): quotients.quotient4,
    ("div", 2, True): quotients.by_float2,
    ("square", 2, False): short_products.squared2,
    ("square", 3, False): short_products.squared3,
    ("square", 4, False): short_products.squared4,
    ("sqrt", 2, False): roots.root2,
    ("sqrt", 3, False): roots.root3,
    ("sqrt", 4, False): roots.root4,
    ("fma", 1, False): ieee.fma1,
    ("fma", 2, False): ieee.fma2,
    ("fma", 3, False): ieee.fma3,
    ("fma", 4, False): ieee.fma4,
    ("reciprocal", 2, False): quotients.inverse2,
    ("reciprocal", 3, False): quotients.inverse3,
    ("reciprocal", 4, False): quotients.inverse4,
    ("rsqrt", 1, False): ieee.rsqrt1,
    ("rsqrt", 2, False): ieee.rsqrt2,
    ("rsqrt", 3, False): ieee.rsqrt3,
    ("rsqrt", 4, False): ieee.rsqrt4,
    ("renormalize", 1, False): distillation.distill(4, 1),
    ("renormalize", 2, False): distillation.distill(4, 2),
    ("renormalize", 3, False): distillation.distill(6, 3),
    ("renormalize", 4, False): distillation.distill(8, 4),
}
# One component: a rounding of the exact result.
ROUNDINGS: dict[str, FunctionType] = {
    "add": sums.sum1,
    "mul": products.product1,
    "div": quotients.quotient1,
    "square": short_products.squared1,
    "sqrt": roots.root1,
    "reciprocal": ieee.reciprocal1,
}
# Steps whose last component is too small to matter for the bound on these inputs: compensations and
# corrections of a few u^n, which derivations count, residuals that give only their leading
# components, and terms of order u^5 in a sum of four. One component keeps only the first of the
# inverse.
HARMLESS = {
    ("add", 4, False): {13, 19},
    ("mul", 4, False): {14, 15, 17, 18, 19, 22},
    ("mul", 4, True): {7, 8},
    ("square", 4, False): {9, 10},
    ("div", 3, False): {2, 3},
    ("div", 4, False): {2, 3, 4},
    ("sqrt", 3, False): {2, 3},
    ("sqrt", 4, False): {2},
    ("reciprocal", 3, False): {1, 2, 3},
    ("reciprocal", 4, False): {1, 3, 5, 6},
    ("rsqrt", 1, False): {1},
}
# What algorithms share: its steps count as theirs.
SHARED = ("collect3", "collect4", "gather3", "gather4")
Components = tuple[Tensor, ...]


def faulty(
    algorithm: FunctionType, fmt: Format, fault: int
) -> tuple[Callable[..., Any], list[int]]:
    """The algorithm with step number `fault` losing its last component, and its count of steps."""
    table = primitives(fmt.register, fmt, {"rc": fmt})
    function = Binder(lambda f: f, table)(algorithm)
    steps = [0]

    def lossy(step: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            result = step(*arguments)
            if not isinstance(result, tuple):
                return result
            steps[0] += 1
            if steps[0] - 1 != fault:
                return result
            return (*result[:-1], torch.zeros_like(result[-1]))

        return run

    def spoil(namespace: dict[str, Any]) -> None:
        for key, value in list(namespace.items()):
            if key in SHARED:
                spoil(value.__globals__)
            elif isinstance(value, FunctionType) and key not in table:
                namespace[key] = lossy(value)

    spoil(function.__globals__)
    return function, steps


def broken(
    row: ExpansionBound, fmt: Format, algorithm: FunctionType, fault: int
) -> tuple[int, int]:
    """How many results of a faulty algorithm break the bound; how many steps there are."""
    function, steps = faulty(algorithm, fmt, fault)
    return excesses(row, fmt, function), steps[0]


def excesses(row: ExpansionBound, fmt: Format, function: Callable[..., Any]) -> int:
    """How many results of a bound algorithm break a bound."""
    given = arguments(row.operation, fmt, row.terms, 3000, 5, -8, 8)
    if row.float_second:
        given[1] = given[1][:1]
    registers: list[Any] = [tuple(t.to(fmt.register.dtype) for t in c) for c in given]
    if row.operation in ("reciprocal", "rsqrt"):
        registers.append(torch.ones((), dtype=fmt.register.dtype))
    result = [t.to(fmt.dtype) for t in function(*registers)]
    return errors(row.operation, fmt, given, result).exceeds(row, fmt)


@pytest.mark.parametrize("case", ALGORITHMS, ids=str)
def test_bounds_reject_every_mutant(case: tuple[str, int, bool]) -> None:
    operation, terms, float_second = case
    row = expansion_bound(operation, terms, float_second=float_second)
    none, count = broken(row, FP32, ALGORITHMS[case], -1)
    assert none == 0
    assert count > 0
    accepted = {k for k in range(count) if broken(row, FP32, ALGORITHMS[case], k)[0] == 0}
    if operation == "renormalize":
        # A sweep's later steps pass on what is then dropped, or zeros, in most inputs, and the last
        # sweep decides ties, as `test_distillation.py` shows.
        assert len(accepted) <= 2 * count // 3
    else:
        assert accepted == HARMLESS.get(case, set())


def test_a_triple_that_was_not_normalised() -> None:
    """A quotient whose second component is a tie of the first and is corrected away from it."""
    x = [2.0**-69, -(2.0**-117), -float.fromhex("0x1.26p-142")]
    y = [-(2.0**-93), 2.0**-117, 2.0**-141]
    with mcf.executor("torch"):
        q = expansions.div(*(tuple(torch.tensor([c]) for c in a) for a in (x, y)))
    assert abs(q[1]) <= abs(q[0]) * 2.0**-24


def toward_zero(x: Tensor) -> Tensor:
    """A float32 register cut to bf16."""
    return (x.view(torch.int32) & -(1 << 16)).view(torch.float32)


@pytest.mark.parametrize("operation", ROUNDINGS)
def test_bounds_of_one_component_reject_rounding_toward_zero(operation: str) -> None:
    row, table = expansion_bound(operation, 1), primitives(FP32, BF16, {"rc": BF16})
    right, wrong = table, table | {"rn": toward_zero, "rc": toward_zero}
    for primitive, expected in ((right, False), (wrong, True)):
        function = Binder(lambda f: f, primitive)(ROUNDINGS[operation])
        assert (excesses(row, BF16, function) > 0) == expected


def test_every_bound_has_a_mutant() -> None:
    rows = {(r.operation, r.terms, r.float_second) for r in EXPANSION_BOUNDS}
    assert rows == set(ALGORITHMS) | {(name, 1, False) for name in ROUNDINGS}


def test_bound_answers_for_a_dtype() -> None:
    answer = mcf.bound("mul", terms=2, dtype=torch.float32)
    assert answer.proven
    assert answer.relative == 5 * 2.0**-48
    assert answer.absolute == 4 * 2.0**-149
    assert answer.formula == "5 u^2"
    assert mcf.bound("sub", terms=3, dtype=torch.float64) == mcf.bound("add", 3, torch.float64)
    assert mcf.bound("div", terms=4, dtype=torch.bfloat16).proven
    assert not mcf.bound("add", terms=4, dtype=torch.bfloat16).proven
    row = expansion_bound("div", 2)
    assert row.relative(torch.bfloat16) == 15 * Fraction(1, 2**16) + 56 * Fraction(1, 2**24)


def test_every_operation_is_known() -> None:
    public = [o.name for o in (*functions.OPERATIONS, *expansion_operators.OPERATIONS)]
    numbers = [name for name in public if name != "compare"]
    for name in (*numbers, "renormalize", "neg", "abs", "ldexp"):
        answer = mcf.bound(name, 2, torch.float64)
        assert answer.algorithm
        assert answer.source
    # What a function of tuples promises is what the table of pairs says.
    for row in BOUNDS:
        if row.operation != "renormalize":
            answer = mcf.bound(row.operation, 2, torch.float64)
            assert answer.relative == row.error(FP64.u)
            assert answer.proven


def test_names_of_one_arithmetic() -> None:
    for terms in (1, 2, 3, 4):
        by_float = expansion_bound("mul", terms, float_second=True)
        assert mcf.bound("scale", terms).relative == by_float.relative(torch.float32)
        assert mcf.bound("grow", terms).relative == mcf.bound("add", terms).relative
    assert mcf.bound("two_prod", dtype=torch.float16).absolute == 2.0**-24
    assert mcf.bound("two_sum").requires.startswith("a + b does not overflow")
    assert mcf.bound("neg", 4).formula == mcf.bound("two_sum").formula == "0 (exact)"
    with pytest.raises(ValueError, match="two_sum gives 2 components, got terms=3"):
        mcf.bound("two_sum", 3)


def test_renormalize_is_exact_where_there_is_room() -> None:
    assert mcf.bound("renormalize", 2, count=2).relative == 0
    assert mcf.bound("renormalize", 3, count=2).proven
    assert mcf.bound("renormalize", 2, count=3) == mcf.bound("renormalize", 2)
    assert mcf.bound("renormalize", 2).relative > 0
    with pytest.raises(ValueError, match="count must be an int of 1 or more, got 0"):
        mcf.bound("renormalize", count=0)


def test_bound_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ValueError, match="no bound for operation 'exp' with 2 terms"):
        bound("exp")
    with pytest.raises(ValueError, match="with 5 terms"):
        bound("add", terms=5)
    with pytest.raises(TypeError, match=r"torch\.int32"):
        bound("add", dtype=torch.int32)
