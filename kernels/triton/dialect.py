"""The targets of Triton, and a context that makes a device current for launches."""

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

# The interpreter patches `triton.language` while it runs, so only one thread may use it.
_interpreter = threading.Lock()


class Dialect(enum.Enum):
    """The target of device functions."""

    INTERPRETER = "Triton's interpreter, on NumPy arrays"
    CUDA = "NVIDIA GPUs from sm_80 on"
    CUDA_89 = "NVIDIA GPUs from sm_89 on, which convert numbers of 8 bits"
    HIP = "AMD GPUs"

    @classmethod
    def of(cls, target: Any) -> Dialect:
        """Return the dialect for a `triton.backends.compiler.GPUTarget`."""
        if target.backend == "hip":
            return cls.HIP
        return cls.CUDA_89 if target.arch >= 89 else cls.CUDA

    @property
    def nvidia(self) -> bool:
        """Whether the target is an NVIDIA GPU."""
        return self in (Dialect.CUDA, Dialect.CUDA_89)

    @classmethod
    def of_process(cls) -> Dialect:
        """Return the dialect of the kernels that `triton.jit` compiles in this process."""
        if triton.knobs.runtime.interpret:
            return cls.INTERPRETER
        return cls.CUDA if torch.version.hip is None else cls.HIP


@functools.cache
def _target(index: int) -> Any:
    """Return Triton's target for a device, which must be the current one."""
    return triton.runtime.driver.active.get_current_target()


@contextlib.contextmanager
def current(device: torch.device) -> Iterator[tuple[Dialect, Any]]:
    """Make a device current; yield its dialect, and its target if it is a GPU."""
    if device.type == "cpu":
        # NumPy warns where IEEE arithmetic continues with infinity or NaN.
        with _interpreter, np.errstate(all="ignore"):
            yield Dialect.INTERPRETER, None
        return
    with torch.cuda.device(device):
        target = _target(torch.cuda.current_device())
        yield Dialect.of(target), target
