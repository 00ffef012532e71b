"""Define in-place forms of functions that have derivatives of our own.

Autograd would record torch's own in-place form with torch's derivative, whose constants are
doubles. These forms copy the function's result, so the copy carries our derivative.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mcf.expansions.dispatch.recorded import _duals, differentiated
from mcf.expansions.dispatch.registry import FUNCTIONS, OPERATORS, forms
from mcf.expansions.dispatch.torch_functions import forward


def _has_operator(name: str) -> bool:
    packet = getattr(torch.ops.aten, name)
    return any(getattr(packet, each) in OPERATORS for each in packet.overloads())


def _copied(name: str, own: Any) -> Any:
    """Return the in-place form of the method `name`; `own` is torch's in-place method."""
    function, direct = FUNCTIONS[getattr(Tensor, name)], _has_operator(name)

    def written(input: Any, *args: Any, **kwargs: Any) -> Any:
        given = (input, *args, *kwargs.values())
        if direct and _duals._current_level < 0 and not differentiated(given):
            return forward(own, (input, *args), kwargs)
        # Compute from a copy: tensors saved for derivatives must not change.
        return input.copy_(function(input.clone(), *args, **kwargs))

    return written


for _name in dir(Tensor):
    if not _name.startswith("_") and getattr(Tensor, _name) in FUNCTIONS:
        for _own in forms(f"{_name}_"):
            if _own not in FUNCTIONS:
                FUNCTIONS[_own] = _copied(_name, _own)
