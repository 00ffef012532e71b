"""Promote the operands of an operation to one format and device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from mcf.convert.numbers import components_of
from mcf.convert.rounding import convert, widen
from mcf.expansions.tensor import Components, MCFTensor, broadcast
from mcf.kernels.components import padded
from mcf.kernels.formats import format_of


def result_format(*operands: Any) -> tuple[torch.dtype, int]:
    """Return the component dtype and the number of terms of an operation's result.

    The dtype is `torch.promote_types` over the floating-point tensors among the operands, including
    0-dimensional ones; the terms are the largest. Integer tensors and Python numbers do not take
    part. No operand loses bits by promotion.
    """
    dtype: torch.dtype | None = None
    terms = 1
    for x in operands:
        if isinstance(x, MCFTensor):
            # Not `x.dtype`, which above autograd would call `__torch_function__`.
            own = x.__dict__
            terms, kind = max(terms, own["_terms"]), own["_c0"].dtype
            dtype = kind if dtype in (None, kind) else torch.promote_types(dtype, kind)
        elif isinstance(x, Tensor) and x.is_floating_point():
            dtype = x.dtype if dtype is None else torch.promote_types(dtype, x.dtype)
        elif isinstance(x, Tensor) and x.is_complex():
            raise TypeError("expansion tensors are real, got an operand of complex numbers")
        elif isinstance(x, complex):
            raise TypeError(f"expansion tensors are real, got the complex number {x!r}")
    assert dtype is not None
    return dtype, terms


def operands(*values: Any) -> tuple[Components, ...]:
    """Return the components of each operand in the result's dtype, as many as its value needs.

    A plain float tensor, a one-term expansion, and a number that fits have one component; other
    operands have as many as the result.
    """
    if _alike(values):
        return tuple(v.components for v in values)
    dtype, terms = result_format(*values)
    device = common_device(*values)
    return tuple(as_components(v, dtype, terms, device) for v in values)


def _alike(values: Sequence[Any]) -> bool:
    """Return whether all are expansions of one format on one device."""
    formats = set()
    for v in values:
        if type(v) is not MCFTensor:
            return False
        own = v.__dict__
        formats.add((own["_terms"], own["_c0"].dtype, own["_c0"].device))
    return len(formats) == 1


def check_broadcast(groups: Sequence[Components]) -> None:
    """Raise torch's error where the components of operands cannot be expanded to one shape."""
    shapes = [group[0].shape for group in groups]
    try:
        torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    except RuntimeError:
        # Raise the message that operators have instead.
        broadcast(*(torch.empty(shape, device="meta") for shape in shapes))
        raise


def common_device(*values: Any) -> torch.device:
    """Return the device of a result: that of all tensors except 0-dimensional ones on the CPU.

    Errors have torch's type, not `TypeError`, which `==` would interpret as "not equal".

    Raises:
        RuntimeError: for tensors on two devices, or a sparse tensor.
    """
    tensors = [v for v in values if isinstance(v, Tensor)]
    for v in tensors:
        if v.layout is not torch.strided:
            raise RuntimeError(
                f"operands of expansion tensors must be dense, got layout {v.layout}; "
                "x.to_dense() converts"
            )
    devices = {v.device: None for v in tensors if v.dim() or v.device.type != "cpu"}
    if len(devices) > 1:
        first, other, *_ = devices
        raise RuntimeError(
            f"operands are on the devices {first} and {other}; move one by x.to(device), since "
            "tensors with dimensions are not moved silently"
        )
    return next(iter(devices), tensors[0].device)


def as_components(value: Any, dtype: torch.dtype, terms: int, device: torch.device) -> Components:
    """Return the components of a tensor or a Python number in a format that holds its dtype.

    Integers and numbers that the format cannot hold are rounded to the nearest expansion. A
    0-dimensional tensor is moved to the device, as in torch.
    """
    if isinstance(value, Tensor) and not value.dim() and value.device != device:
        value = value.to(device)
    if isinstance(value, MCFTensor):
        c = value.components
        if c[0].dtype is not dtype:
            # Components that are normalised in a narrower format need not be in this one.
            c = convert(c, dtype, len(c))
        if 1 < len(c) < terms:
            c = padded(c, terms)
        return c
    if isinstance(value, Tensor):
        # `dispatch.torch_functions` handles the gradient of a plain operand.
        value = value.detach() if value.requires_grad else value
        if value.is_floating_point():
            # Kernels read memory, which lacks the values of negative views and zero tensors.
            if value.is_neg():
                value = value.resolve_neg()
            elif value._is_zerotensor():
                value = value.new_zeros(value.shape)
            return widen((value,), dtype)
        return convert(integer_components(value), dtype, terms)
    numbers = components_of(value, format_of(dtype), terms)
    if not any(numbers[1:]):
        numbers = numbers[:1]
    return tuple(torch.full((), x, dtype=dtype, device=device) for x in numbers)


def integer_components(value: Tensor) -> Components:
    """Convert an integer or bool tensor to float64 components, exactly."""
    if value.is_complex():
        raise TypeError("expansion tensors are real, got a tensor of complex numbers")
    if value.dtype not in (torch.int64, torch.uint64):
        return (value.to(torch.float64),)
    wide = value.to(torch.int64)
    low = wide & 0xFFFFFFFF
    high = wide - low
    if value.dtype is torch.uint64:
        high = high.to(torch.float64) + (wide < 0) * 2.0**64
    # Each part is a float64; RN(high + low) and its error are the components.
    a, b = high.to(torch.float64), low.to(torch.float64)
    s = a + b
    return s, b - (s - a)


def aligned(*values: Any) -> tuple[Components, ...]:
    """Return the components of each operand in the result's format, padded to its terms."""
    _, terms = result_format(*values)
    return tuple(padded(c, terms) for c in operands(*values))


def exactly(value: Any, dtype: torch.dtype) -> bool:
    """Return whether four components of `dtype` are certain to hold the value."""
    if isinstance(value, Tensor):
        return value.is_floating_point() or dtype in (torch.float32, torch.float64)
    if isinstance(value, float) and not math.isfinite(value):
        return True
    numbers = components_of(value, format_of(dtype), 4)
    return all(map(math.isfinite, numbers)) and sum(map(Fraction, numbers)) == Fraction(value)
