"""Small tables of numbers on their way to a device, without waiting for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def table_of(numbers: Any, dtype: torch.dtype = torch.float64) -> Tensor:
    """Numbers of the host as a tensor there, whatever torch's default device is."""
    return torch.tensor(numbers, dtype=dtype, device="cpu")


def as_tensor(numbers: Any) -> Tensor:
    """A NumPy array as a tensor that shares its memory; a tensor as it is, where it is."""
    return numbers if isinstance(numbers, Tensor) else torch.from_numpy(numbers)


def to_device(t: Tensor, device: torch.device) -> Tensor:
    """A small table, float64 or int64, where a kernel reads it; the host does not wait.

    While a CUDA graph is captured the numbers travel in the arguments of kernels, which the graph
    keeps; a copy would read host memory again at each replay.
    """
    if device.type in ("cpu", "meta") or t.device == device or not t.numel():
        return t.to(device)
    if capturing(device):
        return as_arguments(t, device)
    # Pinned, so that the copy needs no synchronisation, whatever its size.
    return t.pin_memory().to(device, non_blocking=True)


def capturing(device: torch.device) -> bool:
    """Whether launches on a device are recorded and not run."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def as_arguments(t: Tensor, device: torch.device) -> Tensor:
    """The same numbers on a device, brought by the arguments of kernels."""
    # Integers, since 0 + -0 is 0.
    words = t.contiguous().view(torch.int64).reshape(-1)
    found = torch.zeros(words.shape, dtype=torch.int64, device=device)
    torch._foreach_add_(list(found.unbind()), words.tolist())
    return found.view(t.dtype).reshape(t.shape)
