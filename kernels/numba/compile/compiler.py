"""Numba's part of a loop: primitives, the algorithms bound to them, and the compilation.

It is imported only when a loop has to be compiled, since importing Numba's compiler is slow.
"""

from __future__ import annotations

import functools
import linecache
from collections.abc import Mapping
from typing import Any

import numpy as np

from mcf.kernels import narrow_keys
from mcf.kernels.elementwise import Elementwise
from mcf.kernels.fold import Fold
from mcf.kernels.formats import BF16, FP16, FP32, FP64, Format
from mcf.kernels.numba.compile import bits, callbacks, inlining, memory, sweeps, vector_loops
from mcf.kernels.numba.compile.instructions import (
    accumulate,
    bits64,
    element,
    jit,
    usual_nan,
)
from mcf.kernels.numba.compile.settings import Settings
from mcf.kernels.row_tasks import RowTask


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
        "function": inlining.algorithm(settings, spec.function, slots),
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
        namespace["sum_terms"] = inlining.algorithm(contracted, spec.sums, slots)
    namespace["element"] = element
    for name, each in spec.helpers().items():
        namespace[name] = inlining.algorithm(settings, each, slots)
    namespace["load_lane"] = memory.loading(register, register, count - 1, count)
    namespace["store_lane"] = memory.storing(register, register, count - 1, count)
    for k, field in enumerate(spec.fields):
        pair = spec.packed and not field.uniform
        loading = memory.loading_pair if pair else memory.loading
        storing = memory.storing_pair if pair else memory.storing
        namespace[f"load_{field.name}"] = loading(register, field.format, k, count)
        if field.written:
            namespace[f"store_{field.name}"] = storing(register, field.format, k, count)
            namespace[f"round_{field.name}"] = inlining.rounding(settings, field.format)
    return callback(text, f"<mcf numba {spec.name} {spec.serial}>", namespace)


def fold(spec: Fold, kind: str, text: str, numbers: Mapping[str, int]) -> Any:
    """Compile the callback of one generated source of a fold, with these sizes as constants."""
    register = spec.register
    settings = Settings(register, register, (("rc", register),))
    algorithms = {"term": spec.term, "merge": spec.merge, "combine": spec.combine}
    namespace: dict[str, Any] = {
        name: inlining.algorithm(settings, each) for name, each in algorithms.items()
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


def rows(task: RowTask, text: str, letters: Mapping[str, int], sizes: Mapping[str, float]) -> Any:
    """Compile the callback of a task on rows.

    Args:
        task: the declaration.
        text: the source of the loop.
        letters: the number of components by operand letter.
        sizes: the constants that the source names.
    """
    settings = Settings(FP64, FP64, (("rc", FP64),))
    namespace: dict[str, Any] = {
        "algorithm": inlining.algorithm(settings, task.algorithm),
        "bits64": bits64,
        "load": memory.loading(FP64, FP64, 0, 1),
        "put": memory.put,
        "prefetch": memory.prefetch,
        **bits.NAMES,
        **sizes,
        "HUGEST": np.inf,
        "LOWEST": -(2**63),
        "HIGHEST": 2**63 - 1,
    }
    if task.key is not None:
        namespace["key"] = inlining.algorithm(settings, task.key)
    if task.network is not None:
        namespace["network"] = inlining.algorithm(settings, task.network)
    # Components that are moved without arithmetic; 16-bit ones as the upper bits of float32.
    carried, register = (FP64, FP64) if task.format == FP64 else (FP32, FP32)
    kinds = {
        "r": (task.keys, FP64),
        "c": (carried, register),
        "x": (BF16 if task.format == FP16 else task.format, register),
    }
    held = {c: (n, *kinds.get(c, (FP64, FP64))) for c, n in letters.items()}
    narrow = task.narrow
    if narrow is not None:
        settings = settings._replace(roundings=(("narrow", narrow.format),))
        namespace["enter"] = inlining.algorithm(settings, narrow.enter)
        namespace["leave"] = inlining.algorithm(settings, narrow.leave)
        # Operands, results and intermediate buffers.
        held |= dict.fromkeys("xy", (narrow.count, narrow.format, FP64))
        held["w"] = narrow.count, FP64, FP64
    namespace |= _accesses(FP64, held)
    namespace |= {
        "load_key": memory.loading(FP64, task.keys, 0, 1),
        "LIMIT": narrow_keys.limit(task.keys),
        "advance_key": bits.advancing(8 * int(task.keys.itemsize)),
        "advance_x": bits.advancing(8 * int(task.format.itemsize)),
    }
    return callback(text, f"<mcf numba {task.name} {task.terms}>", namespace)


def peaks(text: str, letters: Mapping[str, tuple[int, Format]], moved: int, keys: Format) -> Any:
    """Compile the callback of extremes by key; `letters` are components and formats.

    `moved` is the field of the argument struct that counts the tensors gathered at the extremes'
    indices. `keys` is the format of the keys.
    """
    namespace: dict[str, Any] = {
        "load": memory.loading(FP64, FP64, 0, 1),
        "put": memory.put,
        "prefetch": memory.prefetch,
        "advance_x": bits.advancing(8 * int(keys.itemsize)),
        **bits.NAMES,
        "INF": np.inf,
        "NAN": np.nan,
        "LIMIT": narrow_keys.limit(keys),
        "MOVED": moved,
        **_accesses(FP64, letters),
    }
    return callback(text, "<mcf numba peaks>", namespace)


def _accesses(
    register: Format, operands: Mapping[str, tuple[int, Format] | tuple[int, Format, Format]]
) -> dict[str, Any]:
    """Return loads and stores of the components of operands that do not overlap.

    An operand's registers may have a format of their own.
    """
    total = sum(count for count, *_ in operands.values())
    found: dict[str, Any] = {}
    index = 0
    for name, (count, fmt, *other) in operands.items():
        own = other[0] if other else register
        found[f"load_{name}"] = memory.loading_parts(own, fmt, index, total, count)
        found[f"store_{name}"] = memory.storing_parts(own, fmt, index, total, count)
        index += count
    return found


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
