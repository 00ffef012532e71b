"""Copy small tables of numbers to a device without synchronising."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def table_of(numbers: Any, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return numbers as a CPU tensor, whatever PyTorch's default device is."""
    return torch.tensor(numbers, dtype=dtype, device="cpu")


def as_tensor(numbers: Any) -> Tensor:
    """Return a NumPy array as a tensor that shares its memory; return a tensor unchanged."""
    return numbers if isinstance(numbers, Tensor) else torch.from_numpy(numbers)


def to_device(t: Tensor, device: torch.device) -> Tensor:
    """Copy a small table, float64 or int64, to the device of a kernel without blocking.

    While a CUDA graph is captured the numbers travel in the arguments of kernels, which the graph
    keeps; a copy would read host memory again at each replay.
    """
    if device.type in ("cpu", "meta") or t.device == device or not t.numel():
        return t.to(device)
    if capturing(device):
        return as_arguments(t, device)
    # Pinned memory makes the copy asynchronous, whatever its size.
    return t.pin_memory().to(device, non_blocking=True)


def capturing(device: torch.device) -> bool:
    """Return whether launches on a device are being captured into a CUDA graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def as_arguments(t: Tensor, device: torch.device) -> Tensor:
    """Return a copy of the numbers on a device, passed as kernel arguments."""
    # Add as integers, since 0 + -0 is 0.
    words = t.contiguous().view(torch.int64).reshape(-1)
    found = torch.zeros(words.shape, dtype=torch.int64, device=device)
    torch._foreach_add_(list(found.unbind()), words.tolist())
    return found.view(t.dtype).reshape(t.shape)
