"""States as torch.distributed moves them.

No backend moves 16-bit integers (gloo and NCCL have none): in checkpoints their two bytes are a
last dimension of int8.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mcf.optim.sharding.shards import like, local


def packed(t: Any) -> Any:
    """What a checkpoint has of a state: 16-bit integers as bytes, all else as it is; not copied."""
    if not isinstance(t, Tensor) or t.dtype != torch.int16:
        return t
    return like(t, local(t).unsqueeze(-1).view(torch.int8), (*t.shape, 2))


def unpacked(p: Tensor, t: Any) -> Any:
    """A state of a parameter that `packed` returned, or that was never packed."""
    if not isinstance(t, Tensor) or t.dtype != torch.int8 or t.shape != (*p.shape, 2):
        return t
    here = local(t)
    # Who saved it may have laid it out anew.
    here = here if here.stride(-1) == 1 and not here.storage_offset() % 2 else here.contiguous()
    if any(s % 2 for s in here.stride()[:-1]):
        here = here.contiguous()
    return like(t, here.view(torch.int16).squeeze(-1), p.shape)
