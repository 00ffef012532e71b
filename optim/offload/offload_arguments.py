"""What `CPUOffloadOptimizer` is made with, checked."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mcf.optim.optimizer import LowPrecisionOptimizer


def check(optimizer_class: Any, offload_gradients: Any, minimal_size: Any) -> None:
    """Raise TypeError or ValueError for what is not taken."""
    known = isinstance(optimizer_class, type) and issubclass(optimizer_class, LowPrecisionOptimizer)
    if not known or hasattr(optimizer_class, "eval"):
        raise TypeError(
            f"optimizer_class is {optimizer_class!r}; allowed are those of mcf.optim without train "
            "and eval modes, which write weights"
        )
    if not isinstance(offload_gradients, bool):
        raise TypeError(f"offload_gradients must be True or False, got {offload_gradients!r}")
    if isinstance(minimal_size, bool) or not isinstance(minimal_size, int) or minimal_size < 0:
        raise ValueError(
            f"Invalid minimal_size: {minimal_size!r}; allowed are whole numbers from 0"
        )


def listed(params: Any) -> list[Any]:
    """The parameters of a group."""
    return [params] if isinstance(params, Tensor) else list(params)
