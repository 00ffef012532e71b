"""Register reductions of rows as opaque operators on components.

An operator reads the choice of registers (`mcf.set_registers`) when it runs, so that a compiled
program follows it. The format of its results does not depend on the choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_library = torch.library.Library("mcf", "FRAGMENT")  # type: ignore[no-untyped-call]


def operator(schema: str, fake: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Replace a function by an operator `torch.ops.mcf.NAME`.

    Args:
        schema: NAME(arguments), without the result, which is a list of tensors.
        fake: returns new tensors like the results, for the same arguments.
    """
    name = schema.partition("(")[0]

    def register(function: Callable[..., Any]) -> Any:
        _library.define(f"{schema} -> Tensor[]")  # type: ignore[no-untyped-call]
        _library.impl(name, function, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
        torch.library.register_fake(f"mcf::{name}", fake, lib=_library)
        return getattr(torch.ops.mcf, name)

    return register


def one_each(x: Sequence[Tensor], count: int) -> list[Tensor]:
    """Return `count` new tensors with one number for each row of [M, K]."""
    return [x[0].new_empty(x[0].shape[0]) for _ in range(count)]
