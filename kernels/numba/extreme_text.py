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
    return 0


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
    looked at side by side, and the extreme is written to all of their places.
    """
    keys = [f"key{k}" for k in range(terms)]
    words = ["moved, places = number(data, 5), word(data, 6)"]
    words += [f"{k} = word(data, 7 + moved + {j})" for j, k in enumerate(keys)]
    beyond = "<" if name.endswith("largest") else ">"
    return f"""
{_begin(*words)}
            base = item * count
            place = 0
            best = {_loads(keys, "base")}
            start = 0
            while start < count:
                stop = min(start + {_AHEAD}, count)
                first, left = best[0], 0
                for i in range(base + start, base + stop):
                    left += 1 if load(key0, i) {beyond} first else 0
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


def searching(terms: int) -> str:
    """The places of numbers in one sequence."""
    there, wanted = ([f"{c}{k}" for k in range(terms)] for c in "sw")
    words = ["size, out = number(data, 5), word(data, 7)"]
    words += [f"{k} = word(data, {8 + j})" for j, k in enumerate([*there, *wanted])]
    return f"""
{_begin(*words)}
            for i in range(item * count, item * count + count):
                new = {_loads(wanted, "i")}
                low, left = 0, size
                while left > 0:
                    half = left - (left >> 1)
                    if algorithm({_loads(there, "low + half - 1")}, new):
                        low += half
                    left = left >> 1
                put(out, i, low)
"""
