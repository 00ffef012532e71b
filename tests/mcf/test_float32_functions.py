"""Elementary functions in float32 components, `mcf.set_registers("float32")`.

*Derived bound* (`mcf.elementary.function_bounds` over another format) against MPFR, with what
underflow may cost; no tensor of float64. `test_float32_fused.py` has the bits of executors.
Mutants: a table and a constant of one component, a reduction that is a component short, a logarithm
beside 1 that is not scaled.
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
from mcf.elementary import exponential, logarithm, tables
from mcf.elementary.function_bounds import FUNCTIONS, UNDERFLOW, bound
from mcf.elementary.fused import PROGRAMS
from mcf.elementary.operator import IN_FLOAT32
from mcf.kernels.formats import BF16, FP16, FP32, FP64, Format
from tests.helpers import assert_all_same_bits, mpfr
from tests.helpers.elementary import Components, inputs
from tests.helpers.everyday import everyday
from tests.helpers.references import errors
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


@needs_mpfr
@pytest.mark.parametrize("mutant", ["table", "step", "unscaled"])
def test_the_bound_rejects(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "log" if mutant == "unscaled" else "exp"
    x = beside_one() if mutant == "unscaled" else inputs(name, FP32, 3, 60, 43)[1][0]
    # A logarithm beside 1 is scaled, and loses half a unit at its end.
    lost = 0 if mutant == "unscaled" else UNDERFLOW
    assert excess(name, FP32, len(x), x, underflow=lost) <= 1
    lookup, constant = tables.lookup, tables.constant
    if mutant == "table":
        # Three components are computed with four, of which two are left.
        def short(name: str, index: Any, terms: int) -> Components:
            found = lookup(name, index, terms)
            return (*found[:2], *(torch.zeros_like(c) for c in found[2:]))

        monkeypatch.setattr(exponential, "lookup", short)
    elif mutant == "step":

        def shorter(value: Fraction, terms: int, device: torch.device) -> Components:
            return constant(value, max(1, terms - 3), device)

        monkeypatch.setattr(exponential, "constant", shorter)
    else:
        monkeypatch.setattr(logarithm, "_NEAR_SHIFT", 0)
    assert excess(name, FP32, len(x), x, underflow=lost) > 2


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
    def split(numbers: list[int | Fraction], count: int) -> Components:
        rows = [components_of(n, FP32, count) for n in numbers]
        return tuple(torch.tensor(c) for c in zip(*rows, strict=True))

    whole = [*range(0, 39, 1 if terms == 4 else 40)]
    assert_all_same_bits(
        elementary.log10(split([10**k for k in whole], terms)), split([*whole], terms)
    )
    exponents = [-149, -126, -1, 0, 1, 24, 127]
    powers = split([Fraction(2) ** k for k in exponents], terms)
    assert_all_same_bits(elementary.log2(powers), split([*exponents], terms))


@by_name
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
