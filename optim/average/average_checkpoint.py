"""The state of an average of weights, new or from a checkpoint, which is checked first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.optim import validation
from mcf.optim.parameters import expansions
from mcf.optim.sharding.shards import like, local, moved_like

_ENTRIES = ("calls", "components", "decay", "every", "state")

# A parameter, and its saved entry.
Saved = list[tuple[Tensor, Mapping[str, Any]]]


def entry_of(
    entry: dict[str, Any] | None,
    where: str,
    p: Tensor,
    dtype: torch.dtype,
    names: Sequence[str],
) -> dict[str, Any]:
    """Return the state of a parameter's average, a new one if there is none.

    Args:
        entry: the present state, or None.
        where: the parameter's name for error messages.
        p: the parameter.
        dtype: the dtype of its average.
        names: the names of the components.

    Raises:
        ValueError, TypeError: for an invalid parameter, or one that has changed.
    """
    if entry is None:
        validation.parameter(where, p, True)
        here = expansions.leading(p.detach())
        zero = torch.zeros_like(here, dtype=dtype, memory_format=torch.preserve_format)
        return {"n_averaged": 0, **{n: like(p, zero.clone()) for n in names}}
    kept = entry["average"]
    if kept.shape != p.shape or kept.dtype != dtype or kept.device != p.device:
        raise ValueError(
            f"{where} has shape {list(p.shape)}, dtype {p.dtype} and device {p.device}, its "
            f"average {list(kept.shape)}, {kept.dtype} and {kept.device}: they changed since"
        )
    return entry


def checked(
    state_dict: Any, params: Sequence[Tensor], names: Sequence[str], dtypes: Sequence[torch.dtype]
) -> Saved:
    """Return the entries of a checkpoint, paired with their parameters.

    Args:
        state_dict: the state dict to load.
        params: the parameters in the order of checkpoints.
        names: the names of the components.
        dtypes: the dtype of each parameter's average.

    Raises:
        ValueError, TypeError: for entries that do not fit.
    """
    if not isinstance(state_dict, Mapping):
        raise TypeError(f"state_dict must be a dict, got {type(state_dict).__name__}")
    if sorted(state_dict) != sorted(_ENTRIES):
        raise ValueError(f"state_dict has {sorted(state_dict)}; allowed are {list(_ENTRIES)}")
    if state_dict["components"] != len(names):
        raise ValueError(
            f"state_dict has components={state_dict['components']}; this average has {len(names)}"
        )
    _count("calls", state_dict["calls"])
    found = []
    for k, entry in state_dict["state"].items():
        if isinstance(k, bool) or not isinstance(k, int) or not 0 <= k < len(params):
            raise ValueError(
                f"state_dict has an average of parameter {k!r}; the optimizer has {len(params)}"
            )
        where, p = f"the average of parameter {k}", params[k]
        if sorted(entry) != sorted(("n_averaged", *names)):
            raise ValueError(f"{where} has {sorted(entry)}; allowed are {['n_averaged', *names]}")
        _count(f"n_averaged of {where}", entry["n_averaged"])
        for name in names:
            t = entry[name]
            if not isinstance(t, Tensor):
                raise TypeError(f"{name} of {where} is a {type(t).__name__}, not a tensor")
            if t.shape != p.shape or t.dtype != dtypes[k]:
                raise ValueError(
                    f"{name} of {where} has shape {list(t.shape)} and dtype {t.dtype}; its "
                    f"parameter has {list(p.shape)}, and averages here are {dtypes[k]}"
                )
        found.append((p, entry))
    return found


def _count(what: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{what} is {value!r}; allowed is a whole number from 0")


def loaded(found: Saved) -> dict[Tensor, dict[str, Any]]:
    """Return copies of entries on the parameters' devices and in their layouts."""
    return {p: {name: _placed(p, value) for name, value in entry.items()} for p, entry in found}


def _placed(p: Tensor, value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return like(p, local(moved_like(p, value.detach())).to(p.device, copy=True))
