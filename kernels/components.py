"""Check and broadcast the arguments of functions on tuples of component tensors.

An expansion is a tuple of 1 to 4 tensors of one dtype, device and shape, largest component first.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mcf.kernels.formats import FORMATS, format_of

Components = tuple[Tensor, ...]
Argument = Tensor | Sequence[Tensor]

MAX_TERMS = 4


def padded(x: Sequence[Tensor], terms: int) -> Components:
    """Return the components of `x`, padded with zeros to `terms` components."""
    return (*x, *(torch.zeros_like(x[0]) for _ in range(terms - len(x))))


def checked(
    function: str,
    names: Sequence[str],
    arguments: Sequence[Argument],
    most: int = MAX_TERMS,
    counts: Sequence[int] | None = None,
) -> list[list[Tensor]]:
    """Check the arguments of a function and return their components, broadcast to one shape.

    Args:
        function: its name, for messages.
        names: the names of its arguments.
        arguments: tensors, which are expansions of one component, and tuples of tensors.
        most: components of an argument.
        counts: the number of components of each argument if it is fixed; 1 for a tensor.

    Raises:
        TypeError: for an argument that is no tensor or tuple of tensors, for unsupported dtypes,
            for mixed dtypes and devices, and for layouts other than dense ones.
        ValueError: for another number of components, and for shapes that do not broadcast.
        RuntimeError: for a tensor that requires grad while grad mode is on.
    """
    if counts is None:
        grouped = [_any(function, n, a, most) for n, a in zip(names, arguments, strict=True)]
    else:
        given = zip(names, arguments, counts, strict=True)
        grouped = [_fixed(function, n, a, count) for n, a, count in given]
    first = grouped[0][0]
    if first.dtype in FORMATS and all([_alike(t, first) for group in grouped for t in group]):
        return grouped
    tensors = [count == 1 for count in counts] if counts is not None else [False] * len(names)
    labels = [
        [name] if tensor else [f"{name}[{k}]" for k in range(len(group))]
        for name, group, tensor in zip(names, grouped, tensors, strict=True)
    ]
    same_shape = True
    for label, group in zip(labels, grouped, strict=True):
        for name, t in zip(label, group, strict=True):
            _check_tensor(function, name, t, first, labels[0][0])
            same_shape = same_shape and t.shape == first.shape
    if same_shape:
        return grouped
    shape = max((t.shape for group in grouped for t in group), key=len)
    # Sizes that are being traced can be compared but not hashed.
    if all(t.shape == shape for group in grouped for t in group if t.ndim):
        # Zero-dimensional tensors with tensors of one shape: faster than `torch.broadcast_shapes`.
        return [[t if t.ndim else t.expand(shape) for t in group] for group in grouped]
    try:
        shape = torch.broadcast_shapes(*(t.shape for group in grouped for t in group))
    except RuntimeError:
        given_shapes = ", ".join(
            f"{name} {list(t.shape)}"
            for label, group in zip(labels, grouped, strict=True)
            for name, t in zip(label, group, strict=True)
        )
        raise ValueError(f"{function}: shapes do not broadcast: {given_shapes}") from None
    return [[t.expand(shape) for t in group] for group in grouped]


def _is_tuple(argument: object) -> bool:
    # Test for tuples first: `isinstance(argument, Sequence)` is slow.
    sequence = type(argument) is tuple or isinstance(argument, Sequence)
    return sequence and all([isinstance(t, Tensor) for t in argument])  # type: ignore[attr-defined]


def _any(function: str, name: str, argument: Argument, most: int) -> list[Tensor]:
    """Return the components of an argument that may have 1 to `most` of them."""
    if isinstance(argument, Tensor):
        return [argument]
    if not _is_tuple(argument):
        raise TypeError(
            f"{function}: {name} must be a tensor or a tuple of tensors, largest component first, "
            f"got {type(argument).__name__}"
        )
    if not 1 <= len(argument) <= most:
        raise ValueError(
            f"{function}: {name} must have 1 to {most} components, got {len(argument)}"
        )
    return list(argument)


def _fixed(function: str, name: str, argument: Argument, count: int) -> list[Tensor]:
    """Return the components of an argument that must have `count` of them."""
    if count == 1:
        if not isinstance(argument, Tensor):
            raise TypeError(f"{function}: {name} must be a tensor, got {type(argument).__name__}")
        return [argument]
    if isinstance(argument, Tensor) or not _is_tuple(argument):
        raise TypeError(
            f"{function}: {name} must be a tuple of {count} tensors, largest component first, got "
            f"{type(argument).__name__}"
        )
    if len(argument) != count:
        raise ValueError(f"{function}: {name} must have {count} components, got {len(argument)}")
    return list(argument)


def _alike(t: Tensor, first: Tensor) -> bool:
    """Return whether a tensor matches the first one, so that no further check is needed."""
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
