"""The two-term networks proved by an SMT solver on small formats, the code itself as the formula.

The bound algorithms run on z3's floating-point terms, so that what is proved is what runs; the
exact sum is taken in a format wide enough to hold it. z3 reduces the question to Boolean logic,
which finishes for 3 bits of precision and of exponent, not reliably for 4, and not in nine minutes
for three components; test_smt_networks.py proves a larger bound for every precision. The sloppy
addition, which has no bound, must be refuted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mcf.kernels.algorithms import sums
from mcf.kernels.algorithms.primitives import rn
from mcf.kernels.algorithms.transforms import fast_two_sum, two_sum
from mcf.kernels.bind import Binder

z3 = pytest.importorskip("z3", reason="needs z3-solver (the extra `proofs`)")

pytestmark = pytest.mark.nightly

NEAREST = z3.RNE()
MINUTES = 60_000


def sloppy_sum2(x: Any, y: Any) -> Any:
    """The mutant: low components added without an error-free transform."""
    x0, x1 = x
    y0, y1 = y
    s, e = two_sum(x0, y0)
    return fast_two_sum(s, rn(e + rn(x1 + y1)))


def bind(algorithm: Callable[..., Any]) -> Any:
    same = {name: lambda x: x for name in ("rn", "rx", "rc", "rv")}
    return Binder(lambda f: f, {**same, "neg": lambda x: -x})(algorithm)


def total(terms: Any, wide: Any) -> Any:
    """The exact sum, in a format that holds it."""
    value = z3.fpFPToFP(NEAREST, terms[0], wide)
    for t in terms[1:]:
        value = z3.fpAdd(NEAREST, value, z3.fpFPToFP(NEAREST, t, wide))
    return value


def counterexample(algorithm: Callable[..., Any], p: int, bound: float) -> Any:
    """z3's answer to: is there a sum whose error is above bound * u^2, with 3 bits of exponent?

    sat, unsat, or unknown after the time limit. Pairs are normalised, and below a quarter of the
    largest power of two, so that nothing overflows. By commutativity and symmetry of rounding
    |y| <= |x| and x >= 0.
    """
    exponent_bits, bias = 3, 3
    small = z3.FPSort(exponent_bits, p)
    # From the smallest subnormal, 2**(2 - bias - p), to four times the largest power of two.
    wide = z3.FPSort(6, 2 * bias + p + 3)
    x = tuple(z3.FP(f"x{k}", small) for k in range(2))
    y = tuple(z3.FP(f"y{k}", small) for k in range(2))
    exact = z3.fpAdd(NEAREST, total(x, wide), total(y, wide))
    error = z3.fpAbs(z3.fpSub(NEAREST, total(bind(algorithm)(x, y), wide), exact))
    scaled = z3.fpMul(NEAREST, error, z3.FPVal(4.0**p, wide))
    limit = z3.fpMul(NEAREST, z3.FPVal(bound, wide), z3.fpAbs(exact))
    solver = z3.SolverFor("QF_FP")
    solver.set("timeout", 10 * MINUTES)
    largest = z3.FPVal(2.0 ** (bias - 2), small)
    solver.add(*(z3.fpLEQ(z3.fpAbs(v), largest) for v in (*x, *y)))
    solver.add(*(z3.fpEQ(hi + lo, hi) for hi, lo in (x, y)))
    solver.add(z3.fpLEQ(z3.fpAbs(y[0]), z3.fpAbs(x[0])), z3.fpGEQ(x[0], z3.FPVal(0, small)))
    solver.add(z3.Not(z3.fpLEQ(scaled, limit)))
    return solver.check()


def test_no_sum_of_pairs_is_off_by_more_than_its_bound() -> None:
    assert counterexample(sums.sum2, 3, 2.0) == z3.unsat


def test_the_sloppy_sum_is_refuted() -> None:
    assert counterexample(sloppy_sum2, 3, 2.0) == z3.sat
