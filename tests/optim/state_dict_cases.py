"""Optimizers whose states are saved and loaded, and the ways in which they are."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import torch

from mcf.optim import AdamW
from mcf.optim.optimizer import LowPrecisionOptimizer
from tests.optim.helpers import (
    Case,
    parameter,
    parameters,
)

Transfer = Callable[[dict[str, Any]], dict[str, Any]]


def through_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


SHAPES = [(5, 7), (), (0,), (3,)]


def adamw(case: Case, **options: Any) -> AdamW:
    params = [parameter(s, case.dtype, k) for k, s in enumerate(SHAPES)]
    return AdamW(params, 1e-2, eps=1e-4, **case.options(), **options)


def twin(optimizer: LowPrecisionOptimizer, make: Callable[[], Any]) -> Any:
    """A new optimizer on parameters of the same values."""
    other = make()
    for mine, theirs in zip(parameters(other), parameters(optimizer), strict=True):
        mine.data.copy_(theirs.data)
    return other
