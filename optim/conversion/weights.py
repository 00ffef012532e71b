"""All weights of a model as they are stored, whole and in plain tensors: for files of others."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mcf.optim.optimizer import LowPrecisionOptimizer
from mcf.optim.sharding.shards import is_sharded
from mcf.optim.stream_names import unwrapped


@torch.no_grad()
def float32_weights(model: nn.Module, optimizer: LowPrecisionOptimizer) -> dict[str, Tensor]:
    """A model's state dict in which each trained weight has the value that is really stored.

        weights = mcf.optim.float32_weights(model, optimizer)  # on every process
        if distributed.get_rank() == 0:
            safetensors.torch.save_file(weights, "model.safetensors")

    Args:
        model: also under DistributedDataParallel, `fully_shard` or tensor parallelism; all
            processes that share its parameters call this.
        optimizer: of its parameters.

    Returns:
        By the names of the plain model (without prefixes of wrappers) contiguous tensors on the
        CPU, of which no two share memory. Parameters of the optimizer are p + param_lo, p and its
        further bits, or the master copy, rounded to float32 (float64 for float64 parameters): only
        a pair of two numbers that are further apart than 24 bits is rounded. Others, and buffers,
        are as they are. For bf16 weights take `model.state_dict()`.
    """
    mine = {id(p) for group in optimizer.param_groups for p in group["params"]}
    found = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if not isinstance(value, Tensor):
            # What modules keep of their own (`get_extra_state`) is no weight.
            continue
        stored = value.detach()
        if id(value) in mine:
            weight = optimizer.master_weight(value)
            assert isinstance(weight, Tensor)
            stored = weight
        if is_sharded(stored):
            stored = stored.full_tensor()  # type: ignore[attr-defined]
        found[unwrapped(name)] = stored.to("cpu", copy=True).contiguous()
    return found
