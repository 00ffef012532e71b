"""Checks of hyperparameters, parameters, gradients and states; each says what is allowed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mcf.kernels.formats import FORMATS, Format


class SparseGradientError(TypeError, RuntimeError):
    """A sparse gradient; also a RuntimeError, which torch's optimizers raise."""


def number(
    name: str, value: Any, *, low: float = 0.0, high: float = math.inf, open_high: bool = False
) -> None:
    """A hyperparameter in [low, high], or [low, high) if `open_high`; may be a 0-dim tensor."""
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(f"Tensor {name} must be 1-element, got shape {list(value.shape)}")
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    inside = low <= value and (value < high if open_high or high == math.inf else value <= high)
    if not inside:
        upper = ")" if open_high or high == math.inf else "]"
        raise ValueError(f"Invalid {name}: {value}; allowed is [{low}, {high}{upper}")


def choice(name: str, value: Any, known: Mapping[str, Any] | tuple[str, ...]) -> None:
    """A hyperparameter that is one of a few names."""
    if value not in tuple(known):
        allowed = ", ".join(repr(k) for k in known)
        raise ValueError(f"Unknown {name}: {value!r}; known are {allowed}")


def compute_dtype(value: Any) -> None:
    """`compute_dtype` is float32 or a 16-bit float."""
    allowed = (torch.float32, torch.bfloat16, torch.float16)
    if value not in allowed:
        raise ValueError(
            f"Invalid compute_dtype: {value}; allowed are {', '.join(map(str, allowed))}"
        )


def parameter(where: str, p: Tensor) -> None:
    """A parameter is a dense real floating-point tensor of a known format."""
    if p.layout is not torch.strided:
        raise TypeError(f"{where} has layout {p.layout}; allowed is torch.strided")
    if p.dtype not in FORMATS:
        allowed = ", ".join(map(str, FORMATS))
        raise TypeError(f"{where} has dtype {p.dtype}; allowed are {allowed}")
    if p.numel() > 1 and any(s == 0 and n > 1 for s, n in zip(p.stride(), p.shape, strict=True)):
        raise ValueError(f"{where} is expanded: several of its elements share memory")


def gradient(where: str, p: Tensor, grad: Tensor) -> None:
    """A gradient is dense and has its parameter's shape, dtype and device."""
    if grad.layout is not torch.strided:
        raise SparseGradientError(
            f"{where}.grad has layout {grad.layout}; sparse gradients are not supported, allowed "
            "is torch.strided"
        )
    for what in ("dtype", "shape", "device"):
        given, allowed = getattr(grad, what), getattr(p, what)
        if given != allowed:
            kind = ValueError if what == "shape" else TypeError
            raise kind(f"{where}.grad has {what} {given}; allowed is its parameter's, {allowed}")


def state(where: str, p: Tensor, entry: Mapping[str, Any], formats: Mapping[str, Format]) -> None:
    """A parameter's state has the tensors, dtypes and shapes of its precision."""
    wanted = {"step", *formats}
    if entry.keys() != wanted:
        raise ValueError(
            f"state of {where} has {sorted(entry)}; its precision and dtype need {sorted(wanted)}"
        )
    for name, fmt in formats.items():
        t = entry[name]
        if not isinstance(t, Tensor):
            raise TypeError(f"state {name!r} of {where} is a {type(t).__name__}, not a tensor")
        if t.dtype != fmt.dtype or t.shape != p.shape:
            raise ValueError(
                f"state {name!r} of {where} has dtype {t.dtype} and shape {list(t.shape)}; a "
                f"parameter of dtype {p.dtype} and shape {list(p.shape)} needs {fmt.dtype} and "
                f"{list(p.shape)} (was the parameter changed after its state was made?)"
            )
