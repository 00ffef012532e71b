"""Numba's part of a loop: primitives, the algorithms bound to them, and the compilation.

It is imported only when a loop has to be compiled, since importing Numba's compiler is slow.
"""

from __future__ import annotations

import functools
import linecache
from collections.abc import Mapping
from typing import Any

import numpy as np

from mcf.kernels.decomposition import Decomposition
from mcf.kernels.elementwise import Elementwise
from mcf.kernels.elimination import Elimination
from mcf.kernels.fold import Fold
from mcf.kernels.formats import BF16, FP32, FP64, Format
from mcf.kernels.numba.compile import callbacks, calls, memory, sweeps, vector_loops
from mcf.kernels.numba.compile.instructions import (
    accumulate,
    bits64,
    call,
    element,
    jit,
    power,
    usual_nan,
)
from mcf.kernels.numba.compile.settings import Settings
from mcf.kernels.refinement import Refinement
from mcf.kernels.reflection import ComplexFold, Reflection
from mcf.kernels.rotation import VANISHED, Rotations


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


def elimination(spec: Elimination, text: str, letters: Mapping[str, int], own: str) -> Any:
    """Compile the callback of an elimination; `letters` as in `rotations`, `own` for scratch."""
    fmt, register = spec.format, spec.format.register
    settings = Settings(register, fmt, (("rc", fmt),))
    namespace: dict[str, Any] = {
        name: calls.algorithm(settings, getattr(spec, name))
        for name in ("head", "quotient", "update", "magnitude", "product", "minus")
    }
    held = {name: (count, register if name in own else fmt) for name, count in letters.items()}
    number = np.float32 if register == FP32 else np.float64
    namespace |= {"put": memory.put, "REAL": number, **_accesses(register, held)}
    return callback(text, f"<mcf numba {spec.kind} {fmt.name} {spec.terms}>", namespace)


def reflection(spec: Reflection, text: str, letters: Mapping[str, int]) -> Any:
    """Compile the callback of the reflections of a panel; `letters` as in `rotations`."""
    settings = Settings(FP64, FP64, (("rc", FP64),))
    fold = spec.fold
    algorithms = {"term": fold.term, "merge": fold.merge, "combine": fold.combine}
    others = ("scaled", "settle", "reflector", "quotient", "product", "minus", "update")
    for name in (*others, "difference", "magnitude"):
        algorithms[name] = getattr(spec, name)
    if isinstance(fold, ComplexFold):
        algorithms |= {"alone": fold.alone, "joined": fold.joined}
        algorithms |= {"conjugate": spec.conjugate, "turned": spec.turned}
    namespace: dict[str, Any] = {
        name: calls.algorithm(settings, each) for name, each in algorithms.items()
    }
    namespace |= _accesses(FP64, {name: (count, FP64) for name, count in letters.items()})
    zeros = (0.0,) * spec.terms
    namespace["TERMS"] = spec.terms
    namespace |= {"bits64": bits64, "power": power, "ZEROS": zeros, "ONES": (1.0, *zeros[1:])}
    return callback(text, f"<mcf numba reflection {spec.terms}>", namespace)


def rotations(spec: Rotations, text: str, letters: Mapping[str, int]) -> Any:
    """Compile the callback of Jacobi's sweeps; `letters` are component counts by operand letter."""
    settings = Settings(FP64, FP64, (("rc", FP64),))
    fold = spec.fold
    algorithms = {"term": fold.term, "merge": fold.merge, "combine": fold.combine}
    for name in ("settle", "rotation", "rotated", "converged"):
        algorithms[name] = getattr(spec, name)
    if isinstance(fold, ComplexFold):
        algorithms |= {"alone": fold.alone, "joined": fold.joined, "conjugate": spec.conjugate}
    namespace: dict[str, Any] = {
        name: calls.algorithm(settings, each) for name, each in algorithms.items()
    }
    namespace |= _accesses(FP64, {name: (count, FP64) for name, count in letters.items()})
    namespace |= {"put": memory.put, "power": power, "VANISHED": VANISHED}
    namespace |= {"ZEROS": (0.0,) * spec.terms, "TERMS": spec.terms}
    return callback(text, f"<mcf numba rotations {spec.parts} {spec.terms}>", namespace)


def refinement(spec: Refinement, text: str, letters: Mapping[str, int]) -> Any:
    """Compile the callback of refinements of an orthogonal matrix; `letters` as in `rotations`."""
    settings = Settings(FP64, FP64, (("rc", FP64),))
    fold = spec.fold
    algorithms = {"term": fold.term, "merge": fold.merge, "combine": fold.combine}
    for name in ("settle", "total", "difference", "fused", "quotient", "root"):
        algorithms[name] = getattr(spec, name)
    if isinstance(fold, ComplexFold):
        algorithms |= {"alone": fold.alone, "joined": fold.joined, "turned": spec.turned}
    namespace: dict[str, Any] = {
        name: calls.algorithm(settings, each) for name, each in algorithms.items()
    }
    namespace |= _accesses(FP64, {name: (count, FP64) for name, count in letters.items()})
    zeros = (0.0,) * spec.terms
    namespace |= {"put": memory.put, "power": power, "VANISHED": VANISHED}
    namespace |= {"ZEROS": zeros, "ONES": (1.0, *zeros[1:])}
    return callback(text, f"<mcf numba refinement {spec.parts} {spec.terms}>", namespace)


def decomposition(spec: Decomposition, text: str, letters: Mapping[str, int]) -> Any:
    """Compile the callback of whole decompositions; `letters` as in `rotations`."""
    settings = Settings(FP64, FP64, (("rc", FP64),))
    inner = spec.refinement
    folds = {"": (inner.fold, inner.settle), "_plain": (spec.plain, spec.settle_plain)}
    algorithms = {"root": spec.root, "root_plain": inner.root, "usual": spec.usual}
    algorithms |= {"tidy": spec.tidy, "total": inner.total, "quotient": inner.quotient}
    algorithms |= {"difference": inner.difference}
    for suffix, (fold, settle) in folds.items():
        algorithms |= {f"term{suffix}": fold.term, f"merge{suffix}": fold.merge}
        algorithms |= {f"combine{suffix}": fold.combine, f"settle{suffix}": settle}
    namespace: dict[str, Any] = {
        name: calls.algorithm(settings, each) for name, each in algorithms.items()
    }
    namespace |= _accesses(FP64, {name: (count, FP64) for name, count in letters.items()})
    zeros = (0.0,) * spec.terms
    namespace |= {"ZEROS": zeros, "ONES": (1.0, *zeros[1:]), "TERMS": spec.terms}
    namespace |= {"ZEROS_plain": (0.0,), "TERMS_plain": 1}
    namespace |= {"put": memory.put, "power": power, "bits64": bits64, "call": call}
    return callback(text, f"<mcf numba decomposition {spec.given}>", namespace)


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
