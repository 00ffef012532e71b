"""Sums and products proved by an SMT solver for every precision from 8 on, the code as formula.

The algorithms run on shapes of numbers (`tests.helpers.float_facts`, where each fact is tried on
all pairs of toy numbers): each TwoSum, TwoProd and rounding adds what is true of it. Proved are

- that every Fast2Sum is exact: its first argument is zero, not below the second in exponent, or a
  multiple of the second's last place, or nothing is rounded,
- that what roundings discard is below the result by as many bits as there are components, less a
  few: the sum of |discarded| is what the error can be.

So the error of a sum is at most 8 u^2 |result| for pairs (4 + 4) and 44 u^3 |result| for triples
(32 + 4 + 8), without exception for cancellation; the bound of `mcf.kernels.expansion_bounds` for
triples is this, that for pairs smaller, as published: shapes know factors of 2 at best. Of the
four roundings of a sum of four components three lose 2 u^4 |result| at most, and the first, which
joins the error of the leading components to that of the last, 2 u^4 + 7 u^5 of the exact sum, as
`test_sum_of_four.py` argues: 8 u^4 + 16 u^5 in all. Products
are bounded by magnitudes (`test_derived_bounds.py`) if their Fast2Sums are exact, which is proved
here; for triples the discarded are shown to be small as well. Of four by four products
the facts show it where the solver answers in time, for the gates that come before the compensation.
The sloppy addition, which has no bound, and a product without a cross term must not be provable.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from types import FunctionType
from typing import Any

import pytest
import torch

from mcf.kernels.algorithms import products, short_products, sums
from mcf.kernels.algorithms.primitives import rn
from mcf.kernels.algorithms.transforms import fast_two_sum, two_prod, two_sum
from mcf.kernels.bind import Binder
from mcf.kernels.expansion_bounds import expansion_bound
from tests.helpers.float_facts import (
    Shape,
    fast_two_sum_is_exact,
    of_a_number,
    of_a_product,
    of_a_sum,
)
from tests.kernels.test_sum_of_four import first_of_four

z3 = pytest.importorskip("z3", reason="needs z3-solver (the extra `proofs`)")

pytestmark = pytest.mark.nightly

MINUTES = 60_000


class Logic:
    """Connectives of z3's terms."""

    all, any, no = z3.And, z3.Or, z3.Not
    implies, choose = z3.Implies, z3.If


class Number(Shape):
    """An unknown number; a sum or product of two is pending until it is rounded."""

    def __add__(self, other: Number) -> Pending:
        return Pending(of_a_sum, self, other)

    def __mul__(self, other: Number) -> Pending:
        return Pending(of_a_product, self, other)


@dataclasses.dataclass(frozen=True)
class Pending:
    facts: Callable[..., Iterable[Any]]
    x: Number
    y: Number


class Proof:
    """What is known after an algorithm has run on unknown expansions of any precision >= 8."""

    def __init__(
        self, algorithm: Callable[..., Any], *terms: int, near: Sequence[int] = ()
    ) -> None:
        # The steps, as they run, of which distances are told: these facts make the solver slow.
        self._near, self._steps = near, 0
        self.p = z3.Int("p")
        self.facts = [self.p >= 8]
        self.preconditions: list[Any] = []
        self.discarded: list[Number] = []
        self.rounded: list[Number] = []
        self._count = 0
        self._formed: list[tuple[Number, Number]] = []
        given = [self._expansion(n) for n in terms]
        x, y = given[0], given[-1]
        names = ("rn", "rx", "rc", "fms", "neg")
        function = Binder(lambda f: f, dict.fromkeys(names))(algorithm)
        steps = {"two_sum": self._two_sum, "fast_two_sum": self._fast_two_sum,
                 "two_prod": self._two_prod, "rn": self._rounded,
                 "two_square": lambda a: self._two_prod(a, a)}  # fmt: skip
        _replace(function.__globals__, steps)
        self.result = function(*given)
        if self._formed:
            # What a product leaves out, no larger than this.
            self.discarded += [
                Number(z3.Or(a.zero, b.zero), None, a.top + b.top + 1, *[None] * 3)
                for a, b in itertools.product(x, y)
                if (a, b) not in self._formed
            ]

    def _number(self) -> Number:
        self._count += 1
        names = [f"{field}{self._count}" for field in ("top", "low", "gap", "rest")]
        flags = (z3.Bool(f"zero{self._count}"), z3.Bool(f"negative{self._count}"))
        number = Number(*flags, *map(z3.Int, names))
        self.facts.append(of_a_number(number, self.p, Logic))
        return number

    def _expansion(self, terms: int) -> tuple[Number, ...]:
        """|x[k + 1]| <= ulp(x[k]) / 2."""
        x = tuple(self._number() for _ in range(terms))
        for high, low in itertools.pairwise(x):
            tie = z3.Implies(low.top == high.top - self.p, low.low == low.top)
            small = z3.And(z3.Not(high.zero), low.top <= high.top - self.p, tie)
            self.facts.append(z3.Or(low.zero, small))
        return x

    def _result(self, exact: Pending) -> tuple[Number, Number]:
        s, e = self._number(), self._number()
        known = {} if exact.facts is of_a_product else {"distances": self._steps in self._near}
        self.facts += exact.facts(exact.x, exact.y, s, e, self.p, Logic, **known)
        self._steps += 1
        if exact.facts is of_a_product:
            self._formed.append((exact.x, exact.y))
        return s, e

    def _two_sum(self, x: Number, y: Number) -> tuple[Number, Number]:
        return self._result(x + y)

    def _two_prod(self, x: Number, y: Number) -> tuple[Number, Number]:
        return self._result(x * y)

    def _fast_two_sum(self, x: Number, y: Number) -> tuple[Number, Number]:
        s, e = self._two_sum(x, y)
        self.preconditions.append(fast_two_sum_is_exact(x, y, e, self.p, Logic))
        return s, e

    def _rounded(self, exact: Pending) -> Number:
        s, e = self._result(exact)
        self.discarded.append(e)
        self.rounded.append(s)
        return s

    def holds(self, fact: Any) -> bool:
        """Whether it follows; fails where z3 cannot tell in ten minutes."""
        solver = z3.SolverFor("QF_LIA")
        solver.set("timeout", 10 * MINUTES)
        solver.add(*self.facts, z3.Not(fact))
        answer = solver.check()
        assert answer != z3.unknown
        return bool(answer == z3.unsat)

    def below(self, number: Number, bits: Any) -> bool:
        """Whether a number is zero or its exponent at least `bits` below the result's."""
        first = self.result[0]
        small = z3.And(z3.Not(first.zero), number.top <= first.top - bits)
        return self.holds(z3.Or(number.zero, small))

    def lost(self, k: int, bits: Any) -> bool:
        """Whether what rounding k discards is at most 2**-bits of the result's leading component.

        It is below twice its leading bit, and at most 2**-p of that of the rounded number.
        """
        s, e, first = self.rounded[k], self.discarded[k], self.result[0]
        small = z3.Or(e.top + 1 <= first.top - bits, s.top - self.p <= first.top - bits)
        return self.holds(z3.Or(e.zero, z3.And(z3.Not(first.zero), small)))


def _replace(namespace: dict[str, Any], steps: dict[str, Any]) -> None:
    """Put the steps in place of the functions of their names, in called functions too."""
    for name, value in list(namespace.items()):
        if name in steps:
            namespace[name] = steps[name]
        elif isinstance(value, FunctionType):
            _replace(value.__globals__, steps)


def sloppy_sum2(x: Any, y: Any) -> Any:
    """The mutant: low components added without an error-free transform."""
    x0, x1 = x
    y0, y1 = y
    s, e = two_sum(x0, y0)
    return fast_two_sum(s, rn(e + rn(x1 + y1)))


def product2_without_a_cross_term(x: Any, y: Any) -> Any:
    """The mutant: x1 * y0 left out."""
    p, e = two_prod(x[0], y[0])
    return fast_two_sum(p, rn(e + rn(x[0] * y[1])))


def sum3_without_a_step(x: Any, y: Any) -> Any:
    """The mutant: `sum3` with the error of the second components rounded away."""
    x0, x1, x2 = x
    y0, y1, y2 = y
    a, b = two_sum(x0, y0)
    c = rn(x1 + y1)
    e = rn(x2 + y2)
    a, c = fast_two_sum(a, c)
    b, c = two_sum(b, c)
    a, b = fast_two_sum(a, b)
    c = rn(c + e)
    b, c = fast_two_sum(b, c)
    a, b = fast_two_sum(a, b)
    return a, b, c


# What each discarded error of a sum is at most, as a power of two, in units of u^n; None for the
# one that `first_of_four` bounds.
SUMS = {sums.sum2: (2, (2, 2)), sums.sum3: (3, (5, 2, 3)), sums.sum4: (4, (None, 1, 1, 1))}
# Which steps' distances matter to what is lost: all that lead to the largest component, and others.
NEAR = {sums.sum4: (0, 1, 2, 3, 4, 9, 11, 18, 23, 27)}
# What each discarded error of a product lies below the result, in bits less than n p.
PRODUCTS = {
    products.product2: (2, (1, 1, 3, 4, 2)),
    products.product3: (3, (2, 2, 4, 1, 5, 2, 4, 6, 7, 3, 3, 0)),
}
# Components of the arguments.
NETWORKS = {algorithm: (n, n) for algorithm, (n, _) in (SUMS | PRODUCTS).items()}
EXACT = NETWORKS | {
    products.pair_times3: (2, 3),
    short_products.times_float3: (3, 1),
    short_products.times_float4: (4, 1),
    short_products.squared3: (3,),
    short_products.squared4: (4,),
    short_products.pair_square3: (2,),
    short_products.pair_square4: (2,),
}


@pytest.mark.parametrize("algorithm", EXACT, ids=lambda a: a.__name__)
def test_every_fast_two_sum_is_exact(algorithm: Callable[..., Any]) -> None:
    # A sum of four has 31 steps.
    near = range(31) if algorithm is sums.sum4 else ()
    proof = Proof(algorithm, *EXACT[algorithm], near=near)
    assert proof.preconditions
    assert all(proof.holds(fact) for fact in proof.preconditions)


@pytest.mark.parametrize("algorithm", SUMS, ids=lambda a: a.__name__)
def test_what_sums_discard_is_small(algorithm: Callable[..., Any]) -> None:
    terms, powers = SUMS[algorithm]
    proof = Proof(algorithm, terms, terms, near=NEAR.get(algorithm, ()))
    assert len(proof.discarded) == len(powers)
    shown = {k: power for k, power in enumerate(powers) if power is not None}
    assert all(proof.lost(k, terms * proof.p - power) for k, power in shown.items())
    # Relative to the exact result, for the least precision.
    u, total = Fraction(1, 2**8), sum(2**power for power in shown.values())
    leading = 1 / (1 - u - 2 * u**2 - (total + 3) * u**terms)
    argued = first_of_four(u) if None in powers else 0
    row = expansion_bound("add", terms)
    if not row.source.startswith("Zhang"):
        assert total * u**terms * leading + argued <= row.relative(torch.bfloat16)


@pytest.mark.parametrize("algorithm", PRODUCTS, ids=lambda a: a.__name__)
def test_what_products_discard_is_small(algorithm: Callable[..., Any]) -> None:
    terms, lost = PRODUCTS[algorithm]
    proof = Proof(algorithm, terms, terms)
    assert len(proof.discarded) == len(lost)
    for number, bits in zip(proof.discarded, lost, strict=True):
        assert proof.below(number, terms * proof.p - bits)


@pytest.mark.parametrize("algorithm", NETWORKS, ids=lambda a: a.__name__)
def test_components_do_not_overlap(algorithm: Callable[..., Any]) -> None:
    proof = Proof(algorithm, *NETWORKS[algorithm], near=NEAR.get(algorithm, ()))
    for high, low in itertools.pairwise(proof.result):
        assert proof.holds(
            z3.Or(low.zero, z3.And(z3.Not(high.zero), low.top <= high.top - proof.p))
        )


@pytest.mark.parametrize(
    ("algorithm", "terms"),
    [(sloppy_sum2, 2), (sum3_without_a_step, 3), (product2_without_a_cross_term, 2)],
)
def test_mutants_have_no_proof(algorithm: Callable[..., Any], terms: int) -> None:
    proof = Proof(algorithm, terms, terms)
    assert not all(proof.below(number, proof.p) for number in proof.discarded)
