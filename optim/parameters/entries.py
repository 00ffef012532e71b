"""Tell this package's entries of a parameter's state from those of other software, which are kept.

Wrappers store entries of their own in an optimizer's states (such as Lookahead's slow weights),
before its first step or after it.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from mcf.optim.storage.strategies import HIDDEN

# Every name that a rule or a precision stores under, with the suffixes of a number's further words
# and of the exponents of blocks.
_NAMES = frozenset(
    f"{name}{ending}"
    for ending in ("", "_lo", "_exponent")
    for name in (
        "step",
        *HIDDEN,
        "exp_avg",
        "exp_avg_sq",
        "max_exp_avg_sq",
        "exp_avg_slow",
        "exp_avg_diff",
        "previous_grad",
        "exp_inf",
        "z_minus_y",
        "lr_max",
        "weight_sum",
        "momentum_buffer",
        "mu_product",
    )
)


def own(entry: Collection[str]) -> set[str]:
    """Return the names of an entry that are this package's."""
    return {name for name in entry if name in _NAMES}


def made(entry: Mapping[str, Any] | None) -> bool:
    """Return whether a state, or a part of one, has been created."""
    return entry is not None and ("step" in entry or bool(own(entry)))


def made_of(states: Mapping[Any, Any], p: Tensor) -> dict[str, Any]:
    """Return a parameter's state; empty if only other software has entries there."""
    found: dict[str, Any] = states.get(p, {})
    return found if made(found) else {}


def foreign(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of other software."""
    mine = own(entry)
    return {name: value for name, value in entry.items() if name not in mine}


def moved(value: Any, device: torch.device, memo: dict[int, Any]) -> Any:
    """Return a copy of a foreign entry, with its tensors on a device and in their dtypes."""
    if isinstance(value, Tensor):
        return value.detach().to(device, copy=True)
    if type(value) in (dict, list, tuple):
        if isinstance(value, dict):
            return {k: moved(v, device, memo) for k, v in value.items()}
        return type(value)(moved(v, device, memo) for v in value)
    return copy.deepcopy(value, memo)
