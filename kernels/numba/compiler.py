"""Numba's part of a loop: primitives, the algorithms bound to them, and the compilation.

Imported where a loop has to be compiled, and not before: Numba's compiler takes a while.
"""

from __future__ import annotations

import functools
import itertools
import linecache
from collections.abc import Mapping
from typing import Any

import numba
import numpy as np

from mcf.kernels.elementwise import Elementwise
from mcf.kernels.elimination import Elimination
from mcf.kernels.fold import Fold
from mcf.kernels.formats import BF16, FP32, FP64
from mcf.kernels.numba import inlining, loops, memory, sweeps
from mcf.kernels.numba.instructions import accumulate, element, jit, usual_nan
from mcf.kernels.numba.settings import Settings


def elementwise(spec: Elementwise, text: str, chunk: int) -> Any:
    """The callback of a declaration: of its `element_loops.source`, where CHUNK is `chunk`."""
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
    """The callback of a fold: of one of its texts, over these numbers."""
    settings = Settings(FP64, FP64, (("rc", FP64),))
    algorithms = {"term": spec.term, "merge": spec.merge, "combine": spec.combine}
    namespace: dict[str, Any] = {
        name: inlining.algorithm(settings, each) for name, each in algorithms.items()
    }
    count = sum(spec.components) + 2
    # A lane which a loop reads and another which it writes never coincide there.
    namespace["lane"] = memory.loading(FP64, FP64, count - 1, count)
    namespace["store"] = memory.storing(FP64, FP64, count - 1, count)
    namespace["peek"] = memory.loading(FP64, FP64, count - 2, count)
    k = 0
    for o, (components, fmt) in enumerate(zip(spec.components, spec.formats, strict=True)):
        for c in range(components):
            namespace[f"load_{o}_{c}"] = memory.loading(FP64, fmt, k, count)
            k += 1
    return callback(text, f"<mcf numba {kind} {spec.name}>", {**namespace, **numbers})


def elimination(spec: Elimination, text: str, pad: int) -> Any:
    """The callback of an elimination in a panel."""
    fmt, register = spec.format, spec.format.register
    settings = Settings(register, fmt, (("rc", fmt),))
    namespace: dict[str, Any] = {
        name: inlining.algorithm(settings, getattr(spec, name))
        for name in ("head", "quotient", "update")
    }
    namespace |= {"put": memory.put, "PAD": pad}
    count = 4 * spec.terms
    for k, (operand, term) in enumerate(itertools.product("axpw", range(spec.terms))):
        held = register if operand in "pw" else fmt
        namespace[f"load_{operand}_{term}"] = memory.loading(register, held, k, count)
        namespace[f"store_{operand}_{term}"] = memory.storing(register, held, k, count)
    return callback(text, f"<mcf numba {spec.kind} {fmt.name} {spec.terms}>", namespace)


@functools.cache
def _common() -> dict[str, Any]:
    return {
        "prefer_wide_vectors": memory.prefer_wide_vectors,
        "word": memory.word,
        "number": memory.number,
        "advance": memory.advance,
        "claim": memory.claim,
        "usual_nan": usual_nan,
        "over": loops.over(),
        "over_one": loops.over(1),
        "jit": jit,
    }


def callback(text: str, filename: str, names: Mapping[str, Any]) -> Any:
    """The function `kernel` of a text over some names, as Numba's callback void(uint64)."""
    namespace = _common() | names
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    exec(compile(text, filename, "exec", dont_inherit=True), namespace)
    return numba.cfunc("void(uint64)", error_model="numpy")(namespace["kernel"])


def compiled(text: str, filename: str, names: Mapping[str, Any]) -> tuple[Any, str]:
    """A `callback` as it is: Numba's library and the name of it there."""
    function = callback(text, filename, names)
    return function._library, function.native_name
