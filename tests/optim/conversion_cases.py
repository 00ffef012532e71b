"""An optimizer that conversions begin with."""

from __future__ import annotations

from typing import Any

import torch

from mcf.optim import AdamW
from tests.optim.helpers import BF16, parameter, steps

SHAPES = [(7, 5), (), (0,), (3,)]


def trained(precision: str, dtype: torch.dtype = BF16, count: int = 4, **options: Any) -> AdamW:
    optimizer = AdamW(
        [parameter(s, dtype, k) for k, s in enumerate(SHAPES)], 1e-2, precision=precision, **options
    )
    steps(optimizer, count)
    return optimizer
