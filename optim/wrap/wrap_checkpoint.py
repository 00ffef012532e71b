"""Checks and copies for `load_state_dict` of a wrapped optimizer of torch."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from mcf.optim.parameters import stream_names
from mcf.optim.sharding.shards import is_sharded, moved_like
from mcf.optim.state_validation import has_values

Group = Mapping[str, Any]


def check(groups: Sequence[Group], state_dict: Mapping[str, Any]) -> None:
    """Raise unless a state dict has groups like these.

    Raises:
        ValueError, TypeError: for other groups, sizes, precisions or names.
    """
    saved = _saved(state_dict)
    mine, theirs = map(_kinds, (groups, saved))
    if mine != theirs:
        raise ValueError(
            f"state_dict has groups of (parameters, precision, low) {theirs}; the optimizer {mine}"
        )
    for index, (group, other) in enumerate(zip(groups, saved, strict=True)):
        loaded = {**group, **other, "params": group["params"]}
        stream_names.names(f"state_dict param_groups[{index}]", loaded)


def options(state_dict: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return copies of the saved groups without their parameters."""
    saved = _saved(state_dict)
    return [copy.deepcopy({k: v for k, v in g.items() if k != "params"}) for g in saved]


def states(
    groups: Sequence[Group], state_dict: Mapping[str, Any]
) -> defaultdict[Tensor, dict[str, Any]]:
    """Return copies of the saved states on the parameters' devices, each in its own dtype."""
    found: defaultdict[Tensor, dict[str, Any]] = defaultdict(dict)
    for index, (group, other) in enumerate(zip(groups, state_dict["param_groups"], strict=True)):
        for k, (key, p) in enumerate(zip(other["params"], group["params"], strict=True)):
            for name, value in state_dict["state"].get(key, {}).items():
                has_values(name, f"params[{k}] of param_groups[{index}]", p, value)
                if not isinstance(value, Tensor) or not value.dim():
                    found[p][name] = copy.deepcopy(value)
                    continue
                laid = moved_like(p, value.detach()) if value.shape == p.shape else value.detach()
                found[p][name] = laid.clone() if is_sharded(laid) else laid.to(p.device, copy=True)
    return found


def _saved(state_dict: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the saved groups; older ones key streams by index."""
    return [{"stream_by": "place", **g} for g in state_dict["param_groups"]]


def _kinds(groups: Sequence[Mapping[str, Any]]) -> list[tuple[int, Any, Any]]:
    """Return the properties that groups of a checkpoint and of the optimizer must share."""
    return [(len(g["params"]), g.get("precision"), g.get("low", "nearest")) for g in groups]
