"""`mcf.bound` of sums, products, norms, moments and polynomials holds on ill-conditioned inputs.

Against rational arithmetic. Each bound rejects its mutants: arithmetic that drops the last
component (plain arithmetic, for one), and a quotient, difference or root that does. The absolute
part is tried on whole numbers scaled by powers of two and climbed from there; its mutant is the
bound without that part, which the same inputs break.
"""

from __future__ import annotations

import functools
import math
import operator
import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mcf
from mcf.kernels import operations
from mcf.kernels.formats import BF16, FORMATS, FP16, FP32, FP64, Format, format_of
from mcf.reductions.products import matmul
from mcf.reductions.sum_bounds import ROWS
from tests.helpers.adversarial import Draw
from tests.helpers.expansions import draw, tensors
from tests.helpers.sums import Components, cancelling, exact_dot, exact_sum, values

pytestmark = pytest.mark.usefixtures("on_torch")

COUNT = 300
# A mutant's error is at least so many times the bound: inputs are built for that.
MARGIN = 2
CASES = [(fmt, n) for fmt in FORMATS.values() for n in (1, 2, 3, 4)]


def tensor(x: Components) -> Tensor:
    return x[0] if len(x) == 1 else mcf.from_components(x)


def parts(x: Tensor) -> Components:
    components = x.components if isinstance(x, mcf.MCFTensor) else (x,)
    return tuple(c.reshape(1) for c in components)


def root(x: Fraction) -> Fraction:
    """The square root, to 2**-1400."""
    return Fraction(math.isqrt(int(x * 2**2800)), 2**1400)


def beside_one(fmt: Format, terms: int) -> Components:
    """Numbers that differ in the last bits of their first component and in what comes after."""
    low = spread(fmt, max(2, terms) - 1, 5)
    first = torch.arange(COUNT).double() % 3 * 4 * float(fmt.u) + 1
    parts = [first, *(c.double() * float(fmt.u) / 8 for c in low)]
    return tuple(c.to(fmt.dtype) for c in parts[:terms])


def spread(fmt: Format, terms: int, seed: int) -> Components:
    """Positive numbers without cancellation."""
    return tensors(fmt, [np.abs(c) for c in draw(fmt, terms, COUNT, seed, 0, 1)])


def opposite(fmt: Format, terms: int, count: int) -> tuple[Components, Components]:
    """Vectors whose products nearly cancel in pairs."""
    x, y = (draw(fmt, terms, count, seed, -4, 4) for seed in (1, 2))
    half = count // 2
    for k, part in enumerate(x):
        part[half:] = -part[:half] if k < max(1, terms - 1) else 0
        y[k][half:] = y[k][:half]
    if terms == 1:
        # Which leaves nothing of one component.
        x[0][half + 1] += Draw(fmt, 0).ulp(x[0][half + 1])
    return tensors(fmt, x), tensors(fmt, y)


def given(operation: str, fmt: Format, terms: int) -> tuple[Components, ...]:
    """Ill-conditioned arguments."""
    if operation in ("sum", "mean"):
        return (cancelling(fmt, terms, (COUNT,), 1),)
    if operation in ("dot", "matmul"):
        return opposite(fmt, terms, COUNT if operation == "dot" else 40)
    if operation == "norm":
        if terms == 1:
            # Squares of a quarter of an ulp beside 1, which a running sum loses one by one.
            small = 2.0 ** -((fmt.p + 2) // 2)
            return ((torch.tensor([1.0, *[small] * (COUNT - 1)]).to(fmt.dtype),),)
        return (spread(fmt, terms, 11),)
    if operation in ("var", "std"):
        return (beside_one(fmt, terms),)
    lows = [(5 * float(fmt.u) / 8) ** k for k in range(1, terms)]
    point = [1.01] if terms == 1 else [1 + 4 * float(fmt.u), *lows]
    return (tuple(torch.tensor([c], dtype=torch.float64).to(fmt.dtype) for c in point),)


def coefficients(terms: int) -> list[int]:
    """x**2 - 1, which loses all first components near 1; for one component (x - 1)**5."""
    return [1, 0, -1] if terms > 1 else [1, -5, 10, -10, 5, -1]


def computed(operation: str, x: tuple[Components, ...], terms: int, **options: Any) -> Components:
    """The operation on components, as a vector of one element; `options` may be `reproducible`."""
    a = tensor(x[0])
    if operation == "matmul":
        left, right = (c[None] for c in x[0]), (c[:, None] for c in x[1])
        return tuple(c.reshape(1) for c in matmul(tuple(left), tuple(right), terms))
    if operation == "polyval":
        return parts(mcf.polyval(coefficients(terms), a))
    if operation in ("sum", "norm"):
        return parts(getattr(mcf, operation)(a, terms=terms, **options))
    if operation == "dot":
        return parts(mcf.dot(a, tensor(x[1]), terms=terms, **options))
    return parts(getattr(mcf, operation)(a, **options))


def exactly(operation: str, x: tuple[Components, ...]) -> tuple[Fraction, Fraction, int]:
    """The exact result, T and the number of elements."""
    n = len(x[0][0])
    if operation in ("sum", "mean"):
        total, size = exact_sum(x[0])
        share = n if operation == "mean" else 1
        return total / share, size / share, n
    if operation in ("dot", "matmul"):
        return *exact_dot(*x), n
    if operation == "norm":
        return root(exact_dot(x[0], x[0])[0]), Fraction(0), n
    if operation == "polyval":
        [v], c = values(x[0]), coefficients(len(x[0]))
        terms = [a * v**k for k, a in enumerate(reversed(c))]
        return sum(terms, Fraction(0)), sum(map(abs, terms), Fraction(0)), len(c)
    v = values(x[0])
    squares, mean = sum((e * e for e in v), Fraction(0)), sum(v, Fraction(0)) / n
    exact, size = (squares - n * mean * mean) / (n - 1), squares / (n - 1)
    return (exact, size, n) if operation == "var" else (root(exact), root(size), n)


def excess(
    operation: str,
    fmt: Format,
    terms: int,
    x: tuple[Components, ...],
    *,
    drop: int = 0,
    register: Format = FP64,
    **options: Any,
) -> float:
    """The error over the bound; with `drop` of arithmetic that ignores so many last components."""
    kept = terms - drop
    short = tuple((*c[:kept], *(torch.zeros_like(t) for t in c[kept:])) for c in x)
    result = computed(operation, short if drop else x, terms, **options)
    assert len(result) == terms
    assert format_of(result[0].dtype) == fmt
    exact, size, count = exactly(operation, x)
    allowed = ROWS[operation].bound(fmt, terms, count, register).error(exact, size)
    # What comes out is rounded to the range of the format, the last component too.
    allowed += ROWS[operation].underflow(fmt, terms, count, register)
    return float(abs(sum(values(result), Fraction(0)) - exact) / allowed)


@pytest.mark.sampled(every=18)
@pytest.mark.parametrize(
    ("operation", "fmt", "terms"),
    # Products of pairs of fp16 fall below the range of their errors.
    [(o, f, n) for f, n in CASES for o in ROWS if (o, f) != ("polyval", FP16) or n == 1],
    ids=lambda c: getattr(c, "name", c),
)
def test_bound(operation: str, fmt: Format, terms: int) -> None:
    cases = [given(operation, fmt, terms)]
    if operation in ("mean", "var", "std"):
        cases.append((spread(fmt, terms, 6),))
    for x in cases:
        assert excess(operation, fmt, terms, x) <= 1
        if operation not in ("matmul", "polyval"):
            assert excess(operation, fmt, terms, x, reproducible=True) <= 1


@pytest.mark.sampled
@pytest.mark.parametrize("operation", [o for o in ROWS if o != "norm"])
@pytest.mark.parametrize("terms", [1, 2, 3, 4])
def test_inputs_are_ill_conditioned(operation: str, terms: int) -> None:
    exact, size, _ = exactly(operation, given(operation, FP64, terms))
    assert size > 2**30 * abs(exact)


@pytest.mark.sampled(every=9)
@pytest.mark.parametrize("operation", ROWS)
@pytest.mark.parametrize("terms", [2, 3, 4])
@pytest.mark.parametrize("fmt", [BF16, FP32, FP64], ids=lambda f: f.name)
def test_bounds_reject_the_loss_of_a_component(operation: str, fmt: Format, terms: int) -> None:
    # The bound of several products and sums of bf16 has room for its last component, 2^-8 of which
    # a sum of three may lose.
    drop = 2 if (operation, fmt) == ("polyval", BF16) and terms > 2 else 1
    assert excess(operation, fmt, terms, given(operation, fmt, terms), drop=drop) > MARGIN


def added(x: Tensor) -> Tensor:
    """From the first to the last, each sum rounded."""
    return functools.reduce(operator.add, x.unbind())


def plain_polyval(coefficients: list[int], x: Tensor) -> Tensor:
    value = torch.zeros_like(x)
    for c in coefficients:
        value = value * x + c
    return value


PLAIN: dict[str, Callable[..., Tensor]] = {
    "sum": lambda x, **_: added(x),
    "dot": lambda x, y, **_: added(x * y),
    "mean": lambda x: added(x) / len(x),
    "norm": lambda x, **_: added(x * x).sqrt(),
    "var": lambda x: added(x * x) / len(x) - (added(x) / len(x)) ** 2,
    "std": lambda x: (added(x * x) / len(x) - (added(x) / len(x)) ** 2).abs().sqrt(),
    "polyval": plain_polyval,
}


@pytest.mark.parametrize("operation", PLAIN)
@pytest.mark.parametrize("fmt", [FP32, FP64], ids=lambda f: f.name)
def test_bounds_of_one_component_reject_plain_arithmetic(
    operation: str, fmt: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcf, operation, PLAIN[operation])
    assert excess(operation, fmt, 1, given(operation, fmt, 1)) > MARGIN


def test_the_bound_of_one_component_rejects_a_plain_matrix_product() -> None:
    x, y = given("matmul", FP64, 1)
    exact, size, count = exactly("matmul", (x, y))
    plain = Fraction(float(added(x[0] * y[0])))
    assert abs(plain - exact) > MARGIN * ROWS["matmul"].bound(FP64, 1, count).error(exact, size)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("operation", "step"),
    [("mean", "div"), ("norm", "sqrt"), ("var", "sub"), ("var", "div"), ("std", "sqrt")],
)
@pytest.mark.parametrize("terms", [2, 3, 4])
def test_bounds_reject_a_step_that_drops_a_component(
    operation: str, step: str, terms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = getattr(operations, step)

    def short(*arguments: Any) -> Components:
        result: Components = exact(*arguments)
        return (*result[:-1], torch.zeros_like(result[-1]))

    monkeypatch.setattr(operations, step, short)
    assert excess(operation, FP64, terms, (spread(FP64, terms, 6),)) > MARGIN


def test_bound_answers_with_a_count() -> None:
    found = mcf.bound("sum", 2, torch.float64, count=1000)
    assert found.relative == 0
    assert found.of_terms == float(ROWS["sum"].bound(FP64, 2, 1000).absolute)
    assert found.proven
    assert not mcf.bound("var", 3, torch.float64, count=1000).proven
    assert mcf.bound("norm", 2, torch.float32, count=9).absolute == 2.0**-149
    assert mcf.bound("fma", 2, torch.float64).of_terms > 0
    assert mcf.bound("mul", 2, torch.float64).of_terms == 0


def test_bound_refuses_counts() -> None:
    with pytest.raises(ValueError, match="'dot' needs count="):
        mcf.bound("dot")
    with pytest.raises(ValueError, match="count must be 1 or more, got 0"):
        mcf.bound("dot", count=0)
    with pytest.raises(TypeError, match="count must be an int, got float"):
        mcf.bound("dot", count=2.0)
    with pytest.raises(ValueError, match="'mul' takes none, got 5"):
        mcf.bound("mul", count=5)
    with pytest.raises(ValueError, match="'exp' takes none, got 5"):
        mcf.bound("exp", count=5)
    for operation, count in (("sum", 5), ("mul", None), ("exp", None)):
        with pytest.raises(ValueError, match="terms must be an int from 1 to 4, got 5"):
            mcf.bound(operation, 5, count=count)
    # With or without a count, and all that is allowed is named.
    for count in (5, None):
        with pytest.raises(ValueError, match=r"no bound for operation 'min'; known .*exp.*dot"):
            mcf.bound("min", count=count)
    with pytest.raises(ValueError, match=r"no bound for operation 'mull' \(did you mean 'mul'\?\)"):
        mcf.bound("mull")
    with pytest.raises(ValueError, match=r"count must be below 1 \+ 1/\(2v\) = 4503599627370497"):
        mcf.bound("polyval", 1, torch.bfloat16, count=2**53)


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


def excesses(
    operation: str, terms: int, wholes: list[list[int]], exponent: int
) -> tuple[float, float]:
    """The error over the bound, with and without the absolute part."""
    x = tuple(expansions(w, exponent - 53 * terms, terms) for w in wholes)
    exact, size, count = exactly(operation, x)
    error = abs(sum(values(computed(operation, x, terms)), Fraction(0)) - exact)
    row = ROWS[operation]
    relative = row.bound(FP64, terms, count).error(exact, size)
    allowed = relative + row.underflow(FP64, terms, count)
    return float(error / allowed) if error else 0.0, float(error / relative) if error else 0.0


@pytest.mark.sampled(every=8)
@pytest.mark.parametrize("operation", [o for o in ROWS if o not in ("sum", "polyval")])
@pytest.mark.parametrize("terms", [1, 2, 3, 4])
def test_bound_of_underflow(operation: str, terms: int) -> None:
    draws = random.Random(terms)
    vectors = 2 if operation in ("dot", "matmul") else 1
    best, without = (-1.0, [[1]], 0), 0.0
    for step in range(24):
        if step > 12:
            # A change of the worst so far: a bit of a number.
            _, wholes, exponent = best
            wholes = [list(w) for w in wholes]
            chosen = wholes[draws.randrange(vectors)]
            chosen[draws.randrange(len(chosen))] ^= 1 << draws.randrange(53 * terms)
        else:
            exponent = draws.choice(EXPONENTS[operation in PRODUCTS])
            count = draws.choice([2, 3, 5, 8])
            wholes = [
                [draws.choice([-1, 1]) * (draws.getrandbits(53 * terms) | 1) for _ in range(count)]
                for _ in range(vectors)
            ]
        found, mutant = excesses(operation, terms, wholes, exponent)
        best, without = max(best, (found, wholes, exponent)), max(without, mutant)
    assert best[0] <= 1
    assert without > 2


@pytest.mark.parametrize("terms", [1, 2, 3, 4])
def test_sums_need_none(terms: int) -> None:
    draws = random.Random(terms)
    for exponent in (-1060, -1020, -960, -900):
        wholes = [draws.choice([-1, 1]) * (draws.getrandbits(53 * terms) | 1) for _ in range(8)]
        assert excesses("sum", terms, [wholes], exponent)[1] <= 1


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
        exact, size = (root(v * Fraction(4) ** -exponent) * Fraction(2) ** exponent
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
