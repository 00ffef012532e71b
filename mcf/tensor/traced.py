"""What torch.compile can follow: the components of a tensor as an operator of it; what it skips."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch._C._dynamo import eval_frame

from mcf.tensor.registry import OPERATORS

if TYPE_CHECKING:
    from mcf.kernels.components import Components

# A graph knows a tensor's operators, and neither its attributes nor the dict that holds them.
_library = torch.library.Library("mcf", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("component(Tensor x, int number) -> Tensor")  # type: ignore[no-untyped-call]


def _component(x: Any, number: int) -> torch.Tensor:
    found: torch.Tensor = torch.ops.aten.alias.default(x.components[number])
    return found


OPERATORS[torch.ops.mcf.component.default] = _component


def traced_components(x: Any) -> Components:
    """The components in a graph, cut off from that of derivatives."""
    with torch.no_grad():
        return tuple([torch.ops.mcf.component(x, k) for k in range(x._terms)])


def skipped(function: Callable[..., Any]) -> None:
    """Have torch.compile run a function, and what that calls, as it is where it meets its frame.

    It compiles every frame between two graphs, ours too where a function of torch runs in there,
    and cannot follow what looks into a tensor. Within a graph it asks for no frame.
    """
    # `torch._dynamo.disable` would import torch._dynamo, a second of work, and ask at each call.
    skip = eval_frame._FrameAction.SKIP
    eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(skip, skip))
