"""Numba's part of a loop: primitives, the algorithms bound to them, and the compilation.

Imported where a loop has to be compiled, and not before: Numba's compiler takes a while.
"""

from __future__ import annotations

import functools
import linecache
from collections.abc import Mapping
from typing import Any

import numba
import numpy as np

from mcf.kernels.bind import Algorithm, Binder
from mcf.kernels.elementwise import Elementwise
from mcf.kernels.fold import Fold
from mcf.kernels.formats import BF16, FP32, FP64, Format
from mcf.kernels.numba import keys, loops, memory
from mcf.kernels.numba.instructions import (
    INNER,
    accumulate,
    element,
    jit,
    primitives,
    rounding,
    usual_nan,
)


def _jit_sums(function: Any) -> Any:
    return numba.njit(function, forceinline=True, fastmath={"contract"}, **INNER)


class _Binder(Binder):
    """Binds an algorithm again where it calls something else by now: its loop has another key."""

    def identity(self, function: Algorithm) -> Any:
        return keys.algorithm(function, self._slots.items())


@functools.cache
def bindings(
    register: Format, arithmetic: Format, roundings: Any, slots: Any, payloads: bool
) -> Binder:
    """Binds algorithms as functions that Numba inlines."""
    return _Binder(
        jit,
        primitives(register, arithmetic, dict(roundings), payloads) | {"gather": memory.gather},
        dict(slots),
    )


def elementwise(spec: Elementwise, text: str, chunk: int) -> Any:
    """The callback of a declaration: of its `element_loops.source`, where CHUNK is `chunk`."""
    register = spec.register
    codes = {code.field for code in spec.codes}
    payloads = any(f.format != BF16 and f.name not in codes for f in spec.fields)
    bind = bindings(register, spec.arithmetic, spec.roundings, spec.slots, payloads)
    number = np.float32 if register == FP32 else np.float64
    namespace: dict[str, Any] = {
        "ZERO": number(0),
        "function": bind(spec.function),
        "NONE": np.int32(0),
        "CHUNK": chunk,
        "accumulate": accumulate,
    }
    if spec.sums is not None:
        table = primitives(register, spec.arithmetic, dict(spec.roundings), payloads)
        namespace["sum_terms"] = _Binder(_jit_sums, table, dict(spec.slots))(spec.sums)
    namespace["element"] = element
    namespace |= {name: bind(each) for name, each in spec.helpers().items()}
    count = len(spec.fields) + 1
    namespace["load_lane"] = memory.loading(register, register, count - 1, count)
    namespace["store_lane"] = memory.storing(register, register, count - 1, count)
    namespace["store_total"] = memory.storing(FP64, FP64, count - 1, count)
    for k, field in enumerate(spec.fields):
        pair = spec.packed and not field.uniform
        loading = memory.loading_pair if pair else memory.loading
        storing = memory.storing_pair if pair else memory.storing
        namespace[f"load_{field.name}"] = loading(register, field.format, k, count)
        if field.written:
            namespace[f"store_{field.name}"] = storing(register, field.format, k, count)
            namespace[f"round_{field.name}"] = rounding(register, field.format, payloads)
    return callback(text, f"<mcf numba {spec.name} {spec.serial}>", namespace)


def fold(spec: Fold, kind: str, text: str, numbers: Mapping[str, int]) -> Any:
    """The callback of a fold: of one of its texts, over these numbers."""
    bind = bindings(FP64, FP64, (("rc", FP64),), (), True)
    algorithms = {"term": spec.term, "merge": spec.merge, "combine": spec.combine}
    namespace: dict[str, Any] = {name: bind(each) for name, each in algorithms.items()}
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
