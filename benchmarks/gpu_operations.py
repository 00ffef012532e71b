"""Arithmetic, functions and products of expansions, for the GPU day."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from gpu_measure import Case, Size, Work, bandwidth

import mcf

TERMS = (2, 4)
FORMATS = (torch.float32, torch.bfloat16, torch.float64)
FUNCTIONS = ("exp", "log", "sin", "cos", "tan", "atan", "tanh", "sigmoid", "erf", "lgamma", "pow")


def _case(name: str, terms: int, dtype: torch.dtype) -> str:
    return f"{name}, {terms} x {str(dtype).removeprefix('torch.')}"


def _elements(dtype: torch.dtype, size: Size) -> int:
    return size.narrow_elements if dtype.itemsize == 2 else size.elements


def operands(terms: int, dtype: torch.dtype, device: torch.device, size: Size) -> Any:
    """Return two expansions of random positive numbers, of as many bits as they hold."""
    count = _elements(dtype, size)
    made = torch.Generator(device).manual_seed(0)
    x, y = (mcf.rand(count, terms=terms, dtype=dtype, device=device, generator=made)
            for _ in range(2))  # fmt: skip
    return x, y + 0.5


def arithmetic(device: torch.device, size: Size) -> Iterator[Case]:
    """Yield operations on expansions."""
    calls: dict[str, tuple[int, Callable[[Any, Any], object]]] = {
        "x + y": (3, lambda x, y: x + y),
        "x * y": (3, lambda x, y: x * y),
        "x / y": (3, lambda x, y: x / y),
        "sqrt(x)": (2, lambda x, y: x.sqrt()),
        "x.sum()": (1, lambda x, y: x.sum()),
    }
    for dtype in FORMATS:
        for terms in TERMS:
            for name, (tensors, call) in calls.items():
                make = functools.partial(_operation, call, tensors, terms, dtype, device, size)
                yield Case(_case(name, terms, dtype), make)


def _operation(
    call: Callable[[Any, Any], object],
    tensors: int,
    terms: int,
    dtype: torch.dtype,
    device: torch.device,
    size: Size,
) -> Work:
    x, y = operands(terms, dtype, device, size)
    count = _elements(dtype, size)
    moved = tensors * terms * dtype.itemsize * count
    copied = bandwidth(device, size)
    return Work(
        functools.partial(call, x, y),
        lambda s: {"ns/element": 1e9 * s / count, "share of the copy's speed": moved / copied / s},
    )


def functions(device: torch.device, size: Size) -> Iterator[Case]:
    """Yield functions of pairs, and torch's of float64."""
    for name in FUNCTIONS:
        for dtype in FORMATS:
            call = functools.partial(_function, name)
            tensors = 3 if name == "pow" else 2
            make = functools.partial(_operation, call, tensors, 2, dtype, device, size)
            yield Case(_case(name, 2, dtype), make)
        make = functools.partial(_torch_function, name, device, size)
        yield Case(f"{name}, torch float64", make, ours=False)


def _function(name: str, x: Any, y: Any) -> object:
    return x**y if name == "pow" else getattr(x, name)()


def _torch_function(name: str, device: torch.device, size: Size) -> Work:
    x, y = (
        torch.rand(size.elements, dtype=torch.float64, device=device) + shift for shift in (0, 0.5)
    )
    return Work(
        functools.partial(_function, name, x, y), lambda s: {"ns/element": 1e9 * s / size.elements}
    )


def products(device: torch.device, size: Size) -> Iterator[Case]:
    """Yield matrix products of expansions, and torch's of float64 and float32."""
    formats = (torch.float32, torch.float64)
    for n in size.products:
        for dtype in formats:
            name = f"{n} x {n}, torch {str(dtype).removeprefix('torch.')}"
            yield Case(name, functools.partial(_product, n, 0, dtype, device), ours=False)
        # The slowest are last.
        for terms in (1, *TERMS):
            for dtype in formats:
                make = functools.partial(_product, n, terms, dtype, device)
                yield Case(_case(f"{n} x {n}", terms, dtype), make)


def _product(n: int, terms: int, dtype: torch.dtype, device: torch.device) -> Work:
    x: Any
    if terms:
        made = torch.Generator(device).manual_seed(0)
        x = mcf.rand(n, n, terms=terms, dtype=dtype, device=device, generator=made)
    else:
        x = torch.rand(n, n, dtype=dtype, device=device)
    return Work(lambda: x @ x, lambda s: {"Gop/s": 2e-9 * n**3 / s})
