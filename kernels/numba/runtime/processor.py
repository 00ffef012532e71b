"""Describe the processor that CPU loops are compiled for: LLVM's host or Numba's settings.

`NUMBA_CPU_NAME` and `NUMBA_CPU_FEATURES` select another processor, for example an older one.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

import llvmlite.binding as llvm


def _setting(name: str) -> str | None:
    """Return a Numba setting: as read by Numba, or as it will be read on import."""
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
    """Return LLVM's name of the processor."""
    return _setting("CPU_NAME") or _host()[0]


def features() -> str:
    """Return the processor's features as LLVM writes them: `+fma,-avx512f`."""
    chosen = _setting("CPU_FEATURES")
    if chosen is not None:
        return chosen
    return "" if name().lower() == "generic" else _host()[1]


def vector_bytes() -> int:
    """Return the bytes of the processor's widest vectors, 16 if unknown."""
    has = features().split(",")
    return 64 if "+avx512f" in has else 32 if "+avx" in has else 16


def both_pipes() -> bool:
    """Return whether this processor has separate pipes for products and for sums."""
    return name().startswith("znver") and "+fma" in features().split(",")


def shuffles_parts() -> bool:
    """Return whether one instruction permutes the 16-bit parts of two vectors of 512 bits."""
    return "+avx512bw" in features().split(",")
