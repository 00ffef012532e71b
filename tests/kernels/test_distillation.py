"""`renormalize` keeps the bound that `docs/numerics.md` proves, and why it takes a sweep more.

Exhaustively over a toy format: three floats of every size before a fourth of the largest exponent,
with and without underflow, in exact arithmetic. The mutant is the algorithm without its last sweep
and the last step of its last pass, whose bound was believed: it drops a component before it is
seen. The inputs that broke it round to a tie, twice for pairs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

import mcf
from mcf.kernels import BF16, FP16, FP32, FP64, Format
from mcf.kernels.algorithms.distillation import distill
from mcf.kernels.bind import Binder
from mcf.kernels.expansion_bounds import expansion_bound
from mcf.kernels.formats import toy
from mcf.kernels.torch.registers import primitives
from tests.helpers.toys import bound, finite
from tests.helpers.worst import tied


def short(terms: int, count: int, fmt: Format) -> Callable[..., Any]:
    """The algorithm with a sweep less and without the last step of its last pass."""
    table = primitives(fmt.register, fmt, {"rc": fmt, "rv": fmt})
    function = Binder(lambda f: f, table)(distill(count, terms))
    space = function.__globals__
    steps = {"two_sum": 0, "fast_two_sum": 0}
    inserted = count * (count - 1) // 2
    # Steps from here on are left out.
    swept = sum(count - 1 - j for j in range(terms))
    first = {"two_sum": inserted + swept, "fast_two_sum": terms - 1}

    def counted(name: str, step: Callable[..., Any]) -> Callable[..., Any]:
        def run(a: Tensor, b: Tensor) -> Any:
            steps[name] += 1
            return (a, b) if steps[name] > first[name] else step(a, b)

        return run

    for name in steps:
        space[name] = counted(name, space[name])
    return function  # type: ignore[no-any-return]


def relative(given: list[Fraction], result: tuple[Tensor, ...]) -> Fraction:
    exact = sum(given)
    return abs((sum(Fraction(float(t)) for t in result) - exact) / exact)


# Pairs and triples of fp16 end above the numbers that show it.
@pytest.mark.parametrize(
    ("fmt", "terms"),
    [(FP16, 1), *((fmt, terms) for fmt in (BF16, FP32, FP64) for terms in (1, 2, 3))],
    ids=str,
)
def test_ties_that_the_rest_leads_away_from(fmt: Format, terms: int) -> None:
    given = tied(fmt, terms)
    floats = [torch.tensor([float(x)], dtype=fmt.dtype) for x in given]
    assert given == [Fraction(float(t)) for t in floats]
    row = expansion_bound("renormalize", terms)
    assert fmt.dtype is not None
    with mcf.executor("torch"):
        result = mcf.kernels.operations.renormalize(tuple(floats), terms)
    assert relative(given, result) <= row.relative(fmt.dtype)
    # 3/2, 5/4 and 9/8, less some u.
    wrong = short(terms, len(floats), fmt)(tuple(t.to(fmt.register.dtype) for t in floats))
    assert relative(given, wrong) > (1 + Fraction(2, 5) / 2 ** (terms - 1)) * fmt.u**terms
    assert relative(given, wrong) > row.relative(fmt.dtype)


def holds(
    fmt: Format, terms: int, function: Callable[..., Any], first: list[float], last: list[float]
) -> tuple[bool, bool]:
    """Whether the bound holds, and whether results are normalised, of sums of four floats.

    The second and the third are all numbers up to exponent p, of both signs.
    """
    x = finite(toy(fmt.p, fmt.emin, fmt.p))
    ends = (torch.tensor(v, dtype=torch.float64) for v in (first, last))
    a, d, b, c = (t.flatten() for t in torch.meshgrid(*ends, x, x, indexing="ij"))
    # The numbers have so few bits that float64 adds them without error.
    exact = a + b + c + d
    y = function((a, b, c, d))
    allowed = exact.abs() * float(fmt.u) ** terms
    error = (sum(y[1:], y[0]) - exact).abs()
    within = bool((error <= allowed + 2 * float(fmt.u) * allowed).all())
    ordered = True
    for high, low in itertools.pairwise(y):
        # Half an ulp: of zero nothing, and no number is below the smallest.
        half = torch.where(high == 0, 0.0, (torch.frexp(high).exponent - fmt.p - 1.0).exp2())
        ordered &= bool((low.abs() <= half).all())
    return within, ordered


@pytest.mark.parametrize("terms", [1, 2, 3])
def test_sums_of_toy_floats(terms: int) -> None:
    fmt = toy(3, -4, 12)
    assert holds(fmt, terms, bound(distill(4, terms), fmt), [8.0, 10.0], [-8.0]) == (True, True)


def test_sums_of_toy_floats_reject_a_sweep_less() -> None:
    """Of four bits: with three, u/2 is no more than what a bound of u + 2 u^2 allows besides u."""
    fmt = toy(4, -5, 12)
    assert holds(fmt, 1, bound(distill(4, 1), fmt), [18.0], [-16.0]) == (True, True)
    assert holds(fmt, 1, short(1, 4, fmt), [18.0], [-16.0]) == (False, True)


@pytest.mark.slow
@pytest.mark.parametrize("terms", [1, 2, 3])
def test_every_sum_of_four_toy_floats(terms: int) -> None:
    fmt = toy(3, -4, 12)
    first, last = finite(toy(3, -4, 3)).tolist(), [8.0, 10.0, 12.0, 14.0]
    function = bound(distill(4, terms), fmt)
    for x in first:
        assert holds(fmt, terms, function, [x], last) == (True, True)
