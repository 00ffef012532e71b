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


def elementwise(spec: Elementwise, text: str, chunk: int) -> Any:
    """Compile the callback of an `element_loops.source`, with CHUNK equal to `chunk`."""
    register = spec.register
    codes = {code.field for code in spec.codes}
    payloads = any(f.format != BF16 and f.name not in codes for f in spec.fields)
    settings = Settings(register, spec.arithmetic, spec.roundings, payloads)
    slots = dict(spec.slots)
    number = np.float32 if register == FP32 else np.float64
    namespace: dict[str, Any] = {
        "ZERO": number(0),
        "function": calls.algorithm(settings, spec.function, slots),
        "NONE": np.int32(0),
        "CHUNK": chunk,
        "accumulate": accumulate,
    }
    count = len(spec.fields) + 1
    namespace["store_total"] = memory.storing(FP64, FP64, count - 1, count)
    if spec.long:
        namespace["sweep"] = sweeps.over(spec, settings)
        return callback(text, f"<mcf numba {spec.name} {spec.serial}>", namespace)
    if spec.sums is not None:
        contracted = settings._replace(flags=("contract",))
        namespace["sum_terms"] = calls.algorithm(contracted, spec.sums, slots)
    namespace["element"] = element
    for name, each in spec.helpers().items():
        namespace[name] = calls.algorithm(settings, each, slots)
    namespace["load_lane"] = memory.loading(register, register, count - 1, count)
    namespace["store_lane"] = memory.storing(register, register, count - 1, count)
    for k, field in enumerate(spec.fields):
        pair = spec.packed and not field.uniform
        loading = memory.loading_pair if pair else memory.loading
        storing = memory.storing_pair if pair else memory.storing
        namespace[f"load_{field.name}"] = loading(register, field.format, k, count)
        if field.written:
            namespace[f"store_{field.name}"] = storing(register, field.format, k, count)
            namespace[f"round_{field.name}"] = calls.rounding(settings, field.format)
    return callback(text, f"<mcf numba {spec.name} {spec.serial}>", namespace)


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
