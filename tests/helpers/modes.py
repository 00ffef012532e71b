"""Modes of torch's dispatcher that tests run under."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

import mcf


class Seen(TorchDispatchMode):
    """Lets expansion tensors answer first, and keeps the operators that reach plain ones."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(t, mcf.MCFTensor) for t in types):
            return NotImplemented
        self.seen.append(func)
        return func(*args, **(kwargs or {}))
