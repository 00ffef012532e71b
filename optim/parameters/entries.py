"""Which entries of a parameter's state are this package's; the others are kept as they are.

Wrappers put entries of their own beside an optimizer's (Lookahead its slow weights, say), before
its first step or after it.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from mcf.optim.storage.strategies import HIDDEN

# Every name that a rule or a precision stores under.
_NAMES = frozenset(
    (
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
# What further words of a number are called, and the exponents of blocks.
_ENDINGS = ("_lo", "_exponent")


def own(entry: Collection[str]) -> set[str]:
    """The names among an entry's that are this package's."""
    return {name for name in entry if isinstance(name, str) and _is_own(name)}


def made(entry: Mapping[str, Any] | None) -> bool:
    """Whether a state has been made, or parts of one."""
    return entry is not None and ("step" in entry or bool(own(entry)))


def made_of(states: Mapping[Any, Any], p: Tensor) -> dict[str, Any]:
    """A parameter's state where there is one: what others keep there alone is none."""
    found: dict[str, Any] = states.get(p, {})
    return found if made(found) else {}


def foreign(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of others."""
    mine = own(entry)
    return {name: value for name, value in entry.items() if name not in mine}


def moved(value: Any, device: torch.device, memo: dict[int, Any]) -> Any:
    """A copy of somebody's entry, its tensors on a device and in their dtypes."""
    if isinstance(value, Tensor):
        return value.detach().to(device, copy=True)
    if type(value) in (dict, list, tuple):
        if isinstance(value, dict):
            return {k: moved(v, device, memo) for k, v in value.items()}
        return type(value)(moved(v, device, memo) for v in value)
    return copy.deepcopy(value, memo)


def _is_own(name: str) -> bool:
    for ending in _ENDINGS:
        if name.endswith(ending):
            return name in _NAMES or name.removesuffix(ending) in _NAMES
    return name in _NAMES
