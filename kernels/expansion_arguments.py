"""Checks of what the functions on expansions are given."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mcf.kernels.expansion_operators import MAX_TERMS
from mcf.kernels.formats import FORMATS, format_of

Components = tuple[Tensor, ...]
Argument = Tensor | Sequence[Tensor]
Out = Sequence[Tensor] | None


def _components(function: str, name: str, argument: Argument, most: int) -> tuple[Tensor, ...]:
    if isinstance(argument, Tensor):
        return (argument,)
    # Tuples first: to ask whether something is a sequence takes long.
    sequence = type(argument) is tuple or isinstance(argument, Sequence)
    if not sequence or not all(isinstance(t, Tensor) for t in argument):
        raise TypeError(
            f"{function}: {name} must be a tensor or a tuple of tensors, largest component first, "
            f"got {type(argument).__name__}"
        )
    if not 1 <= len(argument) <= most:
        raise ValueError(
            f"{function}: {name} must have 1 to {most} components, got {len(argument)}"
        )
    return tuple(argument)


def checked(
    function: str, names: Sequence[str], arguments: Sequence[Argument], most: int = MAX_TERMS
) -> list[list[Tensor]]:
    """The components of each argument, broadcast to one shape."""
    grouped = [_components(function, n, a, most) for n, a in zip(names, arguments, strict=True)]
    first = grouped[0][0]
    if first.dtype in FORMATS and all(_alike(t, first) for group in grouped for t in group):
        return [list(group) for group in grouped]
    same_shape = True
    for name, group in zip(names, grouped, strict=True):
        for k, t in enumerate(group):
            _check_tensor(function, f"{name}[{k}]", t, first, f"{names[0]}[0]")
            same_shape = same_shape and t.shape == first.shape
    if same_shape:
        return [list(group) for group in grouped]
    shapes = {t.shape for group in grouped for t in group if t.ndim}
    if len(shapes) == 1:
        # Numbers without dimensions beside tensors of one shape; asking torch takes longer.
        [shape] = shapes
        return [[t if t.ndim else t.expand(shape) for t in group] for group in grouped]
    try:
        shape = torch.broadcast_shapes(*(t.shape for group in grouped for t in group))
    except RuntimeError:
        given = ", ".join(
            f"{n}[{k}] {list(t.shape)}"
            for n, group in zip(names, grouped, strict=True)
            for k, t in enumerate(group)
        )
        raise ValueError(f"{function}: shapes do not broadcast: {given}") from None
    return [[t.expand(shape) for t in group] for group in grouped]


def _alike(t: Tensor, first: Tensor) -> bool:
    """Whether there is nothing to say about a tensor beside the first; what most calls find."""
    return (
        t.dtype is first.dtype
        and t.shape == first.shape
        and t.device == first.device
        and t.layout is torch.strided
        and not t.requires_grad
    )


def _check_tensor(function: str, name: str, t: Tensor, first: Tensor, first_name: str) -> None:
    if t is first:
        format_of(t.dtype, f"{function}: {name}")
    elif t.dtype != first.dtype or t.device != first.device:
        what = "dtype" if t.dtype != first.dtype else "device"
        raise TypeError(
            f"{function}: {name} has {what} {getattr(t, what)} and {first_name} has "
            f"{getattr(first, what)}; convert one, nothing is rounded or moved silently"
        )
    if t.layout is not torch.strided:
        raise TypeError(
            f"{function}: {name} has layout {t.layout}; only dense (torch.strided) tensors are "
            "allowed"
        )
    if t.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(
            f"{function}: {name} requires grad, and this function has no derivative; detach it or "
            "use torch.no_grad()"
        )


def check_out(function: str, out: Sequence[Tensor], first: Tensor, terms: int) -> None:
    """Refuse an `out` that the result does not fit as it is."""
    if not isinstance(out, (tuple, list)) or not all(isinstance(t, Tensor) for t in out):
        raise TypeError(f"{function}: out must be a tuple of {terms} tensors")
    if len(out) != terms:
        raise ValueError(f"{function}: out must have {terms} components, got {len(out)}")
    for k, t in enumerate(out):
        if _alike(t, first):
            continue
        _check_tensor(function, f"out[{k}]", t, first, "the first argument")
        if t.shape != first.shape:
            raise ValueError(
                f"{function}: out[{k}] has shape {list(t.shape)}, the result has "
                f"{list(first.shape)}"
            )
