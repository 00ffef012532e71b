"""A warning that a precision does nothing for any parameter of an optimizer."""

from __future__ import annotations

from typing import Any

import torch

from mcf.kernels.formats import FORMATS, FP32, FP64
from mcf.optim import validation
from mcf.optim.caller import warn
from mcf.optim.storage.strategies import PLAIN


class NoEffectWarning(UserWarning):
    """A precision for 16-bit parameters was given to an optimizer that has none."""


# Precisions that ask for no more than a float32 parameter has anyway.
FULL_PRECISION = ("plain", "fp32_states", "master")
# Precisions whose moments of float32 parameters are smaller.
SMALL_MOMENTS = ("bf16_sr", "8bit", "4bit")


def warned(optimizer: Any, first: int) -> bool:
    """Warn where no parameter is stored otherwise than under precision="plain".

    Args:
        optimizer: one with `param_groups` and the arithmetic of a parameter, `_arithmetic`.
        first: the first group that is new. Where no new group asks for a precision, nothing is
            to be said.

    Returns:
        Whether a warning was given.
    """
    asked = []
    for index, group in enumerate(optimizer.param_groups):
        for k, p in enumerate(group["params"]):
            if validation.later(p) or p.dtype not in FORMATS:
                continue
            found = optimizer._arithmetic(group, p, f"params[{k}] of param_groups[{index}]")
            wide = found.component in (FP32, FP64)
            if not wide or found.strategy != PLAIN:
                return False
            if index >= first and group["precision"] not in FULL_PRECISION:
                asked.append((group["precision"], p.dtype))
    if asked:
        precision, dtype = asked[0]
        # A wrapped class of torch stores no codes.
        allowed = getattr(optimizer, "precisions", ("bf16_sr", "plain"))
        moments = [n for n in SMALL_MOMENTS if n in allowed and dtype == torch.float32]
        remedy = "use model.to(torch.bfloat16)"
        if moments:
            remedy += (
                f", or {' or '.join(map(repr, moments))} to store the moments of float32 "
                "parameters in fewer bytes"
            )
        if "plain" in allowed:
            remedy += ", or 'plain'"
        warn(
            f"precision={precision!r} has no effect: all parameters are {dtype}, and it stores "
            f"16-bit parameters; {remedy}",
            NoEffectWarning,
        )
    return bool(asked)
