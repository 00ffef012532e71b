"""Exclude functions from tracing by torch.compile."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])


def untraced(function: Function) -> Function:
    """Return the function such that torch.compile breaks the graph around it.

    It is for functions that need components, which a graph's tensors lack: the bits are the eager
    ones.
    """
    aside = torch._disable_dynamo(function)  # type: ignore[attr-defined]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (aside if torch.compiler.is_compiling() else function)(*args, **kwargs)

    return call  # type: ignore[return-value]
