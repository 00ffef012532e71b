"""The bounds of elementary and special functions catch what they are there to catch.

Each mutant breaks one thing: a constant, table or product loses components, a step of a reduction
is left out, a series ends early, a zero has no more bits than the argument. The error of the same
arguments then exceeds the bound: of two components, which are computed with three, where all but
the leading one of a constant are lost, and of four, where the last one is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mcf.elementary
from mcf.convert.numbers import components_of
from mcf.elementary import (
    angles,
    bessel_jy,
    error,
    exponential,
    function_bounds,
    gamma,
    gamma_series,
    gelu_forms,
    inverse_error,
    logarithm,
    series,
    trigonometric,
    working,
)
from mcf.elementary.function_bounds import FUNCTIONS, SPECIAL, bound
from mcf.elementary.tables import Components
from mcf.kernels import FP64
from tests.helpers.elementary import inputs, worst
from tests.helpers.everyday import everyday
from tests.helpers.special import check, part

# Values: on the torch executor, which runs the programs and compiles nothing.
pytestmark = pytest.mark.usefixtures("on_torch")

# A change of a function: it takes the function and returns its mutant.
Change = Callable[[Any], Any]


def fails(name: str, terms: int) -> bool:
    """Return whether the error of some arguments exceeds the bound."""
    if name in SPECIAL:
        return check(name, FP64, terms, 12, seed=1) > 1
    for arguments in inputs(name, FP64, terms, 30, seed=1):
        relative, _ = worst(name, FP64, arguments, getattr(mcf.elementary, name)(*arguments))
        if relative > bound(name, FP64, terms):
            return True
    return False


def kept(count: int, components: Components) -> Components:
    """Return the leading components, and zeros in place of the others."""
    return (*components[:count], *(torch.zeros_like(c) for c in components[count:]))


def cut(terms: int, table: str = "") -> Change:
    """Keep the leading component of what two terms take, all but the fourth of what four take."""

    def change(whole: Any) -> Any:
        def mutant(*given: Any) -> Components:
            found = whole(*given)
            if table and given[0] != table:
                return found  # type: ignore[no-any-return]
            return kept(1 if terms == 2 else 3, found)

        return mutant

    return change


def without(table: str, entry: int) -> Change:
    """Return a table one entry of which is 0."""

    def change(whole: Any) -> Any:
        def mutant(name: str, device: torch.device) -> torch.Tensor:
            found: torch.Tensor = whole(name, device).clone()
            if name == table:
                found[entry] = 0
            return found

        return mutant

    return change


def shorter(count: int) -> Change:
    """Return a list without its last members."""
    return lambda whole: lambda *given: whole(*given)[:-count]


def fewer(count: int) -> Change:
    """Return a smaller number."""
    return lambda whole: lambda *given: whole(*given) - count


def steps(count: int) -> Change:
    """Keep some of the floats that a step of the exponential takes off."""

    def change(whole: Any) -> Any:
        def mutant(*given: Any) -> Any:
            k, floats = whole(*given)
            return k, floats[:count]

        return mutant

    return change


def _module(name: str) -> Any:
    """Return the module from which a special function takes its series."""
    if name == "spherical_bessel_j0":
        return angles
    return bessel_jy if name in ("airy_ai", "j0", "j1", "y0", "y1") else series


def _degree(name: str) -> tuple[Any, str, Change]:
    """Return the mutant of a table's series that is too short.

    Series that fall with 1/k! have some terms to spare.
    """
    if _module(name) is series:
        return series.Nodes, "degree", fewer(7)
    return bessel_jy, "degree_needed", fewer(20 if name == "airy_ai" else 14)


CONSTANTS = {
    angles: ("sin", "tan", "asin"), logarithm: ("log10", "log2"), gelu_forms: ("gelu_tanh",),
    trigonometric: ("acos", "atan2"), error: ("erf", "gelu", "normal_cdf", "normal_pdf"),
}  # fmt: skip
TABLES = {
    exponential: (
        ("exp", "exp_powers"), ("sinh", "exp_powers"), ("expm1", "exp_powers_minus_one"),
    ),
    logarithm: (
        ("log", "log_nodes_0"), ("log", "log_exponents_0"), ("log2", "log_nodes_2"),
        ("log10", "log_nodes_10"), ("log10", "log_exponents_10"), ("pow", "log_nodes_0"),
        ("pow", "log_exponents_0"),
    ),
    angles: (("sin", "sines"), ("cos", "cosines"), ("atan", "arctangents")),
    series: (("erf", "erfcx_series"),),
}  # fmt: skip
FEW = {n: c for n, c in inverse_error._INVERSE.items() if n != 4} | {4: ((0, 0), 1)}
Mutant = tuple[str, int, Any, str, Change]
ELEMENTARY: list[Mutant] = [
    # In every function: four components have none to spare.
    *((n, 4, working, "mul", lambda whole: lambda *given: kept(3, whole(*given)))
      for n in FUNCTIONS),
    *((n, t, owner, "constant", cut(t))
      for owner, names in CONSTANTS.items() for n in names for t in (2, 4)),
    *((n, t, owner, "lookup", cut(t, table))
      for owner, rows in TABLES.items() for n, table in rows for t in (2, 4)),
    # 1/(2 pi) is wrong in a digit that each batch of large angles meets.
    ("exp", 2, exponential, "table", without("exp_chunks", 2)),
    ("cosh", 2, exponential, "table", without("exp_chunks", 2)),
    ("tan", 2, angles, "table", without("half_pi_chunks", 2)),
    ("cos", 2, angles, "table", without("turn_limbs", angles.LIMBS_BEFORE + 5)),
    # The multiple of log(2) taken off with the accuracy of the result and no more.
    ("exp", 2, exponential, "steps", steps(3)),
    # Bits of the result alone, none for those that cancel.
    ("sin", 2, angles, "bits_needed", lambda whole: lambda fmt, n, w, full=False: 53 * w),
    # With four components of float64, which have no bits to spare. The last terms of the others are
    # smaller than the bound itself; one more is too many to lose.
    *((n, 4, series, "terms_needed", shorter(lost)) for n, lost in (
        ("sin", 2), ("cos", 2), ("expm1", 3), ("log", 3), ("atan", 2), ("erf", 3))),
]  # fmt: skip
OF_SPECIAL: list[Mutant] = [
    *((n, 4, _module(n), "lookup", cut(4)) for n in SPECIAL),
    # Stirling's last terms are small next to what they are added to.
    *((n, 4, *_degree(n)) for n in SPECIAL
      if n not in ("spherical_bessel_j0", "erfcx", "log_ndtr")),
    *((n, 4, gamma, attribute, change) for n in ("lgamma", "digamma", "trigamma")
      for attribute, change in (
          ("constant", cut(4)),
          ("_tail", lambda whole: lambda k, square: whole(k, square[:2]) + square[2:]))),
    ("erfinv", 4, inverse_error, "_INVERSE", lambda whole: FEW),
    ("erfinv", 4, exponential, "steps", steps(5)),
]  # fmt: skip


def _name(name: str, terms: int, owner: Any, attribute: str, change: Change) -> str:
    return f"{name}-{terms}-{owner.__name__}-{attribute}"


@pytest.mark.sampled(every=12)
@pytest.mark.parametrize(
    ("name", "terms", "owner", "attribute", "change"),
    [*everyday(ELEMENTARY, lambda *mutant: True, _name),
     *everyday(OF_SPECIAL, lambda *mutant: False, _name)],
)  # fmt: skip
def test_mutants_break_the_bound(
    name: str,
    terms: int,
    owner: Any,
    attribute: str,
    change: Change,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not fails(name, terms)
    # Bounds are composed from the functions that mutants change, and cached: before any change.
    function_bounds.derived(name, FP64, terms)
    monkeypatch.setattr(owner, attribute, change(getattr(owner, attribute)))
    assert fails(name, terms)


@pytest.mark.slow
def test_a_short_zero_of_digamma(monkeypatch: pytest.MonkeyPatch) -> None:
    """A zero as long as an argument of four components, which may be nearest to it."""
    zero = components_of(gamma_series.zero_of_digamma(), FP64, 4)
    x = tuple(torch.tensor([v], dtype=torch.float64) for v in zero)
    assert part("digamma", FP64, x, mcf.elementary.digamma(x))[0] <= 1
    whole = series.table
    monkeypatch.setattr(series, "table", lambda *given: kept(4, tuple(whole(*given))))
    assert part("digamma", FP64, x, mcf.elementary.digamma(x))[0] > 1
