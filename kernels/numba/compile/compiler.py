"""Numba's part of a loop: primitives, the algorithms bound to them, and the compilation.

It is imported only when a loop has to be compiled, since importing Numba's compiler is slow.
"""

from __future__ import annotations

import functools
import linecache
from collections.abc import Mapping
from typing import Any

import numpy as np

from mcf.kernels.elementwise import Elementwise
from mcf.kernels.fold import Fold
from mcf.kernels.formats import BF16, FP32, FP64
from mcf.kernels.numba.compile import callbacks, calls, memory, sweeps, vector_loops
from mcf.kernels.numba.compile.instructions import (
    accumulate,
    element,
    jit,
    usual_nan,
)
from mcf.kernels.numba.compile.settings import Settings


def fold(spec: Fold, kind: str, text: str, numbers: Mapping[str, int]) -> Any:
    """Compile the callback of one generated source of a fold, with these sizes as constants."""
    register = spec.register
    settings = Settings(register, register, (("rc", register),))
    algorithms = {"term": spec.term, "merge": spec.merge, "combine": spec.combine}
    namespace: dict[str, Any] = {
        name: calls.algorithm(settings, each) for name, each in algorithms.items()
    }
    count = sum(spec.components) + 2
    # A lane that a loop reads and a lane that it writes never overlap here.
    namespace["lane"] = memory.loading(register, register, count - 1, count)
    namespace["store"] = memory.storing(register, register, count - 1, count)
    namespace["peek"] = memory.loading(register, register, count - 2, count)
    namespace |= {"prefetch": memory.prefetch, "put": memory.put}
    k = 0
    for o, (components, fmt) in enumerate(zip(spec.components, spec.formats, strict=True)):
        for c in range(components):
            namespace[f"load_{o}_{c}"] = memory.loading(register, fmt, k, count)
            k += 1
    return callback(text, f"<mcf numba {kind} {spec.name}>", {**namespace, **numbers})


@functools.cache
def _common() -> dict[str, Any]:
    return {
        "prefer_wide_vectors": memory.prefer_wide_vectors,
        "word": memory.word,
        "number": memory.number,
        "advance": memory.advance,
        "claim": memory.claim,
        "usual_nan": usual_nan,
        "over": vector_loops.over(),
        "over_one": vector_loops.over(1),
        "jit": jit,
    }


def callback(text: str, filename: str, names: Mapping[str, Any]) -> callbacks.Callback:
    """Compile the function `kernel` of a source in a namespace as a callback void(uint64)."""
    namespace = _common() | names
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    exec(compile(text, filename, "exec", dont_inherit=True), namespace)
    return callbacks.compiled(namespace["kernel"])
