"""Reductions of float64 numbers whose squares underflow: the absolute part of their bounds.

Against rational arithmetic, on whole numbers scaled by powers of two and climbed from there; the
mutant is the bound without that part, which the same inputs break.
"""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest
import torch

import mcf
from mcf.kernels.formats import FP64
from mcf.reductions.sum_bounds import ROWS
from tests.helpers.sums import Components, values
from tests.mcf.test_reduction_bounds import computed, exactly, parts, tensor

pytestmark = pytest.mark.usefixtures("on_torch")

PRODUCTS = ("dot", "matmul", "var")
# Where products of two are about the smallest subnormal number, or numbers themselves.
EXPONENTS = {True: (-545, -537, -520, -510, -500, -465, -440), False: (-1060, -1020, -1000)}


def expansions(wholes: list[int], exponent: int, terms: int) -> Components:
    rows = []
    for whole in wholes:
        rest = Fraction(whole) * Fraction(2) ** exponent
        row = []
        for _ in range(terms):
            row.append(float(rest))
            rest -= Fraction(row[-1])
        rows.append(row)
    return tuple(torch.tensor(rows, dtype=torch.float64).T.contiguous())


def precise_root(x: Fraction) -> Fraction:
    return Fraction(math.isqrt(int(x * 2**2800)), 2**1400)


def of(operation: str, x: tuple[Components, ...]) -> tuple[Fraction, Fraction, int]:
    """Roots of such numbers need more digits than `exactly` has."""
    if operation == "norm":
        squares = sum((e * e for e in values(x[0])), Fraction(0))
        return precise_root(squares), Fraction(0), len(x[0][0])
    if operation == "std":
        exact, size, count = exactly("var", x)
        return precise_root(exact), precise_root(size), count
    return exactly(operation, x)


def excess(
    operation: str, terms: int, wholes: list[list[int]], exponent: int
) -> tuple[float, float]:
    """The error over the bound, with and without the absolute part."""
    x = tuple(expansions(w, exponent - 53 * terms, terms) for w in wholes)
    exact, size, count = of(operation, x)
    error = abs(sum(values(computed(operation, x, terms)), Fraction(0)) - exact)
    row = ROWS[operation]
    relative = row.bound(FP64, terms, count).error(exact, size)
    allowed = relative + row.underflow(FP64, terms, count)
    return float(error / allowed) if error else 0.0, float(error / relative) if error else 0.0


@pytest.mark.sampled(every=8)
@pytest.mark.parametrize("operation", [o for o in ROWS if o not in ("sum", "polyval")])
@pytest.mark.parametrize("terms", [1, 2, 3, 4])
def test_bound(operation: str, terms: int) -> None:
    draw = random.Random(terms)
    vectors = 2 if operation in ("dot", "matmul") else 1
    best, without = (-1.0, [[1]], 0), 0.0
    for step in range(24):
        if step > 12:
            # A change of the worst so far: a bit of a number.
            _, wholes, exponent = best
            wholes = [list(w) for w in wholes]
            chosen = wholes[draw.randrange(vectors)]
            chosen[draw.randrange(len(chosen))] ^= 1 << draw.randrange(53 * terms)
        else:
            exponent = draw.choice(EXPONENTS[operation in PRODUCTS])
            count = draw.choice([2, 3, 5, 8])
            wholes = [
                [draw.choice([-1, 1]) * (draw.getrandbits(53 * terms) | 1) for _ in range(count)]
                for _ in range(vectors)
            ]
        found, mutant = excess(operation, terms, wholes, exponent)
        best, without = max(best, (found, wholes, exponent)), max(without, mutant)
    assert best[0] <= 1
    assert without > 2


@pytest.mark.parametrize("terms", [1, 2, 3, 4])
def test_sums_need_none(terms: int) -> None:
    draw = random.Random(terms)
    for exponent in (-1060, -1020, -960, -900):
        wholes = [draw.choice([-1, 1]) * (draw.getrandbits(53 * terms) | 1) for _ in range(8)]
        assert excess("sum", terms, [wholes], exponent)[1] <= 1


def test_bound_says_so() -> None:
    assert mcf.bound("dot", 1, torch.float64, count=10).absolute == 10 * 4 * 2.0**-1074
    assert mcf.bound("sum", 4, torch.float64, count=10).absolute == 0
    assert mcf.bound("mean", 3, torch.float64, count=10).absolute == 3 * 2.0**-1074
    assert mcf.bound("std", 2, torch.float64, count=4).absolute == 2 * 2.0**-1074
    assert mcf.bound("dot", 2, torch.float32, count=10).absolute == 2.0**-149


def test_polyval_says_what_it_requires() -> None:
    """And needs it: x**2 with x = 3 * 2**-540, below whose last place nothing is left."""
    x, row = Fraction(3, 2**540), ROWS["polyval"]
    off = abs(
        Fraction(mcf.polyval([1.0, 0.0, 0.0], torch.tensor(float(x), dtype=torch.float64)).item())
        - x * x
    )
    assert off > 2 * row.bound(FP64, 1, 3).error(x * x, x * x)
    needing = [(1, torch.float64), (2, torch.float32), (4, torch.float64)]
    for terms, dtype in (*needing, (1, torch.float32), (1, torch.bfloat16)):
        says = mcf.bound("polyval", terms, dtype, count=3).requires
        assert ("below the range" in says) == ((terms, dtype) in needing)
    assert not mcf.bound("sum", 1, torch.float64, count=3).requires
    assert not mcf.bound("dot", 4, torch.float64, count=3).requires


WHOLES = [3 * 2**52 + 1, 2**50 + 7, -(2**53) + 3, 5]


def std_of(exponent: int, terms: int) -> Components:
    wide = [w * 2 ** (53 * (terms - 1)) + k for k, w in enumerate(WHOLES)]
    return parts(mcf.std(tensor(expansions(wide, exponent - 53 * terms, terms))))


@pytest.mark.parametrize("terms", [1, 2, 3, 4])
def test_std_needs_no_range_for_squares(terms: int) -> None:
    """The deviation of numbers near either end, and the mutant: the root of the variance."""
    row, moved = ROWS["std"], []
    for exponent in (-1060 + 53 * terms, -560, 0, 500, 1010):
        wide = [w * 2 ** (53 * (terms - 1)) + k for k, w in enumerate(WHOLES)]
        x = expansions(wide, exponent - 53 * terms, terms)
        variance, square, count = exactly("var", (x,))
        # In digits enough for a root: moved to the middle of the range and back.
        exact, size = (precise_root(v * Fraction(4) ** -exponent) * Fraction(2) ** exponent
                       for v in (variance, square))  # fmt: skip
        allowed = row.bound(FP64, terms, count).error(exact, size)
        allowed += row.underflow(FP64, terms, count)
        assert abs(sum(values(std_of(exponent, terms)), Fraction(0)) - exact) <= allowed
        unscaled = parts(mcf.sqrt(mcf.var(tensor(x))) if terms > 1 else mcf.var(tensor(x)).sqrt())
        off = math.inf
        if unscaled[0].isfinite():
            off = float(abs(sum(values(unscaled), Fraction(0)) - exact) / allowed)
        moved.append((exponent, off))
    assert all(off > 2 for exponent, off in moved if abs(exponent) > 550)
    assert all(off <= 1 for exponent, off in moved if exponent == 0)


@pytest.mark.parametrize("terms", [1, 2, 3, 4])
def test_scaling_changes_no_bit_of_a_deviation(terms: int) -> None:
    """In the normal range it is the root of the variance, times any power of two."""
    middle = std_of(0, terms)
    for exponent in (-300, -200, 1, 300):
        moved = std_of(exponent, terms)
        for a, b in zip(moved, middle, strict=True):
            assert torch.equal(a, torch.ldexp(b, torch.tensor(exponent)))
    if terms > 1:
        wide = [w * 2 ** (53 * (terms - 1)) + k for k, w in enumerate(WHOLES)]
        root = parts(mcf.sqrt(mcf.var(tensor(expansions(wide, -53 * terms, terms)))))
        assert all(torch.equal(a, b) for a, b in zip(middle, root, strict=True))


def test_deviations_of_nothing_and_of_infinities() -> None:
    assert mcf.std(torch.zeros(3, 0, dtype=torch.float64), 1).isnan().all()
    assert mcf.std(torch.zeros(0, 3, dtype=torch.float64), 1).shape == (0,)
    assert mcf.std(torch.zeros(4, dtype=torch.float64)).item() == 0
    x = torch.tensor([[1.0, math.inf], [math.nan, 2.0]], dtype=torch.float64)
    assert mcf.std(x, 1).isnan().all()
