"""Generated source of extremes, running extremes and searches, one element at a time."""

from __future__ import annotations

import sys

from mcf.kernels.formats import FP64, Format
from mcf.kernels.narrow_keys import HUGE
from mcf.kernels.numba.compile.vector_loops import step
from mcf.kernels.numba.loops.moves import MOVES
from mcf.kernels.numba.runtime import team


def _loads(keys: list[str], at: str, load: str = "load") -> str:
    return "(" + "".join(f"{load}({k}, {at}), " for k in keys) + ")"


def _begin(*words: str) -> str:
    lines = [
        "def kernel(data):",
        "    rows, count = number(data, 0), number(data, 1)",
        "    shares, parts, works = word(data, 2), number(data, 3), word(data, 4)",
        *(f"    {line}" for line in words),
        *(f"    {line}" for line in team.ITEMS),
    ]
    return "\n".join(lines)


def room(terms: int, count: int) -> int:
    """Return the 64-bit units of workspace per thread."""
    return 2 * TOGETHER


def source(terms: int, name: str, fmt: Format = FP64, keys: Format = FP64) -> str:
    """Return the loop `name` of `mcf.kernels.row_tasks` for a format of numbers and one of keys."""
    if name.startswith("running"):
        return running(terms, name, fmt, keys)
    if not name.startswith("search"):
        return extreme(terms)
    return searching(terms) if terms > 1 else searching_words()


# Elements of a running extreme that are compared together.
_AHEAD = 64


def extreme(terms: int) -> str:
    """Return the loop for extremes of rows."""
    keys = [f"key{k}" for k in range(terms)]
    words = ["moved = number(data, 5)"]
    words += [f"{k} = word(data, 7 + moved + {j})" for j, k in enumerate(keys)]
    return f"""
{_begin(*words)}
            base = item * count
            place = 0
            best = {_loads(keys, "base")}
            for i in range(1, count):
                new = {_loads(keys, "base + i")}
                if algorithm(best, new):
                    best = new
                    place = i
            put(word(data, 6), item, place)
            for v in range(moved):
                x = word(data, {7 + terms} + moved + v)
                put(word(data, 7 + v), item, number(x, base + place))
"""


def running(terms: int, name: str, fmt: Format, held: Format) -> str:
    """Return the loop for running extremes.

    Most blocks of elements have all first components beyond the extreme so far: they are compared
    as vectors, and the extreme is written to all their indices. Components of pairs that are not
    canonical must exceed it by some units in the last place. Narrow pairs compare float64 sums,
    which are the first components of their keys.
    """
    take, give = MOVES[fmt]
    load = "load" if held == FP64 else "load_key"
    keys = [f"key{k}" for k in range(terms)]
    words = ["moved, places = number(data, 5), word(data, 6)"]
    words += [f"{k} = word(data, 7 + moved + {j})" for j, k in enumerate(keys)]
    beyond, towards = ("<", "-") if name.endswith("largest") else (">", "+")
    if held == FP64:
        # Most pairs are their own keys.
        own = "new = key(new) if new[0] + new[1] != new[0] else new" if terms == 2 else ""
        less = f"edge {towards} (2.0**-50 * abs(edge) + 2.0**-1072)" if terms == 2 else "edge"
        # A pair whose sum is infinite has the largest number for its first component, or NaN.
        end = sys.float_info.max if beyond == "<" else -sys.float_info.max
        near = f"(edge if edge {beyond} 0.0 else {end!r})"
        edge, looked = f"edge = {less} if abs(edge) < HUGEST else {near}", "load(key0, i)"
    else:
        own, looked = f"new = key(new, LIMIT, {HUGE})", "load_key(key0, i) + load_key(key1, i)"
        # Beyond the limit a sum is not its key. All numbers are beyond NaN.
        limit = "LIMIT" if beyond == "<" else "-LIMIT"
        edge = f"edge = edge if edge {beyond} {limit} else {limit}"
    return f"""
{_begin(*words)}
            base = item * count
            place = 0
            new = {_loads(keys, "base", load)}
            {own}
            best = new
            start = 0
            while start < count:
                stop = min(start + {_AHEAD}, count)
                edge, left = best[0], 0
                {edge}
                for i in range(base + start, base + stop):
                    left += 1 if {looked} {beyond} edge else 0
                if left == stop - start:
                    for i in range(base + start, base + stop):
                        put(places, i, place)
                    for v in range(moved):
                        out, x = word(data, 7 + v), word(data, {7 + terms} + moved + v)
                        same = {take}(x, base + place)
                        for i in range(base + start, base + stop):
                            {give}(out, i, same)
                else:
                    for i in range(start, stop):
                        new = {_loads(keys, "base + i", load)}
                        {own}
                        if i > 0 and algorithm(best, new):
                            best = new
                            place = i
                        put(places, base + i, place)
                    for v in range(moved):
                        out, x = word(data, 7 + v), word(data, {7 + terms} + moved + v)
                        for i in range(base + start, base + stop):
                            {give}(out, i, {take}(x, base + number(places, i)))
                start = stop
"""


# Numbers searched together, so that their memory latencies overlap.
TOGETHER = 64


def searching(terms: int) -> str:
    """Return the loop that searches numbers in one sorted sequence.

    The elements compared depend on a number only through the index where a step begins, so numbers
    take their steps together. First components decide unless they are equal or NaN.
    """
    there, wanted = ([f"{c}{k}" for k in range(terms)] for c in "sw")
    words = ["size, total, out = number(data, 5), number(data, 6), word(data, 9)"]
    words += [f"{k} = word(data, {10 + j})" for j, k in enumerate([*there, *wanted])]
    return f"""
{_begin(*words)}
            lows = advance(works, arrival * {TOGETHER})
            past = min(item * count + count, total)
            for first in range(item * count, past, {TOGETHER}):
                some = min({TOGETHER}, past - first)
                for l in range(some):
                    put(lows, l, 0)
                left = size
                while left > 0:
                    half = left - (left >> 1)
                    for l in range(some):
                        low = number(lows, l)
                        at = low + half - 1
                        t, w = load(s0, at), load(w0, first + l)
                        # No branch that half of the numbers take: nothing could guess it.
                        goes_on, stays = t < w, t > w
                        if not (goes_on | stays):
                            there = {_loads(there, "at")}
                            goes_on = algorithm(there, {_loads(wanted, "first + l")})
                        put(lows, l, low + (half & -(1 if goes_on else 0)))
                    left = left >> 1
                for l in range(some):
                    put(out, first + l, number(lows, l))
"""


def searching_words() -> str:
    """Return the vectorised search for single components: lanes are step starts and elements there.

    The first levels read from a table of the elements that their steps compare, level by level,
    which stays in the cache: level k has 2**k entries, and an entry's index is the path to it in
    binary.
    """
    lines = step(
        "above",
        "l",
        ["lows", "paths", "levels", "w0", "half", "begin"],
        [
            "low, path = load_d((lows,), l)[0], load_e((paths,), l)[0]",
            "t, w = load_s((levels,), int(begin + path)), load_r((w0,), l)",
            "goes_on = algorithm(t, w)",
            "store_d((lows,), l, (low + half if goes_on else low,))",
            "store_e((paths,), l, (2.0 * path + 1.0 if goes_on else 2.0 * path,))",
        ],
    )
    lines += step(
        "below",
        "l",
        ["lows", "s0", "w0", "half"],
        [
            "low = load_d((lows,), l)[0]",
            "t, w = load_s((s0,), int(low + half) - 1), load_r((w0,), l)",
            "store_d((lows,), l, (low + half if algorithm(t, w) else low,))",
        ],
    )
    words = ["size, total, depth = number(data, 5), number(data, 6), number(data, 7)"]
    words += [
        "out, s0, wanted, levels = word(data, 9), word(data, 10), word(data, 11), word(data, 12)"
    ]
    return (
        "\n".join(lines)
        + f"""
{_begin("prefer_wide_vectors()", *words)}
            lows = advance(works, arrival * {2 * TOGETHER})
            paths = advance(lows, {TOGETHER})
            past = min(item * count + count, total)
            for first in range(item * count, past, {TOGETHER}):
                some = min({TOGETHER}, past - first)
                w0 = advance(wanted, first)
                for l in range(some):
                    store_d((lows,), l, (0.0,))
                    store_e((paths,), l, (0.0,))
                left, begin = size, 0
                for _ in range(depth):
                    half = left - (left >> 1)
                    over(0, some, above, (lows, paths, levels, w0, float(half), float(begin)))
                    left, begin = left >> 1, 2 * begin + 1
                while left > 0:
                    half = left - (left >> 1)
                    over(0, some, below, (lows, s0, w0, float(half)))
                    left = left >> 1
                for l in range(some):
                    put(out, first + l, int(load_d((lows,), l)[0]))
"""
    )
