"""Elementary functions in float32 components, `mcf.set_registers("float32")`.

*Derived bound* (`mcf.elementary.function_bounds` over another format) against MPFR, with what
underflow may cost, also of tangents next to their poles and powers of numbers next to 1, whose last
bits are below the range before they are scaled; no tensor of float64. *Exact*: whole powers,
logarithms, remainders. *Observed*, by sampling: softmax, log_softmax and logsumexp against
expansions of float64. Mutants: a table, a constant, erf's series and the shifted exponent of a
component or two less, a reduction that is a component short, logarithms that are not scaled or
lifted, a rest of an angle after its scaling, powers that are not corrected.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mcf
from mcf import elementary
from mcf.convert.numbers import components_of
from mcf.elementary import angles, exponential, logarithm, power, series, working
from mcf.elementary.function_bounds import FUNCTIONS, UNDERFLOW, bound
from mcf.elementary.function_bounds import SPECIAL as SPECIAL_NAMES
from mcf.elementary.fused import PROGRAMS
from mcf.elementary.operator import IN_FLOAT32
from mcf.kernels.formats import BF16, FP16, FP32, FP64, Format
from tests.helpers import assert_all_same_bits, mpfr
from tests.helpers.elementary import Components, Inputs, inputs
from tests.helpers.everyday import everyday
from tests.helpers.references import errors
from tests.helpers.sums import values
from tests.kernels.test_register_choice import Made

pytestmark = pytest.mark.usefixtures("float32_registers")


needs_mpfr = pytest.mark.skipif(mpfr.missing() is not None, reason=str(mpfr.missing()))
NAMES = sorted(IN_FLOAT32 & {*FUNCTIONS})
# A program of each kind, and by slow tests all.
EVERYDAY = ("exp", "log", "sin", "tanh")
by_name = pytest.mark.parametrize("name", everyday(NAMES, EVERYDAY))


def excess(name: str, fmt: Format, terms: int, *x: Components, underflow: int = UNDERFLOW) -> float:
    """The largest error over the bound, without what underflow may cost."""
    result = getattr(elementary, name)(*x)
    found = errors(name, fmt, x, result)
    assert found.wrong == []
    # Relative to the result an error of so many units is below any bound.
    leading = result[0].double().abs().numpy()
    lost = underflow * float(max(FP32.min_subnormal, fmt.min_subnormal / UNDERFLOW))
    unit = np.maximum(leading, float(fmt.min_subnormal)) * float(fmt.u**terms)
    counts = np.nan_to_num(found.relative) - 1.01 * lost / unit
    return float(np.max(counts)) / bound(name, fmt, terms, FP32)


@pytest.mark.sampled(every=4)
@needs_mpfr
@by_name
def test_bound(name: str) -> None:
    for fmt, terms in ((FP32, 3), (FP32, 4), (BF16, 2)):
        for x in inputs(name, fmt, terms, 60, 40 + terms):
            assert excess(name, fmt, terms, *x) <= 1, (fmt.name, terms)


@needs_mpfr
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_bound_of_many(name: str) -> None:
    for fmt in (FP32, FP16, BF16):
        for terms in (1, 2, 3, 4):
            for x in inputs(name, fmt, terms, 3000, 40 + terms):
                assert excess(name, fmt, terms, *x) <= 1, (fmt.name, terms)


def beside_one() -> Components:
    """Numbers whose logarithms are some 2**-60 and have all bits down to the smallest number."""
    draws = torch.Generator().manual_seed(1)
    low = torch.randint(2**23, 2**24, (3, 40), generator=draws) * torch.tensor(
        [[1.0], [-1.0], [1.0]]
    )
    low *= torch.tensor([[2.0**-84], [2.0**-110], [2.0**-136]])
    return (torch.ones(40), *low.float())


def split(numbers: list[int | Fraction], terms: int) -> Components:
    """Return numbers as expansions."""
    rows = [components_of(n, FP32, terms) for n in numbers]
    return tuple(torch.tensor(c) for c in zip(*rows, strict=True))


def cut(whole: Any) -> Any:
    """Return two components of those that are looked up."""

    def short(name: str, index: Any, terms: int) -> Components:
        found = whole(name, index, terms)
        return (*found[:2], *(torch.zeros_like(c) for c in found[2:]))

    return short


def _powers() -> tuple[Components, Components]:
    """Return 1 + 2**-60 and its like, and exponents of some 2**60."""
    draws = torch.Generator().manual_seed(3)
    low = torch.randint(2**23, 2**24, (3, 40), generator=draws).float()
    x = torch.ones(40), low[0] * 2.0**-84, low[1] * 2.0**-110, low[2] * 2.0**-136
    y = tuple(c.clone() for c in (low[0] * 2.0**37, low[1] * 2.0**10, low[2] * 2.0**-20))
    return x, (*y, torch.zeros(40))


# A function, its arguments, what underflow may cost, and what is broken. A logarithm next to 1 is
# scaled, and loses half a unit at its end; three components are computed with four.
MUTANTS: list[tuple[str, Any, int, Any, str, Any]] = [
    ("exp", lambda: inputs("exp", FP32, 3, 60, 43)[1], UNDERFLOW, exponential, "lookup", cut),
    ("exp", lambda: inputs("exp", FP32, 3, 60, 43)[1], UNDERFLOW, exponential, "constant",
     lambda whole: lambda value, terms, device: whole(value, max(1, terms - 3), device)),
    ("log", lambda: (beside_one(),), 0, logarithm, "_NEAR_SHIFT", lambda whole: 0),
    ("tan", lambda: inputs("tan", FP32, 4, 60, 44)[2], UNDERFLOW, angles, "bits_needed",
     lambda whole: lambda *given, full=False: whole(*given)),
    ("pow", _powers, UNDERFLOW, logarithm, "_SPLIT_SHIFT", lambda whole: 0),
    ("erfc", lambda: inputs("erf", FP32, 3, 60, 43)[1], UNDERFLOW, series, "lookup", cut),
    ("gelu", lambda: inputs("gelu", FP32, 3, 60, 43)[1], UNDERFLOW, series, "lookup", cut),
]  # fmt: skip


@needs_mpfr
@pytest.mark.parametrize(
    ("name", "given", "lost", "owner", "attribute", "change"),
    MUTANTS,
    ids=[f"{name}-{attribute}" for name, _, _, _, attribute, _ in MUTANTS],
)
def test_the_bound_rejects(
    name: str,
    given: Any,
    lost: int,
    owner: Any,
    attribute: str,
    change: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = given()
    assert excess(name, FP32, len(x[0]), *x, underflow=lost) <= 1
    monkeypatch.setattr(owner, attribute, change(getattr(owner, attribute)))
    assert excess(name, FP32, len(x[0]), *x, underflow=lost) > 2


SPECIAL = (0.0, -0.0, torch.inf, -torch.inf, torch.nan, 200.0, -200.0, 2.0**-149)


def specials(name: str) -> list[Tensor]:
    """Special values of an argument, or all pairs of such."""
    # Half of the smallest number is 0 or that.
    x = torch.tensor(SPECIAL[:-1] if name.startswith("gelu") else SPECIAL)
    if len(PROGRAMS[name].arguments) == 1:
        return [x]
    x = torch.cat([x, torch.tensor([1.0, -1.0, 0.5, 2.0, -2.5, 3.0])])
    return list(torch.cartesian_prod(x, x).unbind(1))


@pytest.mark.parametrize(
    "name",
    # Zeta functions are made when they are asked for.
    everyday(sorted(IN_FLOAT32 & {*dir(elementary)}), ("exp", "atan2")),
)
def test_special_values(name: str) -> None:
    for fmt in (FP32, BF16):
        given = [(x.to(fmt.dtype), torch.zeros_like(x, dtype=fmt.dtype)) for x in specials(name)]
        found = getattr(elementary, name)(*given)
        with mcf.registers("float64"):
            expected = getattr(elementary, name)(*given)
        finite = expected[0].isfinite() & (expected[0] != 0)
        leading = [torch.where(finite, 1.0, c[0]) for c in (found, expected)]
        assert_all_same_bits(leading[:1], leading[1:])
        assert bool((found[0][finite].float() / expected[0][finite].float() - 1 == 0).all())


@pytest.mark.parametrize("terms", [1, 4])
def test_powers_have_exact_logarithms(terms: int) -> None:
    whole = [*range(0, 39, 1 if terms == 4 else 40)]
    assert_all_same_bits(
        elementary.log10(split([10**k for k in whole], terms)), split([*whole], terms)
    )
    exponents = [-149, -126, -1, 0, 1, 24, 127]
    powers = split([Fraction(2) ** k for k in exponents], terms)
    assert_all_same_bits(elementary.log2(powers), split([*exponents], terms))


@pytest.mark.parametrize(
    "name", everyday(sorted(IN_FLOAT32 & {*FUNCTIONS, *SPECIAL_NAMES}), (*EVERYDAY, "digamma"))
)
def test_no_tensor_of_float64_is_made(name: str) -> None:
    x = inputs(name, FP32, 2, 20, 5)[0]
    # Tables are made on the host, once.
    getattr(elementary, name)(*x)
    with Made() as made:
        getattr(elementary, name)(*x)
    assert torch.float64 not in made.dtypes
    assert torch.float32 in made.dtypes


@pytest.mark.slow
def test_plans_are_of_a_choice() -> None:
    x = mcf.tensor([0.7, 1.3], 4, torch.float32)
    with mcf.executor("numba"):
        wide: Any = None
        with mcf.registers("float64"):
            wide = x.exp()
        narrow: Any = x.exp()
        with mcf.registers("float64"):
            assert_all_same_bits(x.exp().components, wide.components)
    assert_all_same_bits(narrow.components, x.exp().components)
    assert not torch.equal(narrow.components[3], wide.components[3])


def test_the_bound_is_that_of_the_choice() -> None:
    assert mcf.bound("exp", 4).relative > mcf.bound("exp", 4, registers="float64").relative
    assert mcf.bound("exp", 4, torch.float64) == mcf.bound(
        "exp", 4, torch.float64, registers="float64"
    )
    with pytest.raises(ValueError, match="'polygamma_5' has no form in float32 registers"):
        mcf.bound("polygamma_5", 2)
    assert bound("exp", FP64, 2) == bound("exp", FP64, 2, FP32)


def test_the_quotient_of_an_exponent_by_a_limb() -> None:
    """A product and a shift: of all exponents of either format."""
    for limb, exponents in (
        (24, range(-1074, 1000)),
        (angles.SHORT_LIMB, range(-149, 140)),
    ):
        factor = -(-angles._RECIPROCAL // limb)
        for e in exponents:
            found = (e + angles._OFFSET) * factor >> angles._SHIFT
            assert found - angles._OFFSET // limb == e // limb


def test_power_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [(3, 60), (-3, 61), (5, 40), (7, 1), (2**20 + 1, 4), (Fraction(5, 2**70), 2), (9, 12)]
    cases += [(Fraction(1, 2), 149), (4, 63), (Fraction(1, 2**100), -1), (2, -149)]
    cases += [(1 + Fraction(1, 2**40), 2), (1 + Fraction(1, 2**30), 3)]
    x = split([Fraction(b) for b, _ in cases], 4)
    y = split([k for _, k in cases], 4)
    exact = [Fraction(b) ** k for b, k in cases]
    assert values(elementary.pow(x, y)) == exact
    monkeypatch.setattr(power, "_BITS_OF_K", 0)
    assert values(elementary.pow(x, y)) != exact


@pytest.mark.parametrize("name", ["fmod", "remainder", "floor", "round"])
def test_exact_functions_have_the_bits_of_float64(name: str) -> None:
    d = Inputs(FP32, 2, 5)
    x, y = d.between(-10, 30, 100), d.between(-10, 5, 100)
    given = (x, y) if name in ("fmod", "remainder") else (x,)
    found = getattr(elementary, name)(*given)
    with mcf.registers("float64"):
        assert_all_same_bits(found, getattr(elementary, name)(*given))


# Of the result, or of logsumexp of the larger of that and the largest argument, in u**terms; four
# components have no bits to spare, and 3 was found.
LIMITS = {1: 1 + 2.0**-8, 2: 1.0, 3: 1.0, 4: 8.0}


def along(name: str, fmt: Format, terms: int) -> float:
    """The largest error over the limit."""
    worst = 0.0
    for seed, (low, high) in enumerate(((-4, 3), (-8, 5), (0, 6), (-30, 1))):
        x = Inputs(fmt, terms, seed).between(low, high, 12)
        found = values(getattr(elementary, name)(tuple(c[:, None] for c in x), 0))
        wide = [c.double()[:, None] for c in x]
        wide += [torch.zeros_like(wide[0])] * (3 - terms)
        exact = values(getattr(elementary, name)(tuple(wide), 0))
        largest = max(values(x)) if name == "logsumexp" else Fraction(0)
        # Half a smallest number of the format, and what underflow may cost.
        lost = Fraction(33, 64) * fmt.min_subnormal + UNDERFLOW * FP32.min_subnormal
        for f, e in zip(found, exact, strict=True):
            off = abs(f - e) - lost
            worst = max(worst, float(off / max(abs(e), abs(largest)) / fmt.u**terms))
    return worst / LIMITS[terms]


ALONG = ("softmax", "log_softmax", "logsumexp")


@pytest.mark.slow
@pytest.mark.parametrize("name", ALONG)
@pytest.mark.parametrize("fmt", [FP32, BF16, FP16], ids=lambda f: f.name)
def test_functions_along_a_dimension(name: str, fmt: Format) -> None:
    for terms in (1, 2, 3, 4):
        assert along(name, fmt, terms) <= 1, terms


@pytest.mark.slow
@pytest.mark.parametrize("name", everyday(ALONG, [ALONG[1]]))
def test_a_difference_that_is_a_component_short(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert along(name, FP32, 2) <= 1
    collected = working.collected

    def short(x: Components, terms: int) -> Components:
        return (collected(x, 1)[0], *[torch.zeros_like(x[0])] * (terms - 1))

    monkeypatch.setattr(working, "collected", short)
    assert along(name, FP32, 2) > 2
