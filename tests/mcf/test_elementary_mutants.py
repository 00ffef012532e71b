"""The bounds of the elementary functions catch what they are there to catch.

Each mutant breaks one thing: a constant or table loses components, products lose their last one, a
step of the reduction is left out, a series ends early. The check of `test_elementary.py` then
fails: of two components, which are computed with three, where all but the leading one of a constant
are lost, and of four, which are computed with four, where the last one is.
"""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import pytest
import torch

import mcf.elementary
from mcf.elementary import (
    angles,
    error,
    exponential,
    gelu_forms,
    logarithm,
    series,
    tables,
    trigonometric,
    working,
)
from mcf.elementary.function_bounds import FUNCTIONS, bound
from mcf.elementary.tables import Components
from mcf.kernels import FP64
from mcf.kernels.formats import Format
from tests.helpers.elementary import inputs, worst

# Of values; that executors have the same bits other tests say.
pytestmark = pytest.mark.usefixtures("on_torch")


@pytest.fixture(scope="module", autouse=True)
def bounds() -> None:
    """Bounds are counted from the steps that mutants change, and kept: before anything changes."""
    for name, terms in itertools.product(FUNCTIONS, (2, 4)):
        bound(name, FP64, terms)


# Values: on the torch executor, which runs the programs and compiles nothing.
pytestmark = pytest.mark.usefixtures("on_torch")


def _fails(name: str, terms: int = 2) -> bool:
    for arguments in inputs(name, FP64, terms, 30, seed=1):
        result = getattr(mcf.elementary, name)(*arguments)
        relative, _ = worst(name, FP64, arguments, result)
        if relative > bound(name, FP64, terms):
            return True
    return False


def _cut(components: Components, terms: int) -> Components:
    """With all but the leading component gone for two, from the fourth on (the last) for four."""
    kept = 1 if terms == 2 else max(1, min(4, len(components)) - 1)
    return (*components[:kept], *(torch.zeros_like(c) for c in components[kept:]))


both = pytest.mark.parametrize("terms", [2, 4])


@pytest.mark.sampled(every=18)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_products_without_their_last_component(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every function: four components have none to spare."""
    whole = working.mul

    def mul(*arguments: Any) -> Components:
        product = whole(*arguments)
        return _cut(product, 4) if len(product) == 4 else product

    assert not _fails(name, terms=4)
    monkeypatch.setattr(working, "mul", mul)
    assert _fails(name, terms=4)


@pytest.mark.sampled(every=9)
@both
@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("sin", angles),
        ("tan", angles),
        ("log10", logarithm),
        ("log2", logarithm),
        ("acos", trigonometric),
        ("asin", angles),
        ("atan2", trigonometric),
        ("erf", error),
        ("gelu", error),
        ("gelu_tanh", gelu_forms),
        ("normal_cdf", error),
        ("normal_pdf", error),
    ],
)
def test_a_constant_cut(
    name: str, module: object, terms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tables.constant

    def constant(value: Fraction, count: int, device: torch.device) -> Components:
        return _cut(whole(value, count, device), terms)

    monkeypatch.setattr(module, "constant", constant)
    assert _fails(name, terms=terms)


@pytest.mark.sampled(every=9)
@both
@pytest.mark.parametrize(
    ("name", "table", "module"),
    [
        ("exp", "exp_powers", exponential),
        ("sinh", "exp_powers", exponential),
        ("expm1", "exp_powers_minus_one", exponential),
        ("log", "log_nodes_0", logarithm),
        ("log", "log_exponents_0", logarithm),
        ("log2", "log_nodes_2", logarithm),
        ("log10", "log_nodes_10", logarithm),
        ("log10", "log_exponents_10", logarithm),
        ("pow", "log_nodes_0", logarithm),
        ("pow", "log_exponents_0", logarithm),
        ("sin", "sines", angles),
        ("cos", "cosines", angles),
        ("atan", "arctangents", angles),
        ("erf", "erfcx_series", series),
    ],
)
def test_a_table_cut(
    name: str, table: str, module: object, terms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tables.lookup

    def lookup(which: str, index: torch.Tensor, count: int) -> Components:
        found = whole(which, index, count)
        return _cut(found, terms) if which == table else found

    monkeypatch.setattr(module, "lookup", lookup)
    assert _fails(name, terms=terms)


# 1/(2 pi) is wrong in a digit that each batch of large angles meets.
@pytest.mark.parametrize(
    ("name", "table", "module", "entry"),
    [
        ("exp", "exp_chunks", exponential, 2),
        ("cosh", "exp_chunks", exponential, 2),
        ("tan", "half_pi_chunks", angles, 2),
        ("cos", "turn_limbs", angles, angles.LIMBS_BEFORE + 5),
    ],
)
def test_a_wrong_constant_of_a_reduction(
    name: str, table: str, module: object, entry: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tables.table

    def wrong(which: str, device: torch.device) -> torch.Tensor:
        found = whole(which, device).clone()
        if which == table:
            found[entry] = 0
        return found

    monkeypatch.setattr(module, "table", wrong)
    assert _fails(name)


def test_the_last_part_of_log_2_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The multiple of log(2) taken off with the accuracy of the result and no more."""
    whole = exponential.steps

    def steps(lead: torch.Tensor, terms: int) -> tuple[torch.Tensor, tables.Components]:
        k, floats = whole(lead, terms)
        return k, floats[:3]

    monkeypatch.setattr(exponential, "steps", steps)
    assert _fails("exp")


def test_angles_not_reduced_far_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits of the result alone, none for those that cancel."""

    def bits(fmt: Format, terms: int, working: int, *, full: bool = False) -> int:
        return 53 * working

    monkeypatch.setattr(angles, "bits_needed", bits)
    assert _fails("sin")


# The last terms of the others are smaller than the bound itself; one more is too many to lose.
@pytest.mark.parametrize(
    ("name", "lost"), [("sin", 2), ("cos", 2), ("expm1", 3), ("log", 3), ("atan", 2), ("erf", 3)]
)
def test_a_series_too_short(name: str, lost: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With four components of float64, which have no bits to spare."""
    whole = series.terms_needed

    def short(*arguments: object) -> list[tuple[Fraction, int]]:
        return whole(*arguments)[:-lost]  # type: ignore[arg-type]

    monkeypatch.setattr(series, "terms_needed", short)
    assert _fails(name, terms=4)
