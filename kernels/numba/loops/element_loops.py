"""The CPU loop of an `Elementwise` declaration: an item is a range of one tensor's elements."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

from mcf.kernels.elementwise import Elementwise
from mcf.kernels.formats import FP32, FP64
from mcf.kernels.numba.cache import keys, objects
from mcf.kernels.numba.compile import loop as loops
from mcf.kernels.numba.compile import stored
from mcf.kernels.numba.compile.language import nothing

# Iterations whose terms are added in registers before they are added in float64. An iteration is of
# one element, or of two packed ones.
CHUNK = 4096

_kernels: dict[Elementwise, Loop] = {}


class Table(NamedTuple):
    """Argument struct of a loop: addresses of arrays, except for `parts` and `entries`.

    Args:
        shares: created by `team.shares` for this call.
        parts: number of shares of the items.
        works: unused, as `entries`.
        entries: unused.
        addresses: of the tensors, uint64 [rows, fields].
        rows: the row of each item, int64.
        starts: the first element of each item, int64.
        stops: the element after its last, int64.
        scalars: register format, [rows, scalars].
        sums: float64 [items, terms].
    """

    shares: int = 0
    parts: int = 0
    works: int = 0
    entries: int = 0
    addresses: int = 0
    rows: int = 0
    starts: int = 0
    stops: int = 0
    scalars: int = 0
    sums: int = 0


def elements(item, addresses, rows, starts, stops, scalars):
    """Run the kernel on one item."""
    row = number(rows, item)
    given = advance(addresses, row * FIELDS)
    sweep(number(starts, item), number(stops, item), given, scalars, row, ())


def summed_elements(item, addresses, rows, starts, stops, scalars, sums):
    """Run the kernel on one item, and write its sums.

    The order of the sums over CHUNK elements depends on the processor's vectors only.
    """
    row, last = number(rows, item), number(stops, item)
    given, totals = advance(addresses, row * FIELDS), ZEROS
    for start in range(number(starts, item), last, CHUNK):
        totals = sweep(start, min(start + CHUNK, last), given, scalars, row, totals)
    store(0, spaced(advance(sums, item * TERMS), 1), 0, totals)


def formula(spec: Elementwise) -> str:
    """Return the source of the formula of an element, see `mcf.kernels.numba.compile.sweeps`."""
    names = [*(f.name for f in spec.fields if f.read), *spec.scalars]
    results = [spec.kept(field) for _, field in spec.stores]
    lines = [
        *spec.decode_statements(),
        f"{spec.outputs()} = function({spec.call()})",
        *spec.draw_statements("i"),
        *spec.store_statements(),
    ]
    if spec.sums is not None:
        results.append(f"*sum_terms({spec.call_of(spec.sums)})")
    lines.append(f"return {', '.join(results)},")
    return "\n    ".join([f"def element({', '.join(['i', *names])}):", *lines]) + "\n"


class Loop:
    """Compiled loop of a declaration; see `team.run`.

    Args:
        spec: the declaration.

    Attributes:
        address: of the loop.
    """

    def __init__(self, spec: Elementwise) -> None:
        self.address, self._keep = loop_of(spec).native(*parts_of(spec))
        self._spec = spec

    @functools.cached_property
    def _streamed(self) -> objects.Native:
        return loop_of(self._spec).native(*parts_of(self._spec), streamed=True)

    @property
    def streamed(self) -> int:
        """Return the address of the loop whose stores bypass the cache, see `rewrite.rewritten`."""
        return self._streamed.address


def loop_of(spec: Elementwise) -> loops.Loop:
    """Return the loop of a declaration as a function."""
    wide = spec.sums is not None or spec.long or any(f.format in (FP32, FP64) for f in spec.fields)
    # A vector of 16-bit numbers is two of float32 registers already. Random bits (a hash) are a
    # dependent chain, whose gaps another vector fills; without it two more run out of registers.
    two = wide or spec.random or spec.arithmetic != FP32

    def intrinsics() -> Mapping[str, Any]:
        from mcf.kernels.numba.compile import sweeps

        return {"sweep": sweeps.sweep(spec, formula(spec), 2 if two else 1)}

    # Vectors of 512 bits pay for more than 16-bit numbers alone. A count is exact in any chunks.
    names = {} if wide else {"prefer_wide_vectors": nothing}
    names |= {"FIELDS": len(spec.fields), "CHUNK": 1 << 62 if spec.long else CHUNK << spec.packed}
    function = elements if spec.sums is None else summed_elements
    operands = [(FP64, FP64, spec.sum_count)]
    return loops.Loop(
        function, spec.sum_count, operands, names=names, ordered=spec.long, intrinsics=intrinsics
    )


def parts_of(spec: Elementwise) -> tuple[Any, ...]:
    """Return all that determines the intrinsic of a loop."""
    others = [*spec.helpers().values(), *([] if spec.sums is None else [spec.sums])]
    return (
        formula(spec),
        [keys.algorithm(each, spec.slots) for each in (spec.function, *others)],
        [spec.register, spec.arithmetic, *spec.roundings],
        [(f.name, f.format, f.read, f.written, f.uniform, f.table) for f in spec.fields],
        [[*spec.scalars], [*map(list, spec.stores)], spec.sum_count, spec.counts],
        [spec.long, spec.few, spec.packed, spec.random],
        [keys.algorithm(each, spec.slots) for each in spec.calls],
    )


def build(spec: Elementwise) -> Loop:
    """Return the compiled loop of a declaration, cached."""
    with stored.lock:
        if spec not in _kernels:
            _kernels[spec] = Loop(spec)
        return _kernels[spec]
