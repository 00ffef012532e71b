"""The CPU's loop of running extremes: one element after another, in the order of memory."""

from __future__ import annotations

import functools
from array import array
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.kernels.formats import FP64
from mcf.kernels.numba import keys as loop_keys
from mcf.kernels.numba import objects, stored, team
from mcf.kernels.numba.settings import Settings
from mcf.kernels.running import takes_over


def _source(terms: int) -> str:
    places = [f"key{k}" for k in range(terms)]
    best, new = (", ".join(f"{c}{k}" for k in range(terms)) + "," for c in "bn")

    def loads(at: str) -> str:
        return ", ".join(f"load({p}, {at})" for p in places) + ","

    return f"""
def kernel(data):
    rows, count, out = number(data, 0), number(data, 1), word(data, 2)
    {", ".join(places)}, = {", ".join(f"word(data, {3 + k})" for k in range(terms))},
    for row in range(rows):
        base = row * count
        place = 0
        {best} = {loads("base")}
        put(out, base, 0)
        for i in range(1, count):
            {new} = {loads("base + i")}
            if takes_over(({best}), ({new})):
                {best} = {new}
                place = i
            put(out, base + i, place)
"""


@functools.cache
def _loop(terms: int, largest: bool) -> objects.Native:
    text, algorithm = _source(terms), takes_over(terms, largest)

    def make() -> tuple[Any, str]:
        from mcf.kernels.numba import compiler, inlining, memory

        names = {
            "load": memory.loading(FP64, FP64, 0, 1),
            "put": memory.put,
            "takes_over": inlining.algorithm(Settings(FP64, FP64, ()), algorithm),
        }
        return compiler.compiled(text, "<mcf numba running extremes>", names)

    return stored.native(("running extremes", text, loop_keys.algorithm(algorithm)), make)


def running_extremes(keys: Sequence[Tensor], largest: bool) -> Tensor:
    """See `mcf.kernels.executor.Executor`."""
    rows, count = keys[0].shape
    out = torch.empty((rows, count), dtype=torch.int64, device="cpu")
    with stored.lock:
        address = _loop(len(keys), largest).address
    table = array("Q", [rows, count, out.data_ptr(), *(k.data_ptr() for k in keys)])
    team.run(address, table.buffer_info()[0], 1)
    return out
