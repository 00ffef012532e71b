"""Steps of loops over rows whose numbers are narrower in memory (`mcf.kernels.row_tasks.Narrow`).

Addresses remain those of the tensors, and indices count elements.
"""

from __future__ import annotations

from mcf.kernels.numba.compile.vector_loops import step
from mcf.kernels.row_tasks import Narrow

# Bytes of a cache line.
_LINE = 64


def names(letter: str, count: int) -> list[str]:
    """Return the variables of the components' addresses."""
    return [f"{letter}{k}" for k in range(count)]


def _tuple(variables: list[str]) -> str:
    return f"({', '.join(variables)},)"


def entering(narrow: Narrow, terms: int) -> list[str]:
    """Return the step that reads numbers from `start` on."""
    s, x = names("s", terms), names("x", narrow.count)
    body = f"store_s({_tuple(s)}, l, enter(load_x({_tuple(x)}, start + l)))"
    return step("entering", "l", ["start", *s, *x], [body])


def leaving(narrow: Narrow, terms: int, source: str) -> list[str]:
    """Return the step that writes numbers from `start` on; `source` is their operand letter."""
    s, y = names("s", terms), names("y", narrow.count)
    body = f"store_y({_tuple(y)}, start + l, leave(load_{source}({_tuple(s)}, l)))"
    return step("leaving", "l", ["start", *y, *s], [body])


def apart(narrow: Narrow, terms: int) -> list[str]:
    """Return gathers and scatters at `bases` through w, whose arithmetic vectorises separately."""
    s, w = names("s", terms), names("w", narrow.count)
    x, y = names("x", narrow.count), names("y", narrow.count)
    there = "start + number(bases, l)"
    taken = f"store_w({_tuple(w)}, l, load_x({_tuple(x)}, {there}))"
    put = f"store_y({_tuple(y)}, {there}, load_w({_tuple(w)}, l))"
    widened = f"store_s({_tuple(s)}, l, enter(load_w({_tuple(w)}, l)))"
    rounded = f"store_w({_tuple(w)}, l, leave(load_s({_tuple(s)}, l)))"
    return [
        *step("taken", "l", ["bases", "start", *w, *x], [taken]),
        *step("widened", "l", [*s, *w], [widened]),
        *step("rounded", "l", [*w, *s], [rounded]),
        *step("put_back", "l", ["bases", "start", *y, *w], [put]),
    ]


def members(variable: str, count: int) -> str:
    """Return the components of a tuple, as arguments."""
    return ", ".join(f"{variable}[{k}]" for k in range(count))


def asked(addresses: str, count: int, size: int, first: str, length: str) -> list[str]:
    """Return statements that prefetch elements of `size` bytes of components."""
    lines = [f"for l in range(0, {length}, {_LINE // size}):"]
    return lines + [
        f"    prefetch({addresses}[{k}], ({first} + l) * {size} >> 3)" for k in range(count)
    ]
