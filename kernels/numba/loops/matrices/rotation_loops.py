"""Jacobi sweeps on the CPU, all of a matrix's in one call of a compiled loop."""

from __future__ import annotations

import functools
from array import array
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.kernels.numba.cache import keys, objects
from mcf.kernels.numba.compile import rewrite, stored
from mcf.kernels.numba.loops.matrices import row_folds
from mcf.kernels.numba.loops.matrices.panel_text import PanelText, lanes
from mcf.kernels.numba.runtime import team
from mcf.kernels.reflection import ComplexFold
from mcf.kernels.rotation import SWEEPS, VANISHED, Rotations, next_order

WORDS = (
    *("bases", "shares", "parts", "order", "places", "done"),
    *("rows", "counted", "columns", "width", "sweeps"),
)


def letters(spec: Rotations) -> dict[str, int]:
    """Return component counts of rows, halved sums, pairs' products, and angles."""
    own = spec.terms // spec.parts
    return {
        "x": spec.terms,
        "t": 2 + spec.parts,
        "p": 2 * own + spec.terms,
        "q": own + spec.terms + 2,
    }


def sizes(spec: Rotations, rows: int, width: int) -> list[tuple[int, int]]:
    """Return numbers and component counts of a thread's scratch memory, without the rows."""
    pairs, (_, *behind) = rows // 2 + lanes(), letters(spec).values()
    return [*zip((width, pairs, pairs), behind, strict=True)]


def source(spec: Rotations) -> str:
    """Return the kernel; an item is a matrix x."""
    text = PanelText(WORDS, ("bases", "shares", "order", "places", "done"), letters(spec), lanes())
    n = spec.terms // spec.parts
    text.sizes(spec.terms, spec.parts)
    text.step(
        "angle",
        "at_p at_q p tolerance",
        "h = load_p(at_p, p + c)",
        f"x, y, size, slope = rotation(h[:{n}], h[{n}:{2 * n}], h[{2 * n}:], tolerance)",
        "store_q(at_q, p + c, x + y + (size, slope))",
    )
    text.step(
        "rotate",
        "at_x first second cosine sine",
        "x, y = load_x(at_x, first + c), load_x(at_x, second + c)",
        "x, y = rotated(cosine, sine, x, y)",
        "store_x(at_x, first + c, x)",
        "store_x(at_x, second + c, y)",
    )
    d = text.own
    text.add(
        d,
        "base = item * rows * columns",
        "t = arrival * width",
        f"p = arrival * (rows // 2 + {text.pad})",
        "place = arrival * 2 * rows",
        "tolerance = power(number(done, 0))",
        "sweep = 0",
        "finished = False",
        "while sweep < sweeps and not finished:",
    )
    _vanish(text, d + 1)
    text.add(
        d + 1,
        "largest, steepest = 0.0, 0.0",
        "for k in range(rows):",
        "    put(places, place + k, k)",
        "for turn_of_rows in range(rows - 1):",
        "    for pair in range(rows // 2):",
        "        first = base + number(places, place + pair) * columns",
        "        second = base + number(places, place + rows // 2 + pair) * columns",
    )
    (_halves if n == 1 else _folds)(text, d + 3, spec)
    text.add(d + 3, "store_p(at_p, p + pair, a + b + g)")
    text.add(
        d + 2,
        # All pairs together, so that latencies of roots and quotients overlap.
        text.whole("0", "rows // 2"),
        text.run("angle", "0"),
        "last = columns",
        "for pair in range(rows // 2):",
        "    first = base + number(places, place + pair) * columns",
        "    second = base + number(places, place + rows // 2 + pair) * columns",
        "    found = load_q(at_q, p + pair)",
        f"    cosine, sine = found[:{n}], found[{n}:{n + spec.terms}]",
        f"    size, slope = found[{n + spec.terms}], found[{n + spec.terms + 1}]",
        "    if size > largest or size != size:",
        "        largest = size",
        "    if slope > steepest or slope != slope:",
        "        steepest = slope",
        f"    {text.run('rotate', '0')}",
    )
    text.add(
        d + 2,
        "for k in range(rows):",
        "    put(places, place + rows + k, number(places, place + number(order, k)))",
        "for k in range(rows):",
        "    put(places, place + k, number(places, place + rows + k))",
    )
    text.add(
        d + 1,
        "finished = converged(largest, steepest, float(counted), tolerance)",
        "sweep += 1",
    )
    _vanish(text, d)
    text.add(d, "if finished:", "    put(done, 1 + item, 1)")
    return text.text()


def _vanish(text: PanelText, depth: int) -> None:
    """Set rows to zero that are nearly zero."""
    text.add(
        depth,
        "for k in range(rows):",
        "    gone = True",
        "    for c in range(width):",
        "        gone = gone and size_of(load_x(at_x, base + k * columns + c)) < VANISHED",
        "    for c in range(width if gone else 0):",
        "        store_x(at_x, base + k * columns + c, ZEROS)",
    )


def _halves(text: PanelText, depth: int, spec: Rotations) -> None:
    """Sum by halving, where the first level is fused with the products."""
    cells = ["{0}[{1}] * {2}[{1}]".format(x, "{k}", y) for x, y in ("xx", "yy", "xy")]
    found = [" + ".join(cell.format(k=k) for k in range(spec.parts)) for cell in cells]
    found += ["x[1] * y[0] - x[0] * y[1]"] * (spec.parts == 2)
    text.steps += ["@jit", "def both(x, y):", f"    return {', '.join(found)}", ""]
    added = "".join(f"x[{k}] + y[{k}], " for k in range(len(found)))
    text.steps += ["@jit", "def added(x, y):", f"    return {added}", ""]
    text.step(
        "products",
        "at_x at_t t first second half",
        "x_0, x_1 = load_x(at_x, first + c), load_x(at_x, first + half + c)",
        "y_0, y_1 = load_x(at_x, second + c), load_x(at_x, second + half + c)",
        "store_t(at_t, t + c, added(both(x_0, y_0), both(x_1, y_1)))",
    )
    text.step(
        "halve",
        "at_t t half",
        "store_t(at_t, t + c, added(load_t(at_t, t + c), load_t(at_t, t + half + c)))",
    )
    text.add(
        depth,
        "half = width // 2",
        "last = half",
        text.run("products", "0"),
        "count = half",
        "if width % 2:",
        "    x, y = load_x(at_x, first + width - 1), load_x(at_x, second + width - 1)",
        "    store_t(at_t, t + half, both(x, y))",
        "    count = half + 1",
        "while count > 1:",
        "    half = count // 2",
        "    last = half",
        f"    {text.run('halve', '0')}",
        "    if count % 2:",
        "        store_t(at_t, t + half, load_t(at_t, t + count - 1))",
        "        half += 1",
        "    count = half",
        "sums = load_t(at_t, t)",
        "a, b, g = (sums[0],), (sums[1],), sums[2:]",
    )


def _folds(text: PanelText, depth: int, spec: Rotations) -> None:
    """Compute three folds in the order of a matrix product."""
    loads = {"x": "load_x(at_x, first + {})", "y": "load_x(at_x, second + {})"}
    products = {"a": ("x", "x"), "b": ("y", "y"), "g": ("x", "y")}
    row_folds.inner(text, depth, loads, products, "width", kinds=spec.parts)
    own = spec.terms // spec.parts
    text.add(depth, f"a, b = a[:{own}], b[:{own}]")


@functools.cache
def _compiled(spec: Rotations) -> objects.Native:
    text = source(spec)

    def make() -> tuple[Any, str]:
        from mcf.kernels.numba.compile import compiler

        return rewrite.rewritten(compiler.rotations(spec, text, letters(spec)))

    used = (spec.fold.term, spec.fold.merge, spec.fold.combine, spec.settle)
    used += (spec.rotation, spec.rotated, spec.converged)
    if isinstance(spec.fold, ComplexFold):
        used += (spec.fold.alone, spec.fold.joined, spec.conjugate)
    algorithms = [keys.algorithm(f) for f in used]
    return stored.native(
        ("rotations", text, algorithms, spec.terms, spec.fold.state, VANISHED), make
    )


def address(spec: Rotations) -> int:
    """Return the address of the loop."""
    with stored.lock:
        return _compiled(spec).address


def order(rows: int) -> array[int]:
    """Return the permutation that the field `order` points to."""
    return array("q", next_order(rows))


def rotate(
    spec: Rotations, x: Sequence[Tensor], width: int, counted: int, tolerance: int
) -> Tensor:
    """Rotate, see `mcf.kernels.executor.Executor.rotate`."""
    batch, rows, columns = x[0].shape
    threads = torch.get_num_threads() if x[0].numel() * rows > team.SERIAL else 1
    parts = max(1, min(threads, batch))
    kinds = sizes(spec, rows, width)
    scratch = [torch.zeros(n, parts * size, dtype=torch.float64, device="cpu") for size, n in kinds]
    places = array("q", bytes(16 * parts * rows))
    places_next = order(rows)
    done = array("q", [tolerance, *([0] * batch)])
    bases = array("Q", [c.data_ptr() for c in (*x, *(c for m in scratch for c in m))])
    shares = team.shares(batch, parts)
    given = {"bases": bases, "shares": shares, "order": places_next, "places": places, "done": done}
    words = {name: memory.buffer_info()[0] for name, memory in given.items()}
    words |= {"parts": parts, "rows": rows, "counted": counted, "columns": columns}
    words |= {"width": width, "sweeps": SWEEPS}
    table = array("Q", [words[name] for name in WORDS])
    team.run(address(spec), table.buffer_info()[0], parts)
    return torch.tensor(done[1:], device="cpu") != 0
