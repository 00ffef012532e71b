"""Detection of wrappers that reduce gradients over processes only after the backward pass."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.utils.hooks import RemovableHandle

# DistributedDataParallel of torch, and of libraries that work like it: hooks on the nodes that
# accumulate gradients, which run after the hooks of the tensor.
_CLASS = "DistributedDataParallel"

_REASON = (
    "gradient release does not go with DistributedDataParallel: each process would step on its own "
    "gradients before they are averaged. Its buckets hold all gradients at once, so there is "
    "nothing to release; call optimizer.step() after backward() instead, with "
    "gradient_as_bucket_view=True for the least memory"
)

# The message for sums over micro-batches in two components.
ADDED = (
    "a GradientAccumulator does not go with DistributedDataParallel, which averages the leading "
    "component of a sum alone and leaves each process its own second one; allowed is "
    "mcf.optim.GradientReduction, which adds up micro-batches and processes without loss"
)


def check(params: Sequence[Tensor], reason: str = _REASON) -> None:
    """Raise RuntimeError if a `DistributedDataParallel` manages one of these parameters."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    mine = set(params)
    if any(_managed(wrapper.module, mine) for wrapper in _wrappers()):
        # An unused one may still be in memory.
        gc.collect()
        for wrapper in _wrappers():
            if _managed(wrapper.module, mine):
                raise RuntimeError(reason)


def check_flat(named: Iterable[tuple[str, Tensor]]) -> None:
    """Raise RuntimeError for parameters that FSDP has flattened."""
    for where, p in named:
        if getattr(p, "_is_flat_param", False):
            raise RuntimeError(
                f"gradient release does not go with FullyShardedDataParallel: {where} is a "
                "flattened parameter, whose gradient is reduced after backward has added it up; "
                "call optimizer.step() after backward() instead"
            )


def refuse(
    params: Callable[[], Callable[[], Sequence[Tensor]] | None],
    reason: str = f"{_REASON}; GradientRelease.remove() ends the release",
) -> RemovableHandle:
    """Make the constructor of a `DistributedDataParallel` around one of these parameters raise.

    Args:
        params: a weak reference to a function that returns the parameters.
        reason: the error message.
    """

    def registered(parent: nn.Module, name: str, child: nn.Module | None) -> None:
        if name == "module" and child is not None and _is_wrapper(type(parent)):
            found = params()
            if found is not None and _managed(child, set(found())):
                raise RuntimeError(reason)

    return register_module_module_registration_hook(registered)


def _is_wrapper(kind: type) -> bool:
    return any(c.__name__ == _CLASS for c in kind.__mro__)


def _wrappers() -> Iterator[Any]:
    """Yield the wrappers in memory; a process has no list of them."""
    kinds: dict[type, bool] = {}
    for found in gc.get_objects():
        kind = type(found)
        if kind not in kinds:
            kinds[kind] = issubclass(kind, nn.Module) and _is_wrapper(kind)
        if kinds[kind] and isinstance(vars(found).get("_modules", {}).get("module"), nn.Module):
            yield found


def _managed(module: nn.Module, params: set[Tensor]) -> bool:
    """Return whether a module reduces the gradients of any of the parameters."""
    # torch's list of parameters that it leaves alone.
    ignored = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
    return any(
        p in params and p.requires_grad
        for name, p in module.named_parameters()
        if name not in ignored
    )
