"""The text of running sums and products (`mcf.kernels.row_tasks`): one reading, one writing.

A row is cut into chunks whose trees fit into the cache. Of a chunk the blocks are combined upwards,
halving by halving, and what runs downwards again, each level a loop that vectorises. Whole chunks
are the blocks of a tree of their own, of which those are kept that something still waits for: one
for each power of two, as the digits of a counter.
"""

from __future__ import annotations

from mcf.kernels.numba import team
from mcf.kernels.numba.loops import step

# Elements of a chunk, a power of two: its levels are 3 * 8 * terms * CHUNK bytes.
CHUNK = 1 << 10
# Levels of chunks, more than there are bits of an address.
_LEVELS = 64


def room(terms: int, count: int = 0) -> int:
    """Numbers that a thread needs: three for each level, two for each of chunks."""
    return terms * (3 * CHUNK + 2 * _LEVELS)


def source(terms: int, name: str = "") -> str:
    """The loop; `name` is one of `mcf.kernels.row_tasks`."""

    def each(form: str) -> str:
        return "(" + "".join(f"{form.format(k=k)}, " for k in range(terms)) + ")"

    def at_level(first: int, size: int = CHUNK, place: str = "CHUNK - (CHUNK >> level)") -> str:
        return each(f"advance(work, {first} + {{k}} * {size} + {place})")

    s, e, d, r = (each(c + "{k}") for c in "sedr")
    names = {c: [f"{c}{k}" for k in range(terms)] for c in "sedr"}
    rising, falling = ([n for c in some for n in names[c]] for some in ("sed", "red"))
    # Elements of even places are wanted again on the way down, side by side.
    up = [
        f"first = load_s({s}, 2 * i)",
        f"store_e({e}, i, first)",
        f"store_d({d}, i, algorithm(first, load_s({s}, 2 * i + 1)))",
    ]
    down = [
        # Both from what runs up to i - 1: what one turn hands to the next does not vectorise.
        f"store_d({d}, 2 * i - 1, load_r({r}, i - 1))",
        f"store_d({d}, 2 * i, algorithm(load_r({r}, i - 1), load_e({e}, i)))",
    ]
    chunks = 3 * terms * CHUNK
    lines = [
        *step("up", "i", rising, up),
        *step("down", "i", falling, down),
        "@jit",
        "def joined(x, y):",
        "    return algorithm(x, y)",
    ]
    return (
        "\n".join(lines)
        + f"""
def kernel(data):
    prefer_wide_vectors()
    rows, count = number(data, 0), number(data, 1)
    shares, parts, works = word(data, 2), number(data, 3), word(data, 4)
    outs, given = {each("word(data, 5 + {k})")}, {each(f"word(data, {5 + terms} + {{k}})")}
    zero = {each("0.0")}
"""
        + "\n".join("    " + line for line in team.ITEMS)
        + f"""
            work = advance(works, arrival * {room(terms)})
            before = zero
            for begin in range(0, count, CHUNK):
                here = item * count + begin
                x = {"(" + "".join(f"advance(given[{k}], here), " for k in range(terms)) + ")"}
                out = {"(" + "".join(f"advance(outs[{k}], here), " for k in range(terms)) + ")"}
                length = min(CHUNK, count - begin)
                top = 0
                s = x
                while length >> top > 1:
                    level = top
                    d, e = {at_level(0)}, {at_level(terms * CHUNK)}
                    {unpacked("s", terms)}
                    {unpacked("e", terms)}
                    {unpacked("d", terms)}
                    size = length >> top
                    over(0, size >> 1, up, ({", ".join(rising)},))
                    if size & 1 == 1:
                        store_e(e, size >> 1, load_s(s, size - 1))
                    s = d
                    top += 1
                after = load_s(s, 0)
                if length == CHUNK:
                    m = begin // CHUNK + 1
                    level = 0
                    while (m >> level) & 1 == 0:
                        after = joined(load_s({at_level(chunks, _LEVELS, "level")}, 0), after)
                        level += 1
                    store_d({at_level(chunks, _LEVELS, "level")}, 0, after)
                    later = level
                    if m >> level > 1:
                        level += 1
                        while (m >> level) & 1 == 0:
                            level += 1
                        p = {at_level(chunks + terms * _LEVELS, _LEVELS, "level")}
                        after = joined(load_s(p, 0), after)
                    level = later
                    store_d({at_level(chunks + terms * _LEVELS, _LEVELS, "level")}, 0, after)
                elif begin > 0:
                    after = joined(before, after)
                if top == 0:
                    store_d(out, 0, after)
                else:
                    level = top - 1
                    store_d({at_level(2 * terms * CHUNK)}, 0, after)
                while top > 0:
                    level = top - 1
                    r, e = {at_level(2 * terms * CHUNK)}, {at_level(terms * CHUNK)}
                    d = out
                    if top > 1:
                        level = top - 2
                        d = {at_level(2 * terms * CHUNK)}
                    first = load_e(e, 0)
                    if begin > 0:
                        first = joined(before, first)
                    store_d(d, 0, first)
                    size = length >> (top - 1)
                    if size & 1 == 0:
                        store_d(d, size - 1, load_r(r, (size >> 1) - 1))
                    {unpacked("r", terms)}
                    {unpacked("e", terms)}
                    {unpacked("d", terms)}
                    over(1, (size + 1) >> 1, down, ({", ".join(falling)},))
                    top -= 1
                before = after
"""
    )


def unpacked(name: str, terms: int) -> str:
    """The statement that gives the members of a tuple names of their own."""
    return f"{', '.join(f'{name}{k}' for k in range(terms))}, = {name}"
