"""Operators that move or copy elements whole, and so act on each component alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from mcf.expansions.dispatch.registry import OPERATORS, implements, readable
from mcf.expansions.tensor import COMPONENTS, MCFTensor, maker, wrap


def on_each(func: OpOverload) -> Callable[..., Any]:
    """The operator on every component of its first argument."""
    call = _binding(func)

    def implementation(x: MCFTensor, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(x, MCFTensor):
            raise TypeError(
                f"{readable(func)}: an expansion tensor stands where indices are allowed, or a mask"
            )
        results = [call(c, *args, **kwargs) for c in x.components]
        if isinstance(results[0], (list, tuple)):
            return [wrap(parts) for parts in zip(*results, strict=True)]
        return wrap(results)

    return implementation


# Methods that take the arguments of the operator of their name, in half of its time.
_METHODS = frozenset(
    "clone detach diagonal expand flip gather index_select masked_select permute repeat roll rot90 "
    "select split split_with_sizes squeeze t take transpose tril triu unbind unfold unsqueeze "
    "view".split()
)


def _binding(func: OpOverload) -> Callable[..., Any]:
    """What calls an operator in the least time."""
    name = func._schema.name.removeprefix("aten::")
    # Else the operator without the Python around it.
    return getattr(torch._C.TensorBase, name) if name in _METHODS else func._op


def register(*funcs: OpOverload) -> None:
    """Register operators whose first argument is an expansion tensor and the others plain."""
    for func in funcs:
        implements(func)(on_each(func))


# What PyTorch's `return_and_correct_aliasing` does for views, which asks more than it has to here.
share_memory: Any = torch._functionalize_unsafe_set


def register_views(*funcs: OpOverload) -> None:
    """Register operators that view each component, and whose results share the tensor's memory."""
    for func in funcs:
        OPERATORS[func] = viewed(_binding(func))


def viewed(view: Callable[..., Any]) -> Callable[..., Any]:
    """An operator's implementation by a function of a plain tensor that views it."""

    def views(x: MCFTensor, *args: Any, **kwargs: Any) -> Any:
        own = x.__dict__
        return [view(c, *args, **kwargs) for c in COMPONENTS[own["_terms"]](own)]

    return sharing(views)


def sharing(views: Callable[..., Any]) -> Callable[..., Any]:
    """An operator's implementation by a function of a tensor that views its components."""

    def implementation(x: MCFTensor, *args: Any, **kwargs: Any) -> Any:
        results = views(x, *args, **kwargs)
        if torch.is_inference_mode_enabled():
            # A view of a tensor that counts its changes counts them with it.
            with torch.inference_mode(x.is_inference()):
                return viewing(x, results)
        return viewing(x, results)

    def viewing(x: MCFTensor, results: Any) -> Any:
        # Views of components that are alike are.
        make = maker()
        if isinstance(results[0], (list, tuple)):
            out = [make(parts) for parts in zip(*results, strict=True)]
            for each in out:
                share_memory(each, x)
            return out
        one = make(results)
        share_memory(one, x)
        return one

    return implementation
