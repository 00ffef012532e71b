"""Loop of Jacobi's sweeps, see `mcf.kernels.rotation`; an item is a matrix."""

from __future__ import annotations

import functools
from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from mcf.kernels.formats import FP64
from mcf.kernels.numba.compile.loop import Loop
from mcf.kernels.numba.loops.matrices.folds import some_of
from mcf.kernels.numba.loops.matrices.matrix_loop import Call, addresses, matrices, wide
from mcf.kernels.rotation import SWEEPS, VANISHED, Rotations, places_of


def add_squares(c, x, halves, first, second, half):
    """Add the products of two columns."""
    one = gram(x[first + c], x[second + c])
    halves[c] = added(one, gram(x[first + half + c], x[second + half + c]))


def add_halves(c, halves, half):
    """Add two sums of products."""
    halves[c] = added(halves[c], halves[half + c])


def sums_by_halves(x, halves, first, second, width):
    """Return the squared norms of two rows of one component and their inner product."""
    half = width // 2
    over(0, half, add_squares, (x, halves, first, second, half))
    count = half
    if width % 2:
        halves[half] = gram(x[first + width - 1], x[second + width - 1])
        count = half + 1
    while count > 1:
        half = count // 2
        over(0, half, add_halves, (halves, half))
        if count % 2:
            halves[half] = halves[count - 1]
            half += 1
        count = half
    return halves[0]


def conjugates(x):
    """Return the conjugates of the numbers of a tree."""
    if COUNT == 2:
        return conjugate(x[0]), conjugate(x[1])
    return x


def sums_by_folds(x, first, second, width):
    """Return the squared norms of two rows and their inner product, in the order of a product."""
    a = b = g = alone(ZEROS, ZEROS)
    i = 0
    while i + COUNT <= width:
        u, v = some_of(x, first + i, 1), some_of(x, second + i, 1)
        p, q, r = tree(u, conjugates(u)), tree(v, conjugates(v)), tree(u, conjugates(v))
        if i == 0:
            a, b, g = p, q, r
        else:
            a, b, g = combine(a, p), combine(b, q), combine(g, r)
        i += COUNT
    while i < width:
        u, v = x[first + i], x[second + i]
        p, q = conjugate(u), conjugate(v)
        if i == 0:
            a, b, g = alone(u, p), alone(v, q), alone(u, q)
        else:
            a, b, g = joined(a, u, p), joined(b, v, q), joined(g, u, q)
        i += 1
    return total(a)[:OWN] + total(b)[:OWN] + total(g)


def plain_angle(c, pairs, angles, tolerance):
    """Compute the rotation of a pair of one component from its sums."""
    h = pairs[c]
    x, y, size, slope = plain_rotation(h[:1], h[1:2], h[2:], tolerance)
    angles[c] = x + y + (size, slope)


def angle(c, pairs, angles, tolerance):
    """Compute the rotation of a pair from its sums."""
    h = pairs[c]
    x, y, size, slope = rotation(h[:OWN], h[OWN:TWICE], h[TWICE:], tolerance)
    angles[c] = x + y + (size, slope)


def rotate_plain(c, x, first, second, cosine, sine):
    """Rotate a column of two rows of one component."""
    x[first + c], x[second + c] = plain_rotated(cosine, sine, x[first + c], x[second + c])


def rotate_number(c, x, first, second, cosine, sine):
    """Rotate a column of two rows."""
    x[first + c], x[second + c] = rotated(cosine, sine, x[first + c], x[second + c])


def clear_vanished(x, base, rows, columns, width, zeros):
    """Set rows to zero that are nearly zero."""
    for k in range(rows):
        gone = True
        for c in range(width):
            gone = gone and magnitude(x[base + k * columns + c]) < VANISHED
        for c in range(width if gone else 0):
            x[base + k * columns + c] = zeros


def sweep_rows(
    x, base, halves, pairs, angles, places, rows, counted, columns, width, sweeps, exponent, zeros,
    several,
):  # fmt: skip
    """Sweep until the rows are orthogonal, and return whether they are.

    `several` is None for numbers of one component, else 1.
    """
    prefer_wide_vectors()
    tolerance = power(exponent)
    half = rows // 2
    finished = False
    sweep = 0
    while sweep < sweeps and not finished:
        clear_vanished(x, base, rows, columns, width, zeros)
        largest = steepest = 0.0
        for turn in range(rows - 1):
            place = turn * rows
            for pair in range(half):
                first = base + places[place + pair] * columns
                second = base + places[place + half + pair] * columns
                if several is None:
                    pairs[pair] = sums_by_halves(x, halves, first, second, width)
                else:
                    pairs[pair] = sums_by_folds(x, first, second, width)
            # All pairs together, so that latencies of roots and quotients overlap.
            if several is None:
                over_padded(0, half, plain_angle, (pairs, angles, tolerance))
            else:
                over_padded(0, half, angle, (pairs, angles, tolerance))
            for pair in range(half):
                first = base + places[place + pair] * columns
                second = base + places[place + half + pair] * columns
                found = angles[pair]
                size, slope = found[-2], found[-1]
                if size > largest or size != size:
                    largest = size
                if slope > steepest or slope != slope:
                    steepest = slope
                if several is None:
                    arguments = (x, first, second, found[:1], found[1:-2])
                    over(0, columns, rotate_plain, arguments)
                else:
                    arguments = (x, first, second, found[:OWN], found[OWN:-2])
                    over(0, columns, rotate_number, arguments)
        finished = converged(largest, steepest, float(counted), tolerance)
        sweep += 1
    clear_vanished(x, base, rows, columns, width, zeros)
    return finished


def rotate_rows(
    item, x, halves, pairs, angles, places, done, rows, counted, columns, width, sweeps, exponent
):  # fmt: skip
    """Make the rows of a matrix orthogonal."""
    base = item * rows * columns
    done[item] = sweep_rows(
        x, base, halves, pairs, angles, places, rows, counted, columns, width, sweeps, exponent,
        ZEROS, SEVERAL,
    )  # fmt: skip


def scratch(spec: Rotations) -> dict[str, int]:
    """Return the component counts of halved sums, pairs' products, and angles."""
    own = spec.terms // spec.parts
    pairs = 2 * own + spec.terms
    return {"halves": 2 + spec.parts, "pairs": pairs, "angles": own + spec.terms + 2}


def sizes(rows: int, width: int) -> dict[str, int]:
    """Return the numbers of the scratch operands."""
    pad = wide(FP64)
    return {"halves": width} | dict.fromkeys(("pairs", "angles"), rows // 2 + pad)


def constants(spec: Rotations) -> dict[str, object]:
    """Return the numbers that the sweeps name."""
    own = spec.terms // spec.parts
    found = {"OWN": own, "TWICE": 2 * own, "SEVERAL": None if own == 1 else 1}
    zeros = (0.0,) * spec.terms
    return found | {"COUNT": spec.products.count, "ZEROS": zeros, "VANISHED": VANISHED}


def algorithms(spec: Rotations, plain: Rotations) -> dict[str, object]:
    """Return the algorithms that sweeps name, in several components and in one."""
    found = {"plain_rotation": plain.rotation, "plain_rotated": plain.rotated}
    return spec.algorithms | found


@functools.cache
def _loop(spec: Rotations) -> Loop:
    """Return the loop of sweeps."""
    given = {"x": spec.terms}, scratch(spec), ("places", "done")
    return matrices(rotate_rows, FP64, *given, algorithms(spec, spec), constants(spec))


@functools.lru_cache(16)
def order(rows: int) -> array[int]:
    """Return the row at each place in each round of a sweep."""
    return array("i", [place for turn in places_of(rows) for place in turn])


def rotate(
    spec: Rotations, x: Sequence[Tensor], width: int, counted: int, tolerance: int
) -> Tensor:
    """Rotate, see `mcf.kernels.executor.Executor.rotate`."""
    batch, rows, columns = x[0].shape
    integers = {"rows": rows, "counted": counted, "columns": columns, "width": width}
    integers |= {"sweeps": SWEEPS, "exponent": tolerance}
    call = Call(_loop(spec), batch, x[0].numel() * rows, sizes(rows, width), **integers)
    done, places = array("i", bytes(4 * batch)), order(rows)
    tables = {"places": places.buffer_info()[0], "done": done.buffer_info()[0]}
    call.run(x=addresses(x), **tables)
    return torch.tensor(done, device="cpu") != 0
