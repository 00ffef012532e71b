"""Dimensions that a tensor does not have are refused whatever the way to the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mcf

CASES: dict[str, Callable[[Any], Any]] = {
    "argmax": lambda x: x.argmax(2, keepdim=True),
    "argmin": lambda x: x.argmin(-3, keepdim=True),
    "cummax": lambda x: x.cummax(2),
    "logcumsumexp": lambda x: x.logcumsumexp(2),
    "mode": lambda x: x.mode(2),
    "nanmedian": lambda x: x.nanmedian(2),
    "quantile": lambda x: x.quantile(0.5, 2),
}


@pytest.mark.parametrize("shape", [(), (1,), (5,)], ids=str)
@pytest.mark.parametrize("name", list(CASES))
def test_a_dimension_that_is_missing(on_torch: None, name: str, shape: tuple[int, ...]) -> None:
    x = mcf.ones(shape)
    for given in (x.to_plain(), x):
        with pytest.raises(IndexError, match=r"-1(, | or )0"):
            CASES[name](given)


def test_slices_along_a_dimension_that_is_missing(on_torch: None) -> None:
    x = mcf.ones((3, 4))
    for given in (x.to_plain(), x):
        with pytest.raises(IndexError, match=r"range of \[-2, 1\]"):
            torch.renorm(given, 2, 5, 1.0)


EMPTY: dict[str, Callable[[Any], Any]] = {
    "median": lambda x: x.median(1),
    "nanmedian": lambda x: x.nanmedian(-1),
    "kthvalue": lambda x: x.kthvalue(1),
    "mode": lambda x: x.mode(-1),
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
    "amax": lambda x: x.amax(),
    "amin": lambda x: torch.amin(x, ()),
    "amax of rows": lambda x: x.amax(1),
    "aminmax": lambda x: x.aminmax(),
}


@pytest.mark.parametrize("name", list(EMPTY))
def test_rows_without_elements(on_torch: None, name: str) -> None:
    """Nothing to choose from: torch's error to the word."""
    x = mcf.zeros((2, 0))
    with pytest.raises((IndexError, RuntimeError)) as expected:
        EMPTY[name](x.to_plain())
    with pytest.raises(expected.type) as found:
        EMPTY[name](x)
    assert str(found.value) == str(expected.value)
