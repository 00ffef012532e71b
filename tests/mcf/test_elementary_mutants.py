"""The bounds of the elementary functions catch what they are there to catch.

Each mutant breaks one thing: a constant loses all but its leading component, a step of the
reduction is left out, a series ends one term early. The check of `test_elementary.py` then fails.
"""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

import mcf.elementary
from mcf.elementary import (
    angles,
    error,
    exponential,
    logarithm,
    reduction,
    series,
    tables,
    trigonometric,
)
from mcf.elementary.bounds import observed
from mcf.kernels import FP64
from mcf.kernels.formats import Format
from tests.helpers.elementary import inputs, worst


def _fails(name: str, fmt: Format = FP64, terms: int = 2) -> bool:
    for arguments in inputs(name, fmt, terms, 30, seed=1):
        result = getattr(mcf.elementary, name)(*arguments)
        relative, _ = worst(name, fmt, arguments, result)
        if relative > observed(name, fmt, terms):
            return True
    return False


def _cut(components: tables.Components) -> tables.Components:
    return (components[0], *(torch.zeros_like(c) for c in components[1:]))


@pytest.mark.parametrize(
    ("name", "module"),
    [("sin", reduction), ("log10", logarithm), ("acos", trigonometric), ("gelu", error)],
)
def test_a_constant_cut(name: str, module: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not _fails(name)
    whole = tables.constant

    def constant(value: Fraction, terms: int, device: torch.device) -> tables.Components:
        return _cut(whole(value, terms, device))

    monkeypatch.setattr(module, "constant", constant)
    assert _fails(name)


@pytest.mark.parametrize(
    ("name", "table", "module"),
    [
        ("exp", "exp_powers", exponential),
        ("log", "log_nodes_0", logarithm),
        ("log2", "log_nodes_2", logarithm),
        ("cos", "cosines", angles),
        ("atan", "arctangents", angles),
        ("erf", "erfcx_series", error),
    ],
)
def test_a_table_cut(
    name: str, table: str, module: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tables.lookup

    def lookup(which: str, index: torch.Tensor, terms: int) -> tables.Components:
        found = whole(which, index, terms)
        return _cut(found) if which == table else found

    monkeypatch.setattr(module, "lookup", lookup)
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

    def bits(fmt: Format, terms: int, working: int) -> int:
        return 53 * working

    monkeypatch.setattr(reduction, "bits_needed", bits)
    assert _fails("sin")


# The last term of the others is smaller than the bound itself (the last two of log on most
# arguments); one more is too many to lose.
@pytest.mark.parametrize(
    ("name", "lost"), [("sin", 1), ("cos", 1), ("expm1", 2), ("log", 3), ("atan", 2), ("erf", 2)]
)
def test_a_series_too_short(name: str, lost: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With four components of float64, which have no bits to spare."""
    whole = series.terms_needed

    def short(*arguments: object) -> list[tuple[Fraction, int]]:
        return whole(*arguments)[:-lost]  # type: ignore[arg-type]

    monkeypatch.setattr(series, "terms_needed", short)
    assert _fails(name, terms=4)
