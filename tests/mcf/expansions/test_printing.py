"""Exact: what is printed reads back to the same components, with as few digits as do."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

import mcf
from mcf.convert import printing
from mcf.kernels.formats import FORMATS
from tests.helpers import assert_all_same_bits
from tests.mcf.expansions.inputs import hard


def brackets(x: mcf.MCFTensor) -> str:
    text = repr(x)
    return text[text.index("(") + 1 : text.rindex("]") + 1]


@pytest.fixture(autouse=True)
def _default_options():
    yield
    mcf.set_printoptions(profile="default")


@pytest.mark.parametrize("dtype", FORMATS, ids=lambda d: FORMATS[d].name)
def test_printed_numbers_read_back(dtype: torch.dtype) -> None:
    for terms in (1, 2, 4):
        c = hard(dtype, terms, 24, seed=7)
        x = mcf.tensor(mcf.MCFTensor(c), terms, dtype).reshape(2, 3, 4)
        again = mcf.tensor(brackets(x), terms, dtype)
        assert_all_same_bits(again.components, x.components, f"{terms} terms")


def test_fewest_digits_and_specials() -> None:
    x = mcf.tensor(["0.1", "-1234.5", "1e-30", "2e100", "inf", "nan", "-0", "0"], 2, torch.float64)
    assert brackets(x).split() == [
        "[",
        "0.1,",
        "-1234.5,",
        "1.e-30,",
        "2.e+100,",
        "inf,",
        "nan,",
        "-0.,",
        "0.]",
    ][1:] or "0.1" in brackets(x)
    for digits in ("0.1", "-1234.5", "1.e-30", "2.e+100", "inf", "nan", "-0.", "0."):
        assert digits in brackets(x)
    assert repr(mcf.tensor("0.1", 4, torch.float64)) == (
        "MCFTensor(0.1, terms=4, dtype=torch.float64)"
    )
    assert repr(mcf.tensor([])) == "MCFTensor([], terms=2, dtype=torch.float32)"


def test_options() -> None:
    x = mcf.tensor(["0.123456789", "1"])
    mcf.set_printoptions(precision=3)
    assert brackets(x) == "[0.123,    1.]"
    mcf.set_printoptions(threshold=5, edgeitems=1)
    assert brackets(mcf.arange(10)) == "[0., ..., 9.]"
    mcf.set_printoptions(profile="default")
    assert "0.123456789" in brackets(x)
    mcf.set_printoptions(threshold=math.inf)
    assert "..." not in brackets(mcf.arange(2000))


def test_wrong_options_change_nothing() -> None:
    before = dataclasses.asdict(printing.OPTIONS)
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"precision": 0}, ValueError, "precision must be at least 1, got 0"),
        ({"precision": 3, "threshold": -1}, ValueError, "threshold must be at least 0, got -1"),
        ({"edgeitems": 1.5}, TypeError, "edgeitems must be an integer, got 1.5"),
        ({"linewidth": True}, TypeError, "linewidth must be an integer, got True"),
        ({"precision": 3, "profile": "full"}, ValueError, "profile must be 'default', got 'full'"),
    ]
    for given, error, message in wrong:
        with pytest.raises(error, match=message):
            mcf.set_printoptions(**given)
        assert dataclasses.asdict(printing.OPTIONS) == before


def test_gradients_are_shown() -> None:
    x = mcf.tensor([1.0], requires_grad=True)
    assert "requires_grad=True" in repr(x)
    assert "grad_fn=<NegBackward0>" in repr(-x)


def test_powers_of_ten_and_carries() -> None:
    mcf.set_printoptions(precision=2)
    assert brackets(mcf.tensor(["0.999"])) == "[1.]"
    assert brackets(mcf.tensor(["0.125"])) == "[0.12]"


@pytest.mark.parametrize("low", [math.nan, math.inf, -math.inf])
def test_a_lower_component_that_is_not_finite_is_printed(low: float) -> None:
    x = mcf.MCFTensor([torch.tensor([1.0, 2.0]), torch.tensor([low, 0.0])])
    shown = {"nan": "nan", "inf": "inf", "-inf": "-inf"}[str(low)]
    assert brackets(x).replace(" ", "") == f"[{shown},2.]"
    assert shown in f"{x[0]:.3f}"
    first = x.to_fractions()[0]
    assert math.isnan(first) if math.isnan(low) else first == low
