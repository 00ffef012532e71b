"""The texts of extremes, running extremes and searches: one element after another."""

from __future__ import annotations

from mcf.kernels.numba import team


def _loads(keys: list[str], at: str) -> str:
    return "(" + "".join(f"load({k}, {at}), " for k in keys) + ")"


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
    """Words that a thread needs."""
    return TOGETHER


def source(terms: int, name: str) -> str:
    """The loop of a name of `mcf.kernels.row_tasks`."""
    return searching(terms) if name.startswith("search") else extreme(terms, name)


# Elements of a running extreme that are looked at together.
_AHEAD = 64


def extreme(terms: int, name: str) -> str:
    """Extremes, at the end of a row or of what there is so far."""
    if name.startswith("running"):
        return running(terms, name)
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


def running(terms: int, name: str) -> str:
    """Running extremes.

    Elements whose first components are all beyond the extreme so far are what most are: they are
    looked at side by side, and the extreme is written to all of their places. Those of pairs that
    are not canonical are beyond it by a few of its places.
    """
    keys = [f"key{k}" for k in range(terms)]
    words = ["moved, places = number(data, 5), word(data, 6)"]
    words += [f"{k} = word(data, 7 + moved + {j})" for j, k in enumerate(keys)]
    beyond, towards = ("<", "-") if name.endswith("largest") else (">", "+")
    # Most pairs are their own keys.
    own = "new = key(new) if new[0] + new[1] != new[0] else new" if terms == 2 else ""
    edge = f"edge {towards}= 2.0**-50 * abs(edge) + 2.0**-1072" if terms == 2 else "pass"
    return f"""
{_begin(*words)}
            base = item * count
            place = 0
            new = {_loads(keys, "base")}
            {own}
            best = new
            start = 0
            while start < count:
                stop = min(start + {_AHEAD}, count)
                edge, left = best[0], 0
                if abs(edge) < HUGEST:
                    {edge}
                for i in range(base + start, base + stop):
                    left += 1 if load(key0, i) {beyond} edge else 0
                if left == stop - start:
                    for i in range(base + start, base + stop):
                        put(places, i, place)
                    for v in range(moved):
                        out, x = word(data, 7 + v), word(data, {7 + terms} + moved + v)
                        same = number(x, base + place)
                        for i in range(base + start, base + stop):
                            put(out, i, same)
                else:
                    for i in range(start, stop):
                        new = {_loads(keys, "base + i")}
                        {own}
                        if i > 0 and algorithm(best, new):
                            best = new
                            place = i
                        put(places, base + i, place)
                    for v in range(moved):
                        out, x = word(data, 7 + v), word(data, {7 + terms} + moved + v)
                        for i in range(base + start, base + stop):
                            put(out, i, number(x, base + number(places, i)))
                start = stop
"""


# Numbers that are looked for together: what one waits for from memory the others do meanwhile.
TOGETHER = 16


def searching(terms: int) -> str:
    """The places of numbers in one sequence.

    Which elements are looked at depends on a number through where a step begins alone, so that
    numbers take their steps together. First components decide unless they are equal or NaN.
    """
    there, wanted = ([f"{c}{k}" for k in range(terms)] for c in "sw")
    words = ["size, total, out = number(data, 5), number(data, 6), word(data, 8)"]
    words += [f"{k} = word(data, {9 + j})" for j, k in enumerate([*there, *wanted])]
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
