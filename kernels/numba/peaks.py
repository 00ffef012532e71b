"""Extremes of rows by their first components: one reading, in vectors.

Lanes are neighbours in memory, which are of several rows, of one or of both: the elements of a row
that are a multiple of `fold` apart share a lane. Each lane keeps its largest element, where that
is, and its second largest, which says in the end whether the row is decided.
"""

from __future__ import annotations

import functools
import struct
from array import array
from collections.abc import Sequence
from typing import Any

import torch

from mcf.kernels.numba import objects, stored, team
from mcf.kernels.numba.loops import step
from mcf.kernels.row_tasks import RowTask

NAMES = frozenset({"highest", "lowest"})
# Lanes at a time: what is kept of them stays in the first level of the cache.
_TILE = 512
# So many lanes are enough for vectors, and so few elements of them are not worth it.
_WIDE, _NARROW = 64, 16
# Turns that lanes are for: as many again take longer to be put together.
_TURNS = 8
# Turns ahead for which memory is asked: no processor guesses what four at a time need.
_AWAY = 4
# Rows that are turned at a time.
_ROWS = 64
# How far apart their elements are then: not a multiple of what shares lines of the cache.
_APART = _ROWS + 8

_WORDS = (
    *("shares", "parts", "works", "index", "first", "table"),
    *("count", "inner", "fold", "tiles", "rows", "room"),
)
_ADDRESSES = frozenset({"shares", "works", "index", "first", "table"})
# "x" is what is given; of a lane "t" is the largest, "u" the second, "p" the turn of the largest;
# "s", "v" and "q" are the same of another lane, so that loads and stores do not overlap.
_LETTERS = dict.fromkeys("xtupsvq", 1)


def _taken(element: str, place: str) -> list[str]:
    """Statements that bring one more element to a lane; a NaN stays the second largest."""
    return [
        f"v = load_x((x,), {element})[0] * sign",
        "above = v > top",
        "low = top if above else v",
        "second = low if low > second else second",
        "second = v if v != v else second",
        f"place = {place} if above else place",
        "top = v if above else top",
    ]


_LOADED = ["top, second, place = load_t((t,), l)[0], load_u((u,), l)[0], load_p((p,), l)[0]"]
_KEPT = [
    "store_t((t,), l, (top,))",
    "store_u((u,), l, (second,))",
    "store_p((p,), l, (place,))",
]


def _text() -> str:
    given = ["x", "t", "u", "p", "m", "sign", "wide"]
    lines = step(
        "begun",
        "l",
        given,
        [
            "store_t((t,), l, (load_x((x,), l)[0] * sign,))",
            "store_u((u,), l, (-INF,))",
            "store_p((p,), l, (0.0,))",
        ],
    )
    lines += step("one", "l", given, [*_LOADED, *_taken("l", "m"), *_KEPT])
    four = [line for r in range(4) for line in _taken(f"l + {r} * wide", f"m + {r}.0")]
    lines += step("four", "l", given, [*_LOADED, *four, *_KEPT])
    # Turns as places, of which the first lanes' are a multiple of the fold.
    lines += step("placed", "l", ["p", "fold"], ["store_p((p,), l, (load_p((p,), l)[0] * fold,))"])
    merged = [
        *_LOADED,
        "v, third, other = load_s((s,), l)[0], load_v((w,), l)[0], load_q((q,), l)[0] + half",
        "above = v > top",
        "low = top if above else v",
        "second = low if low > second else second",
        "second = third if third > second else second",
        "second = v if v != v else second",
        "second = third if third != third else second",
        "place = other if above else place",
        "top = v if above else top",
    ]
    lines += step("merged", "l", ["t", "u", "p", "s", "w", "q", "half"], [*merged, *_KEPT])
    words = "\n".join(
        f"    {name} = {'word' if name in _ADDRESSES else 'number'}(data, {k})"
        for k, name in enumerate(_WORDS)
    )
    return (
        "\n".join(lines)
        + f"""
@jit
def finished(data, index, row, begin, inner, top, second, place, scale, least):
    # Infinities and NaN leave it open too.
    decided = second < top - (abs(top) * scale + least)
    put(index, row, int(place) if decided else -1)
    moved = number(data, MOVED)
    for v in range(moved):
        given = number(word(data, MOVED + 1 + moved + v), begin + int(place) * inner)
        put(word(data, MOVED + 1 + v), row, given)

def kernel(data):
    prefer_wide_vectors()
{words}
    sign, scale, least = load(table, 0), load(table, 1), load(table, 2)
"""
        + "\n".join("    " + line for line in team.ITEMS)
        + f"""
            t = advance(works, arrival * room)
            u, p = advance(t, {_TILE}), advance(t, {2 * _TILE})
            if fold == 0:
                # Short rows side by side: turned, their elements are neighbours.
                row = item * {_ROWS}
                lanes, wide, turns = min(rows - row, {_ROWS}), {_APART}, count
                x = advance(t, {3 * _TILE})
                outer = row // inner
                column = row - outer * inner
                at = outer * inner * count + column
                for l in range(lanes):
                    if inner == 1:
                        for i in range(0, count, 8):
                            prefetch(first, at + i + {_ROWS} * count)
                    for i in range(count):
                        put(x, i * {_APART} + l, number(first, at + i * inner))
                    column, at = column + 1, at + 1
                    if column == inner:
                        column = 0
                        at += inner * (count - 1)
                own, rest = lanes, 0
            else:
                outer, column = item // tiles, item % tiles * {_TILE}
                own = min(inner - column, {_TILE})
                wide, lanes, turns = inner * fold, own * fold, count // fold
                x = advance(first, outer * count * inner + column)
                row, rest = outer * inner + column, (count - turns * fold) * inner
            over(0, lanes, begun, (x, t, u, p, 0.0, sign, wide))
            x = advance(x, wide)
            m = 1
            while m + 4 <= turns:
                for r in range(4):
                    for l in range(0, lanes, 8):
                        prefetch(x, (r + {_AWAY}) * wide + l)
                over(0, lanes, four, (x, t, u, p, float(m), sign, wide))
                x = advance(x, 4 * wide)
                m += 4
            while m < turns:
                over(0, lanes, one, (x, t, u, p, float(m), sign, wide))
                x = advance(x, wide)
                m += 1
            # What is left over is less than a turn.
            over(0, rest, one, (x, t, u, p, float(m), sign, wide))
            half = fold >> 1
            if half > 0:
                over(0, lanes, placed, (p, float(fold)))
            while half > 0:
                s, w = advance(t, half * inner), advance(u, half * inner)
                q = advance(p, half * inner)
                over(0, half * inner, merged, (t, u, p, s, w, q, float(half)))
                half = half >> 1
            outer = row // inner
            column = row - outer * inner
            at = outer * inner * count + column
            for l in range(own):
                top, second, place = load_t((t,), l)[0], load_u((u,), l)[0], load_p((p,), l)[0]
                finished(data, index, row + l, at, inner, top, second, place, scale, least)
                column, at = column + 1, at + 1
                if column == inner:
                    column, at = 0, at + inner * (count - 1)
"""
    )


@functools.cache
def _loop() -> objects.Native:
    text = _text()

    def make() -> tuple[Any, str]:
        from mcf.kernels.numba import compiler

        return compiler.peaks(text, _LETTERS, len(_WORDS))

    return stored.native(("peaks", text), make)


def _fold(count: int, inner: int) -> int:
    """How many elements of a row share a turn; 0 where rows are done one after the other."""
    fold = 1
    while 2 * fold * inner <= _WIDE and 2 * fold * _TURNS <= count:
        fold *= 2
    return fold if fold * inner >= _NARROW else 0


def run(task: RowTask, shape: tuple[int, int], addresses: Sequence[int]) -> None:
    """See `mcf.kernels.row_tasks`."""
    (rows, count), inner = shape, task.inner
    fold = _fold(count, inner)
    room = 3 * _TILE + (0 if fold else _APART * count)
    tiles = -(-inner // _TILE)
    items = rows // inner * tiles if fold else -(-rows // _ROWS)
    threads = torch.get_num_threads() if rows * count > team.SERIAL else 1
    parts = max(1, min(threads, items))
    shares = team.shares(items, parts)
    work = torch.empty(parts * room, dtype=torch.float64, device="cpu")
    digits, least = task.options
    sign = 1.0 if task.name == "highest" else -1.0
    numbers = struct.pack("=3d", sign, 2.0 ** (3 - digits), 2.0 ** (least + 2))
    table = array("d", numbers)
    index, first = addresses[0], addresses[1 + task.moved]
    places = shares.buffer_info()[0], parts, work.data_ptr(), index, first, table.buffer_info()[0]
    moved = [*addresses[1 : 1 + task.moved], *addresses[2 + task.moved :]]
    words = array("Q", [*places, count, inner, fold, tiles, rows, room, task.moved, *moved])
    with stored.lock:
        address = _loop().address
    team.run(address, words.buffer_info()[0], parts)
