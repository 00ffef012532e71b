"""Return whether PyTorch has to see a call as an operator, or Python may call the kernel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

_modes = torch._C._len_torch_dispatch_stack
_functorch = torch._C._functorch.maybe_current_level
_tracing = torch._C._get_tracing_state


def visible(arguments: Iterable[Any]) -> bool:
    """Return whether a mode, a transform, a trace or autograd looks at some arguments.

    The same operator called through PyTorch's dispatcher takes some ten microseconds more.

    Args:
        arguments: tensors, lists of tensors, and other values, which nobody looks at.
    """
    if torch.compiler.is_compiling() or _modes() or _functorch() is not None:
        return True
    if _tracing() is not None:
        return True
    grad = torch.is_grad_enabled()
    for argument in arguments:
        for t in argument if isinstance(argument, (list, tuple)) else (argument,):
            if isinstance(t, Tensor) and (type(t) is not Tensor or (grad and t.requires_grad)):
                return True
    return False
