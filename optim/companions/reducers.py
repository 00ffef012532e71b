"""Objects that take part in backward passes, and the wrappers that do not go with them.

Some wrappers reduce gradients over processes only after the backward pass.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.utils.hooks import RemovableHandle

from mcf.optim.optimizer import LowPrecisionOptimizer
from mcf.optim.step import shared_memory
from mcf.optim.step.shared_memory import Use

# DistributedDataParallel of torch, and of libraries that work like it: hooks on the nodes that
# accumulate gradients, which run after the hooks of the tensor.
_CLASS = "DistributedDataParallel"

RELEASED = (
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


class Companion:
    """An object that takes part in an optimizer's backward passes or steps until it is closed."""

    def __init__(
        self, optimizer: Any, allowed: str = "allowed are optimizers of mcf.optim"
    ) -> None:
        """Take an optimizer of this package.

        Raises:
            TypeError: for another one.
        """
        if not isinstance(optimizer, LowPrecisionOptimizer):
            raise TypeError(f"optimizer is a {type(optimizer).__name__}; {allowed}")
        self._optimizer = optimizer
        self._handles: list[RemovableHandle] = []
        # The elements that take part.
        self._params = list(optimizer._parameters())

    def _attend(self, hook: Callable[[Tensor], None], refusal: str) -> None:
        """Call a hook with each parameter that has its gradient.

        A `DistributedDataParallel` around any of the parameters raises with the refusal.
        """
        for p in self._params:
            if p.requires_grad:
                self._handles.append(p.register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]
        self._handles.append(refuse(weakref.WeakMethod(self._managed), refusal))

    def _managed(self) -> list[Tensor]:
        """Return the parameters that take part."""
        return self._params

    def _detach(self) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def check_apart(optimizer: LowPrecisionOptimizer) -> None:
    """Raise for parameters that FSDP has flattened, and for those that share memory.

    One would be stepped before another one's memory is read, in backward's order.
    """
    named = [(where, p) for _, where, p in optimizer._all_named()]
    check_flat(named)
    shared_memory.check([Use(where, p, True) for where, p in named if p.requires_grad])


def check(params: Sequence[Tensor], reason: str) -> None:
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
    params: Callable[[], Callable[[], Sequence[Tensor]] | None], reason: str
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
