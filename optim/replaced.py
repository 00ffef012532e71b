"""A warning that the model has other parameters than its optimizer."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from mcf.optim.caller import warn


def warn_of_replaced(groups: Iterable[Mapping[str, Any]], states: Mapping[Any, Any]) -> bool:
    """Warn where no parameter can get a gradient; for a step that has found none.

    `Module.to_empty()` and `load_state_dict(assign=True)` put other parameters into a model. Those
    of the optimizer are then on the meta device, or nothing refers to them any more.

    Args:
        groups: the optimizer's.
        states: the optimizer's, by parameter.

    Returns:
        Whether a warning was given.
    """
    params = [p for group in groups for p in group["params"] if p.requires_grad]
    if not params:
        return False
    meta = all(p.is_meta for p in params)
    if not (meta or all(_is_alone(params, k, states) for k in range(len(params)))):
        return False
    found = "are on the meta device" if meta else "are referred to by nothing else"
    warn(
        f"step() found no gradient, and the optimizer's parameters {found}: the model has others "
        "now, which are not trained. Module.to_empty() and load_state_dict(assign=True) replace "
        "parameters; make the optimizer after them",
        UserWarning,
    )
    return True


def _is_alone(params: list[Tensor], k: int, states: Mapping[Any, Any]) -> bool:
    """Return whether a parameter is referred to by its optimizer alone."""
    # The list of its group, `params`, and the argument of `getrefcount`.
    known = 3 + (params[k] in states)
    return sys.getrefcount(params[k]) <= known
