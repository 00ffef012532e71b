"""States in the form that torch.distributed can move.

No backend moves 16-bit integers (gloo and NCCL have none). In checkpoints their two bytes are a
last dimension of int8.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mcf.optim.sharding.shards import like, local


def packed(t: Any) -> Any:
    """Return a state for a checkpoint: 16-bit integers as bytes, others unchanged; not copied."""
    if not isinstance(t, Tensor) or t.dtype != torch.int16:
        return t
    return like(t, local(t).unsqueeze(-1).view(torch.int8), (*t.shape, 2))


def unpacked(p: Tensor, t: Any) -> Any:
    """Return a state of a parameter from a checkpoint, packed or not."""
    if not isinstance(t, Tensor) or t.dtype != torch.int8 or t.shape != (*p.shape, 2):
        return t
    here = local(t)
    # Other software may have saved it in another layout.
    here = here if here.stride(-1) == 1 and not here.storage_offset() % 2 else here.contiguous()
    if any(s % 2 for s in here.stride()[:-1]):
        here = here.contiguous()
    return like(t, here.view(torch.int16).squeeze(-1), p.shape)
