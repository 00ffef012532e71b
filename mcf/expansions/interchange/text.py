"""Print and format expansion tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import is_fake

from mcf.convert import spec as specification
from mcf.convert.printing import brackets, element, in_force, shown
from mcf.expansions.tensor import MCFTensor, method
from mcf.kernels.formats import format_of


def rows(x: MCFTensor) -> list[tuple[float, ...]]:
    """Return the components of each printed element, in order.

    If a lower component is not finite, the sum of all replaces the first and zeros the others.
    """
    columns = []
    places = shown(x.shape)
    for c in x.components:
        c = c.detach()
        for d, kept in enumerate(places):
            if None in kept:
                index = torch.tensor([k for k in kept if k is not None], device=c.device)
                c = c.index_select(d, index.long())
        columns.append(c.double().flatten().tolist())
    found = list(zip(*columns, strict=True))
    return [
        row
        if all(map(math.isfinite, row)) or not math.isfinite(row[0])
        else (sum(row), *(0.0,) * (len(row) - 1))
        for row in found
    ]


def text(x: MCFTensor, exact: bool = True) -> str:
    """Return `MCFTensor([...], terms=2, dtype=torch.float32)`; `mcf.tensor` reads the brackets.

    Args:
        x: the tensor.
        exact: whether to print enough digits for exact values; else at most as many as every
            number of the format has.
    """
    tail = []
    if x.grad_fn is not None:
        tail.append(f"grad_fn=<{type(x.grad_fn).__name__}>")
    elif x.requires_grad:
        tail.append("requires_grad=True")

    def body(indent: int) -> str:
        return brackets(tuple(x.shape), rows(x), None, format_of(x.dtype), exact, indent)

    return framed("MCFTensor", x, x.components[0], tail, body)


def framed(
    name: str, x: Any, first: torch.Tensor, more: list[str], body: Callable[[int], str]
) -> str:
    """Return the text of a tensor, with its properties after the brackets.

    Args:
        name: of the type.
        x: the tensor.
        first: its first component.
        more: properties after number of components, dtype and device.
        body: returns the brackets, with lines after the first indented.
    """
    head, tail = f"{name}(", [f"terms={x.terms}", f"dtype={x.dtype}"]
    if x.device.type != "cpu":
        tail.append(f"device='{x.device}'")
    tail += more
    if first.device.type == "meta" or is_fake(first):
        return f"{head}..., size={tuple(x.shape)}, {', '.join(tail)})"
    if first.numel() == 0:
        if x.ndim != 1:
            tail.insert(0, f"size={tuple(x.shape)}")
        return f"{head}[], {', '.join(tail)})"
    shown_body = body(len(head))
    line = f"{head}{shown_body}, {', '.join(tail)})"
    if len(line.rsplit("\n", 1)[-1]) <= in_force().linewidth:
        return line
    return f"{head}{shown_body},\n{' ' * len(head)}{', '.join(tail)})"


@method
def __repr__(x: MCFTensor, *, tensor_contents: object = None) -> str:
    return text(x)


@method
def __str__(x: MCFTensor) -> str:
    return text(x, exact=False)


@method
def __format__(x: MCFTensor, spec: str) -> str:
    """Format each exact value as Python formats a float: `f"{x:.50f}"` has 50 digits.

    Tensors of several elements have the brackets of `str`; without a specification they are `str`.
    """
    if not spec and x.dim() != 0:
        return str(x)
    fmt = format_of(x.dtype)
    usual = element(fmt, False, in_force())
    if x.device.type == "meta" or is_fake(x.components[0]):
        raise TypeError(f"cannot format an expansion tensor on {x.device}, which has no values")
    if x.numel() == 0:
        return "[]"

    def show(parts: tuple[float, ...]) -> str:
        return specification.formatted(parts, spec, usual)

    return brackets(tuple(x.shape), rows(x), show, fmt, False)  # type: ignore[arg-type]
