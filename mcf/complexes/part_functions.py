"""Elementwise functions of parts with a derivative, for autograd and for `torch.func`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mcf.expansions.tensor import wrap


def halves(out: Any) -> tuple[Any, Any]:
    """Return both parts of a result's components."""
    half = len(out) // 2
    return wrap(out[:half]), wrap(out[half:])


def node(name: str, computed: Callable[..., Any], backward: Callable[..., Any]) -> Any:
    """Return a function of parts of one shape as a `torch.autograd.Function`.

    Args:
        name: of the type.
        computed: returns both parts of the result from parts that are expansion tensors.
        backward: maps the saved parts and the gradients (None for 0) to the gradients of all
            parts.
    """

    def forward(*given: Any) -> Any:
        return computed(*(v.detach() for v in given))

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)

    def back(ctx: Any, *grads: Any) -> Any:
        return backward(ctx.saved_tensors, grads)

    def vmap(info: Any, dims: Any, *given: Any) -> Any:
        lanes = (
            v.movedim(d, 0) if d is not None else v.expand(info.batch_size, *v.shape)
            for v, d in zip(given, dims, strict=True)
        )
        return made.apply(*lanes), (0, 0)

    members = {
        "forward": staticmethod(forward),
        "setup_context": staticmethod(setup_context),
        "backward": staticmethod(back),
        "vmap": staticmethod(vmap),
    }
    made: Any = type(name, (torch.autograd.Function,), members)
    return made
