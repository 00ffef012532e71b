"""Exact: where elements lie, of any shape; the mutant is NumPy's way for columns of many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import mcf
from mcf.reductions.native_steps import elements, elements_in_order
from tests.helpers import assert_all_same_bits


@pytest.mark.parametrize("shape", [(), (9000, 1), (1, 9000), (3, 1, 3000), (4500, 2)], ids=str)
def test_all_elements(shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape).double()
    numbers = np.arange(x.numel()).reshape(shape)
    assert np.array_equal(elements(x, numbers), numbers)
    assert elements_in_order(x, range(len(shape))) is None


def test_rows_of_one_element() -> None:
    first = torch.arange(9000.0).double().reshape(-1, 1)
    x = mcf.MCFTensor([first, torch.zeros_like(first)])
    assert torch.equal(x.max(1).values.components[0], first.squeeze(1))
    assert torch.equal(x.cummin(1).values.components[0], first)
    assert torch.equal(x.sort(1).values.components[0], first)


def test_two_layouts_of_one_shape_have_their_own_calls() -> None:
    first = torch.tensor([[3.0, -1.0, 2.5], [0.5, 4.0, -2.0], [1.5, 7.0, -6.0]]).double()
    x = mcf.MCFTensor([first, first.mT.contiguous() * 2.0**-60])
    functions: list[Callable[[Any], Any]] = [
        lambda a: a.sum(0), lambda a: a.std(0), lambda a: a.sort(0).values, lambda a: a.cumsum(0),
        lambda a: a.softmax(0), lambda a: a @ a[0], torch.linalg.matrix_exp,
    ]  # fmt: skip
    for function in functions:
        for given in (x, x.mT):
            expected = function(given.contiguous())
            assert_all_same_bits(function(given).components, expected.components, "layout")
