"""The worst inputs that searches by mutation found, and a search of a few seconds.

`tests/helpers/worst_inputs.json` has the worst input of each case that was searched: it is tried
again, and its error is the one of the documentation; those of functions are in `tests/mcf`.
`BROKEN` are inputs that broke bounds of algorithms before these, which are the mutants here:
corrections by a single float, or without another digit.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import FunctionType

import numpy as np
import pytest

import mcf
from mcf.kernels.algorithms import products
from mcf.kernels.algorithms.primitives import ONE, div, neg, rn
from mcf.kernels.algorithms.products import pair_times3, pair_times4
from mcf.kernels.algorithms.quotients import (
    corrected3,
    corrected4,
    inverse2,
    quotient2,
    rest3,
    rest4,
)
from mcf.kernels.algorithms.roots import root2
from mcf.kernels.algorithms.short_products import pair_square4
from mcf.kernels.algorithms.transforms import two_sum
from tests.helpers import arithmetic_search, search
from tests.helpers.expansions import tensors
from tests.helpers.lossy import on_torch
from tests.helpers.residuals import residuals
from tests.helpers.survey import Case, judged
from tests.helpers.worst import apply

# Inputs with errors beyond the bounds of the algorithms before: 29.0 u^3, 71.6 u^4, ...
BROKEN: dict[str, list[list[str]]] = json.loads(
    search.WORST.with_name("broken_bounds.json").read_text(encoding="utf-8")
)


def exceeds(case: Case, arguments: list[list[str]]) -> bool:
    """Whether a result breaks its bound, decided by exact integers."""
    given = [tensors(case.fmt, list(x)) for x in search.inputs_of(arguments)]
    result = apply(case.operation, given, case.terms)
    found = residuals(case.operation, case.fmt, given, result)
    assert not found.disordered.any()
    return bool(judged(case, given, result, found))


@pytest.mark.sampled(every=27)
@pytest.mark.parametrize("name", [name for name in search.recorded() if name in search.ARITHMETIC])
def test_the_worst_inputs_are_within_bounds(name: str) -> None:
    case, entry = search.ARITHMETIC[name], search.recorded()[name]
    with mcf.executor("torch"):
        assert not exceeds(case, entry["arguments"])
        error, part = search.measured(case, search.inputs_of(entry["arguments"]))
    assert (f"{error[0]:.3f}", f"{part[0]:.3f}") == (entry["error"], entry["part"])
    assert part[0] <= 1


def test_a_seed_repeats_its_climb() -> None:
    entry = search.recorded()["square-4-fp32"]
    with mcf.executor("torch"):
        found = search.climb(search.CASES["square-4-fp32"], entry["seed"]).run(entry["generation"])
    assert [[v.hex() for v in a] for a in found.arguments] == entry["arguments"]


@pytest.mark.parametrize("name", BROKEN)
def test_inputs_that_broke_bounds_do_so_no_more(name: str) -> None:
    with mcf.executor("torch"):
        assert not exceeds(search.ARITHMETIC[name], BROKEN[name])


def test_the_documented_errors_are_what_was_recorded() -> None:
    page = (Path(__file__).parents[2] / "docs" / "numerics.md").read_text(encoding="utf-8")
    found = search.recorded()
    for name in ("add", "mul", "div", "sqrt"):
        cells = (f"{float(found[f'{name}-{n}-fp64']['error']):.2g}" for n in (2, 3, 4))
        assert f"`{name}` {', '.join(cells)}" in page


def test_the_table_has_every_case() -> None:
    assert not re.search(r"\| +\|", search.table())
    assert len(search.effort().splitlines()) == 10


def quotient3_by_a_float(x, y):
    q0, q1 = quotient2((x[0], x[1]), (y[0], y[1]))
    r0, r1 = rest3(x, pair_times3((q0, q1), y))
    return corrected3(q0, q1, rn(div(r0, y[0])), rn(r1 - r1))


def quotient4_without_a_digit(x, y):
    q0, q1 = quotient2((x[0], x[1]), (y[0], y[1]))
    r0, r1, r2 = rest4(x, pair_times4((q0, q1), y))
    q2, q3 = quotient2((r0, r1), (y[0], y[1]))
    return corrected4(q0, q1, q2, q3, rn(r2 - r2))


def inverse4_without_a_digit(y):
    q0, q1 = inverse2((y[0], y[1]))
    p0, p1, p2, p3 = pair_times4((q0, q1), y)
    r0, r1 = two_sum(rn(rn(ONE - p0) - p1), neg(p2))
    r0, r1 = two_sum(r0, rn(r1 - p3))
    q2, q3 = quotient2((r0, r1), (y[0], y[1]))
    return corrected4(q0, q1, q2, q3, rn(r1 - r1))


def root4_without_a_digit(x):
    s0, s1 = root2((x[0], x[1]))
    r0, r1, r2 = rest4(x, pair_square4((s0, s1)))
    s2, s3 = quotient2((r0, r1), (rn(s0 + s0), rn(s1 + s1)))
    return corrected4(s0, s1, s2, s3, rn(r2 - r2))


MUTANTS: dict[str, FunctionType] = {
    "div-3-fp32": quotient3_by_a_float,
    "div-3-fp64": quotient3_by_a_float,
    "div-4-fp32": quotient4_without_a_digit,
    "div-4-fp64": quotient4_without_a_digit,
    "reciprocal-4-fp32": inverse4_without_a_digit,
    "reciprocal-4-fp64": inverse4_without_a_digit,
    "sqrt-4-fp32": root4_without_a_digit,
}


@pytest.mark.parametrize("name", MUTANTS)
def test_inputs_that_broke_bounds_reject_what_they_broke(name: str) -> None:
    case = search.ARITHMETIC[name]
    function = on_torch(MUTANTS[name], case.fmt)
    assert arithmetic_search.trial(case, search.inputs_of(BROKEN[name]), function)[1][0] > 1.4


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", ["mul-3-fp32", "div-4-fp32", "sqrt-3-fp64", "fma-3-fp64"])
def test_a_short_search_stays_within_bounds(name: str) -> None:
    with mcf.executor("torch"):
        found = search.climb(search.CASES[name], 2, children=1500).run(6)
        again = search.climb(search.CASES[name], 2, children=1500).run(6)
    assert found == again
    assert 0.05 < found.score <= 1


def test_a_short_search_finds_what_is_wrong() -> None:
    """A correction by a single float, from random bit patterns alone."""
    case = search.ARITHMETIC["div-3-fp32"]
    function = on_torch(quotient3_by_a_float, case.fmt)
    climb = arithmetic_search.climb(case, 0, children=4000, function=function)
    assert climb.run(12).score > 1.1


def test_results_that_are_not_normalised_are_found() -> None:
    case = search.ARITHMETIC["mul-3-fp32"]
    one = np.array([[1.0], [0.0], [0.0]])
    overlapping = lambda x, y: (x[0], x[0], x[2])  # noqa: E731
    assert arithmetic_search.trial(case, [one, one], overlapping)[1][0] == np.inf
    assert arithmetic_search.trial(case, [one, one], lambda x, y: (x[0], x[1], y[2]))[1][0] == 0


def test_products_are_what_they_are() -> None:
    """An evident product, so that errors of zero are not for want of a product."""
    case = search.ARITHMETIC["mul-4-fp64"]
    function = on_torch(products.product4, case.fmt)
    three = np.array([[3.0], [2.0**-60], [0.0], [0.0]])
    given = [tensors(case.fmt, list(three))] * 2
    assert [float(t) for t in function(*given)] == [9.0, 6 * 2.0**-60, 2.0**-120, 0.0]
