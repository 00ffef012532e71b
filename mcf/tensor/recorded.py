"""Whether anybody but the caller sees what is done with tensors."""

from __future__ import annotations

from typing import Any

import torch

from mcf.tensor.tensor import MCFTensor

# Whether a transform of torch.func runs: its tensors have the type of plain ones.
functorch = torch._C._functorch.maybe_current_level
modes = torch._C._len_torch_dispatch_stack
_duals = torch.autograd.forward_ad


def watched() -> bool:
    """Whether a mode or a transform looks at what is done, for which no number may decide it."""
    return bool(modes()) or functorch() is not None


def recorded(x: Any) -> bool:
    """Whether autograd, a mode, a transform or torch.compile sees what is done with a tensor."""
    if torch.compiler.is_compiling() or type(x) is not MCFTensor:
        return True
    if x.requires_grad and torch.is_grad_enabled():
        return True
    return watched() or _duals._current_level >= 0
