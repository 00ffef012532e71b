"""What Triton makes code for, and a device made current for its launches."""

from __future__ import annotations

import contextlib
import enum
import functools
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import triton

# The interpreter replaces parts of `triton.language` while it runs: one thread at a time.
_interpreter = threading.Lock()


class Dialect(enum.Enum):
    """What the device functions are made for."""

    INTERPRETER = "Triton's interpreter, on NumPy arrays"
    CUDA = "NVIDIA GPUs from sm_80 on"
    CUDA_89 = "NVIDIA GPUs from sm_89 on, which convert numbers of 8 bits"
    HIP = "AMD GPUs"

    @classmethod
    def of(cls, target: Any) -> Dialect:
        """The dialect for a `triton.backends.compiler.GPUTarget`."""
        if target.backend == "hip":
            return cls.HIP
        return cls.CUDA_89 if target.arch >= 89 else cls.CUDA

    @property
    def nvidia(self) -> bool:
        """Whether it is for NVIDIA GPUs."""
        return self in (Dialect.CUDA, Dialect.CUDA_89)

    @classmethod
    def of_process(cls) -> Dialect:
        """The dialect for the kernels that `triton.jit` makes in this process."""
        if triton.knobs.runtime.interpret:
            return cls.INTERPRETER
        return cls.CUDA if torch.version.hip is None else cls.HIP


@functools.cache
def _target(index: int) -> Any:
    """What Triton compiles for on a device, which is the current one."""
    return triton.runtime.driver.active.get_current_target()


@contextlib.contextmanager
def current(device: torch.device) -> Iterator[tuple[Dialect, Any]]:
    """Makes a device current; gives its dialect, and its target where it is a GPU."""
    if device.type == "cpu":
        # NumPy warns where IEEE arithmetic just goes on to infinity or NaN.
        with _interpreter, np.errstate(all="ignore"):
            yield Dialect.INTERPRETER, None
        return
    with torch.cuda.device(device):
        target = _target(torch.cuda.current_device())
        yield Dialect.of(target), target
