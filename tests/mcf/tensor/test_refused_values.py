"""What torch refuses is refused at once as well."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import mcf


def test_numbers_with_dimensions_fill_no_mask() -> None:
    x = mcf.ones(3, dtype=torch.float64)
    for given in (x.to_plain(), x):
        with pytest.raises(RuntimeError, match="0-dimensional value"):
            given.masked_fill(given > 0, given)
        with pytest.raises(RuntimeError, match="0-dimensional value"):
            given.masked_fill_(given > 0, given)
    assert x.masked_fill(x > 0, mcf.tensor(2.0)).tolist() == [2.0] * 3


def test_ends_of_hardtanh_in_the_wrong_order(on_torch: None) -> None:
    x = mcf.ones(3)
    for given in (x.to_plain(), x, x.clone().requires_grad_()):
        with pytest.raises(ValueError, match="cannot be greater"):
            F.hardtanh(given, 1.0, -1.0)


def test_clamp_without_ends() -> None:
    x = mcf.ones(3)
    for given in (x.to_plain(), x, x.clone().requires_grad_()):
        with pytest.raises(RuntimeError, match="At least one of 'min' or 'max'"):
            given.clamp()
