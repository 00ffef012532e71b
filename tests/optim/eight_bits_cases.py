"""Precisions with moments of 8 bits that tests share, and an optimizer that has made some steps."""

from __future__ import annotations

from typing import Any

import torch

from mcf.optim import AdamW, Precision
from tests.optim.helpers import BF16, parameter, steps

PAIRS = Precision("pair", "fp8x2", "fp8x2")
MIXED = Precision("pair", "fp8", "fp8x2")
E5M2_PAIRS = Precision("pair", "e5m2x2", "e5m2x2")
E5M2_MIXED = Precision("pair", "e5m2", "e5m2x2")
EVERY = (PAIRS, MIXED, E5M2_PAIRS, E5M2_MIXED)
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def dtype(precision: Precision) -> torch.dtype:
    """What stores its moments."""
    return E5M2 if precision.exp_avg_sq == "e5m2x2" else E4M3


def trained(precision: Any = PAIRS, count: int = 3, size: int = 300, **options: Any) -> AdamW:
    """A few steps on one parameter."""
    optimizer = AdamW([parameter(size, BF16)], 1e-2, precision=precision, **options)
    steps(optimizer, count)
    return optimizer
