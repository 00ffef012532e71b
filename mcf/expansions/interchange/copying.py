"""Deep copies, pickles and shared memory of expansion tensors."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.utils.data._utils.collate import default_collate_fn_map

from mcf.expansions.components import check_attributes
from mcf.expansions.dispatch.recorded import watched
from mcf.expansions.launch.operations import addressed
from mcf.expansions.tensor import COMPONENTS, MCFTensor, made, method

_unasked = torch._C.DisableTorchFunctionSubclass
_function_modes = torch._C._len_torch_function_stack


def rebuild(
    components: list[Tensor],
    requires_grad: bool,
    state: dict[str, Any],
    kind: type[MCFTensor] = MCFTensor,
) -> MCFTensor:
    """Return a tensor from the arguments in a pickle.

    `torch.load(weights_only=True)` calls it with any contents of a file, so it checks all arguments
    before it creates anything.

    Raises:
        TypeError, ValueError: for components that `MCFTensor` refuses, and for attributes that the
            type or torch reserves.
    """
    if not (isinstance(kind, type) and issubclass(kind, MCFTensor)):
        raise TypeError(f"kind must be MCFTensor or a type of its own, got {kind!r}")
    attributes = check_attributes(kind, state)
    result = MCFTensor.__new__(kind, components, requires_grad)
    for name, value in attributes.items():
        setattr(result, name, value)
    return result


def _state(self: MCFTensor) -> dict[str, Any]:
    own = {"_terms", *self.__tensor_flatten__()[0]}
    return {k: v for k, v in self.__dict__.items() if k not in own}


@method
def __reduce_ex__(self: MCFTensor, protocol: Any) -> Any:
    if not self.is_leaf:
        raise RuntimeError("only leaves of the graph can be pickled; use x.detach()")
    torch.utils.hooks.warn_if_has_hooks(self)
    # Only subclasses are named, so that older versions can read files.
    own = () if type(self) is MCFTensor else (type(self),)
    return rebuild, (list(self.components), self.requires_grad, _state(self), *own)


@method
def __setstate__(self: MCFTensor, state: Any) -> None:
    # torch's method would give the tensor a storage next to its components.
    raise TypeError("the state of an expansion tensor cannot be set; pickling makes a new one")


@method
def __deepcopy__(self: MCFTensor, memo: dict[int, Any]) -> Any:
    if id(self) in memo:
        return memo[id(self)]
    if type(self) is MCFTensor and not (_function_modes() or watched() or is_compiling()):
        with _unasked():
            found = _copied(self, memo) if self.is_leaf else None
        if found is not None:
            memo[id(self)] = found
            return found
    if not self.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
            "protocol at the moment"
        )
    with torch.no_grad():
        # The memo makes tensors that share memory share it after the copy.
        components = [copy.deepcopy(c, memo) for c in self.components]
        state = copy.deepcopy(_state(self), memo)
        result = rebuild(components, self.requires_grad, state, type(self))
        if self.grad is not None:
            result.grad = copy.deepcopy(self.grad, memo)
    memo[id(self)] = result
    return result


def _copied(x: MCFTensor, memo: dict[int, Any]) -> MCFTensor | None:
    """Return a deep copy of a tensor without attributes or shared memory; None for others.

    This fast path clones each component. Torch's deepcopy copies a storage, creates an empty tensor
    and sets its layout.
    """
    own = x.__dict__
    terms = own["_terms"]
    # Attributes, gradients and partly used storages need the general path.
    parameter = own.get("_is_param") is True
    if len(own) != terms + 1 + parameter or x.grad is not None:
        return None
    # torch's memo of storages, each of which is copied once.
    met: dict[int, Any] = memo.get("torch", {})  # type: ignore[call-overload]
    parts = COMPONENTS[terms](own)
    storages = []
    for c in parts:
        if type(c) is not Tensor or id(c) in memo or not addressed(c) or c.__dict__:
            return None
        storage = c.untyped_storage()
        if storage.nbytes() != c.nbytes or storage._cdata in met or not c.is_cpu:
            return None
        storages.append(storage)
    copies = [c.clone() for c in parts]
    met = memo.setdefault("torch", {})  # type: ignore[call-overload]
    for c, copied, storage in zip(parts, copies, storages, strict=True):
        memo[id(c)] = copied
        met[storage._cdata] = copied.untyped_storage()
    result = made(copies, requires_grad=x.requires_grad)
    if parameter:
        result._is_param = True
    return result


@method
def share_memory_(self: MCFTensor) -> Any:
    """Move the components to memory shared with other processes."""
    for c in self.components:
        c.share_memory_()  # type: ignore[no-untyped-call]
    return self


@method
def is_shared(self: MCFTensor) -> bool:
    """Return whether the components are in shared memory."""
    return all(c.is_shared() for c in self.components)  # type: ignore[no-untyped-call]


def _collate(batch: list[Tensor], *, collate_fn_map: Any = None) -> Tensor:
    return torch.stack(batch, 0)


# Register with torch.load(weights_only=True) and DataLoader.
torch.serialization.add_safe_globals([rebuild, OrderedDict])
default_collate_fn_map[MCFTensor] = _collate
