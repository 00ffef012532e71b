"""Exact: where elements lie, of any shape; the mutant is NumPy's way for columns of many."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mcf
from mcf.reductions.native_steps import elements, elements_in_order


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
