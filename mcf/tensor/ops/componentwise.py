"""Operators that move or copy elements whole, and so act on each component alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._ops import OpOverload

from mcf.tensor.registry import implements, readable
from mcf.tensor.tensor import MCFTensor, wrap


def on_each(func: OpOverload) -> Callable[..., Any]:
    """The operator on every component of its first argument."""

    def implementation(x: MCFTensor, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(x, MCFTensor):
            raise TypeError(
                f"{readable(func)}: an expansion tensor stands where indices are allowed, or a mask"
            )
        results = [func(c, *args, **kwargs) for c in x.components]
        if isinstance(results[0], (list, tuple)):
            return type(results[0])(wrap(parts) for parts in zip(*results, strict=True))
        return wrap(results)

    return implementation


def register(*funcs: OpOverload) -> None:
    """Register operators whose first argument is an expansion tensor and the others plain."""
    for func in funcs:
        implements(func)(on_each(func))
