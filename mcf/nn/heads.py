"""Multi-head attention, as called by `torch.nn.MultiheadAttention` and transformer layers."""

from __future__ import annotations

import inspect
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from mcf.expansions.dispatch.registry import implements
from mcf.expansions.dispatch.torch_functions import unasked
from mcf.nn.functional import weighted_attention

_SIGNATURE = inspect.signature(F.multi_head_attention_forward)


@implements(F.multi_head_attention_forward)
def multi_head_attention_forward(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
    """Compute `torch.nn.functional.multi_head_attention_forward` in expansion arithmetic.

    It runs PyTorch's function, including projections and masks, around our attention. PyTorch's own
    scale, a square root in double precision, appears only if weights are requested, so PyTorch is
    never asked for them.
    """
    given = _SIGNATURE.bind(*args, **kwargs)
    given.apply_defaults()
    options = given.arguments
    wanted, average = options["need_weights"], options["average_attn_weights"]
    if wanted and options["attn_mask"] is not None:
        # Use the mask and not the hint that it is causal, as PyTorch does when weights are
        # requested.
        options["is_causal"] = False
    options["need_weights"] = False
    found: list[Tensor] = []

    def attend(query: Any, key: Any, value: Any, *masks: Any) -> Tensor:
        out, weights = weighted_attention(query, key, value, *masks)
        found.append(weights)
        return out

    function: Any = F.multi_head_attention_forward
    out, _ = unasked.__wrapped__(function, scaled_dot_product_attention=attend)(**options)
    if not wanted:
        return out, None
    weights = found[0].mean(1) if average else found[0]
    return out, weights if options["query"].dim() == 3 else weights.squeeze(0)
