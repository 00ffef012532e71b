"""The bounds of the table hold on hard inputs, in exact arithmetic, and reject wrong algorithms.

On the torch executor; that the others give its bits is in test_expansions.py. The mutants of one
component round toward zero, those of several are in test_lossy_steps.py.
"""

from __future__ import annotations

import os
from fractions import Fraction
from types import FunctionType

import pytest
import torch
from torch import Tensor

import mcf
from mcf.kernels import BF16, FP16, FP32, FP64, operations, operators
from mcf.kernels.algorithms import ieee, products, quotients, roots, short_products, sums
from mcf.kernels.bounds import bound
from mcf.kernels.expansion_bounds import EXPANSION_BOUNDS, expansion_bound
from mcf.kernels.pair_bounds import BOUNDS, Bound, pair_bound
from mcf.kernels.torch.registers import primitives
from tests.helpers.lossy import ALGORITHMS, excesses, on_torch
from tests.helpers.survey import ALL, CHUNK, Case

# Per operation, number of components and format; `make test` takes the least that says something,
# the search by mutation finds worse (`tests/kernels/test_search.py`).
INPUTS = int(os.environ.get("MCF_BOUND_INPUTS", "10000"))
# Chunks come in twos, from the middle of the range and from its bottom, with equal shares.
CHUNKS = 2 * -(-INPUTS // (2 * CHUNK))


@pytest.mark.sampled(every=18)
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


# One component: a rounding of the exact result.
ROUNDINGS: dict[str, FunctionType] = {
    "add": sums.sum1,
    "mul": products.product1,
    "div": quotients.quotient1,
    "square": short_products.squared1,
    "sqrt": roots.root1,
    "reciprocal": ieee.RECIPROCAL[1],
}


def test_a_triple_that_was_not_normalised() -> None:
    """A quotient whose second component is a tie of the first and is corrected away from it."""
    x = [2.0**-69, -(2.0**-117), -float.fromhex("0x1.26p-142")]
    y = [-(2.0**-93), 2.0**-117, 2.0**-141]
    with mcf.executor("torch"):
        q = operations.div(*(tuple(torch.tensor([c]) for c in a) for a in (x, y)))
    assert abs(q[1]) <= abs(q[0]) * 2.0**-24


def toward_zero(x: Tensor) -> Tensor:
    """A float32 register cut to bf16."""
    return (x.view(torch.int32) & -(1 << 16)).view(torch.float32)


@pytest.mark.parametrize("operation", ROUNDINGS)
def test_bounds_of_one_component_reject_rounding_toward_zero(operation: str) -> None:
    row, table = expansion_bound(operation, 1), primitives(FP32, BF16, {"rc": BF16})
    right, wrong = table, table | {"rn": toward_zero, "rc": toward_zero}
    for primitives_, expected in ((right, False), (wrong, True)):
        function = on_torch(ROUNDINGS[operation], BF16, primitives_)
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
    assert mcf.bound("add", terms=4, dtype=torch.bfloat16).proven
    assert mcf.bound("fma", terms=4, dtype=torch.bfloat16).proven
    row = expansion_bound("div", 2)
    assert row.relative(torch.bfloat16) == 15 * Fraction(1, 2**16) + 56 * Fraction(1, 2**24)


def test_every_operation_is_known() -> None:
    public = [o.name for o in (*operators.TRANSFORMS, *operators.OPERATIONS)]
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


# The table of transforms and pairs.


def test_every_operation_has_one_row() -> None:
    assert [b.operation for b in BOUNDS] == [o.name for o in operators.TRANSFORMS]
    assert all(pair_bound(o.name).operation == o.name for o in operators.TRANSFORMS)


@pytest.mark.parametrize("row", BOUNDS, ids=lambda b: b.operation)
def test_rows_are_whole(row: Bound) -> None:
    # Registrant code, slash, and something after it.
    assert row.doi.startswith("10.")
    assert len(row.doi.split("/", 1)[1]) > 3
    assert row.source
    assert row.precondition
    assert row.exact == (row.formula == "0 (exact)")
    # Every format of the library is precise enough.
    assert row.minimum_p <= min(f.p for f in (BF16, FP16, FP32, FP64))


def test_error_is_exact_in_u() -> None:
    u = Fraction(1, 2**8)
    assert pair_bound("two_sum").error(u) == 0
    assert pair_bound("grow").error(u) == 2 * u**2
    assert pair_bound("scale").error(u) == Fraction(3, 2) * u**2 + 4 * u**3
    assert pair_bound("scale").formula == "3/2 u^2 + 4 u^3"
    assert pair_bound("mul").error(FP64.u) == Fraction(5, 2**106)


def test_least_products() -> None:
    assert pair_bound("grow").least_product_exponent(FP16) is None
    assert pair_bound("two_prod").least_product_exponent(FP16) == -14 + 11 - 1
    assert pair_bound("mul").least_product_exponent(BF16) == -126 + 8


def test_unknown_operation() -> None:
    with pytest.raises(KeyError, match="divide"):
        pair_bound("divide")
