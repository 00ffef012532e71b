"""The processor that CPU loops are compiled for: as LLVM sees it, or as Numba's variables say.

`NUMBA_CPU_NAME` and `NUMBA_CPU_FEATURES` name another one, an older one say.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

import llvmlite.binding as llvm


def _setting(name: str) -> str | None:
    """A variable of Numba's: what it has read, or will read once it is imported."""
    numba: Any = sys.modules.get("numba")
    config = getattr(numba, "config", None)
    return getattr(config, name) if hasattr(config, name) else os.environ.get(f"NUMBA_{name}")


@functools.cache
def _host() -> tuple[str, str]:
    try:
        return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    except RuntimeError:
        return llvm.get_host_cpu_name(), ""


def name() -> str:
    """LLVM's name of the processor."""
    return _setting("CPU_NAME") or _host()[0]


def features() -> str:
    """What it has and has not, as LLVM writes it: `+fma,-avx512f`."""
    chosen = _setting("CPU_FEATURES")
    if chosen is not None:
        return chosen
    return "" if name().lower() == "generic" else _host()[1]


def vector_bytes() -> int:
    """Bytes of its widest vectors, 16 where nothing is known."""
    has = features().split(",")
    return 64 if "+avx512f" in has else 32 if "+avx" in has else 16


def both_pipes() -> bool:
    """Whether this processor has pipes for products beside those for sums."""
    return name().startswith("znver") and "+fma" in features().split(",")


def shuffles_parts() -> bool:
    """Whether one instruction takes any 16-bit parts of two vectors of 512 bits."""
    return "+avx512bw" in features().split(",")
