"""Parameters that are expansion tensors: their second component is the low word of a strategy."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from mcf.expansions import MCFTensor
from mcf.kernels.formats import BF16, FP16
from mcf.optim.sharding.shards import is_sharded, local
from mcf.optim.storage.base import SINGLE, Storage
from mcf.optim.storage.pair import PAIR
from mcf.optim.storage.strategies import STRATEGIES, Arithmetic
from mcf.optim.storage.values import Value


def components(t: Tensor) -> tuple[Tensor, ...]:
    """Return the components of an expansion tensor, or a tensor's local part; not copied."""
    return t.components if isinstance(t, MCFTensor) else (local(t),)


def is_expansion(t: Tensor) -> bool:
    """Return whether a tensor is an expansion tensor."""
    return isinstance(t, MCFTensor)


def leading(t: Tensor) -> Tensor:
    """Return the first component."""
    return components(t)[0]


def check_parameter(where: str, p: Tensor, taken: bool) -> None:
    """Raise for an expansion tensor that an optimizer cannot step."""
    if not isinstance(p, MCFTensor):
        return
    what = f"{where} is an expansion of {p.terms} components of {p.dtype}"
    if not taken:
        raise TypeError(f"{what}; allowed are plain tensors")
    if p.terms != 2 or p.dtype not in (BF16.dtype, FP16.dtype):
        raise TypeError(
            f"{what}; allowed are plain tensors, and expansions of 2 components of torch.bfloat16 "
            "or torch.float16 (torch.optim steps the others, in their own arithmetic)"
        )
    # A kernel needs equal layouts; a component may have been resized without the tensor's
    # knowledge.
    for k, c in enumerate(p.components):
        if (c.shape, c.stride()) != (p.shape, p.stride()):
            raise ValueError(
                f"{where}.components[{k}] has shape {list(c.shape)} and strides "
                f"{list(c.stride())}, {where} has {list(p.shape)} and {list(p.stride())}"
            )


def check_gradient(where: str, p: Tensor, grad: Tensor) -> None:
    """Raise for an expansion as gradient of a plain tensor, or with other components."""
    if not isinstance(grad, MCFTensor):
        return
    terms = p.terms if isinstance(p, MCFTensor) else None
    if grad.terms != terms or grad.dtype != p.dtype:
        allowed = f"an expansion of {terms} of {p.dtype} or a plain tensor" if terms else "none"
        raise TypeError(
            f"{where}.grad is an expansion of {grad.terms} components of {grad.dtype}; allowed is "
            f"{allowed}"
        )


def arithmetic(found: Arithmetic, p: Tensor, where: str) -> Arithmetic:
    """Return the arithmetic of a parameter; an expansion holds its low word itself.

    Raises:
        ValueError: for a strategy that stores no low word.
    """
    if not isinstance(p, MCFTensor):
        return found
    if not found.strategy.param.has_low:
        allowed = ", ".join(repr(s.name) for s in STRATEGIES.values() if s.param.has_low)
        raise ValueError(
            f"precision={found.strategy.name!r} with {where}, an expansion, whose second component "
            f"is the low word of the parameter; allowed are those that store one, {allowed} among "
            "them"
        )
    return dataclasses.replace(found, held=True)


def row(p: Tensor, gradient: tuple[Tensor, ...], states: list[Tensor]) -> list[Tensor]:
    """Return a kernel's row: the local parts of parameter, gradient, low word and states."""
    high, *low = components(p)
    return [high, *gradient, *low, *map(local, states)]


def stepped(p: Tensor) -> None:
    """Tell autograd that a parameter has changed, after a kernel changed its parts."""
    if isinstance(p, MCFTensor) or is_sharded(p):
        torch.autograd.graph.increment_version(p)


def own_storage(p: Tensor) -> Storage:
    """Return the storage of a parameter's own tensor."""
    return PAIR if is_expansion(p) else SINGLE


@torch.no_grad()
def copied_components(p: Tensor) -> list[Tensor]:
    """Return copies of the components of a parameter's local part."""
    return [t.clone() for t in components(p.detach())]


@torch.no_grad()
def write_value(p: Tensor, value: Value) -> None:
    """Write a value, rounded to a parameter's format, into the parameter's local part."""
    own_storage(p).keep(value, list(components(p.detach())))
    stepped(p)


@torch.no_grad()
def write_components(p: Tensor, before: Sequence[Tensor]) -> None:
    """Write saved components into a parameter's local part."""
    for t, old in zip(components(p.detach()), before, strict=True):
        t.copy_(old)
    stepped(p)
