"""Apply operators that only move or copy elements to each component separately."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from mcf.expansions.dispatch.registry import OPERATORS, implements, readable
from mcf.expansions.tensor import COMPONENTS, MCFTensor, maker, wrap


def on_each(func: OpOverload) -> Callable[..., Any]:
    """Return an implementation that applies `func` to each component of its first argument."""
    call = _binding(func)

    def implementation(x: MCFTensor, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(x, MCFTensor):
            raise TypeError(
                f"{readable(func)}: indices and masks must be plain, got an expansion tensor"
            )
        results = [call(c, *args, **kwargs) for c in x.components]
        if isinstance(results[0], (list, tuple)):
            return [wrap(parts) for parts in zip(*results, strict=True)]
        return wrap(results)

    return implementation


# Tensor methods with the signature of the operator; calling them takes half the time.
_METHODS = frozenset(
    "clone detach diagonal expand flip gather index_select masked_select permute repeat roll rot90 "
    "select split split_with_sizes squeeze t take transpose tril triu unbind unfold unsqueeze "
    "view".split()
)


def _binding(func: OpOverload) -> Callable[..., Any]:
    """Return the fastest callable of an operator: the tensor method, or the raw operator."""
    name = func._schema.name.removeprefix("aten::")
    # `_op` skips the Python wrapper of OpOverload.
    return getattr(torch._C.TensorBase, name) if name in _METHODS else func._op


def register(*funcs: OpOverload) -> None:
    """Register operators whose first argument is an expansion tensor and the others plain."""
    for func in funcs:
        implements(func)(on_each(func))


# The step of PyTorch's `return_and_correct_aliasing` that views need, without its other checks.
share_memory: Any = torch._functionalize_unsafe_set


def register_views(*funcs: OpOverload) -> None:
    """Register view operators, applied to each component; results share the tensor's memory."""
    for func in funcs:
        OPERATORS[func] = viewed(_binding(func))


def viewed(view: Callable[..., Any]) -> Callable[..., Any]:
    """Return a view operator's implementation, given the view of one plain tensor."""

    def views(x: MCFTensor, *args: Any, **kwargs: Any) -> Any:
        own = x.__dict__
        return [view(c, *args, **kwargs) for c in COMPONENTS[own["_terms"]](own)]

    return sharing(views)


def sharing(views: Callable[..., Any]) -> Callable[..., Any]:
    """Return a view operator's implementation, given a function that views all components."""

    def implementation(x: MCFTensor, *args: Any, **kwargs: Any) -> Any:
        results = views(x, *args, **kwargs)
        if torch.is_inference_mode_enabled():
            # A view of a normal tensor must stay normal, so that both share a version counter.
            with torch.inference_mode(x.is_inference()):
                return viewing(x, results)
        return viewing(x, results)

    def viewing(x: MCFTensor, results: Any) -> Any:
        # Equal layouts of the components imply equal layouts of the views: no check is needed.
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
