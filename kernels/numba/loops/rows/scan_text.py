"""The text of running sums and products (`mcf.kernels.row_tasks`): one reading, one writing.

A row is cut into chunks whose trees fit into the cache. Of a chunk the blocks are combined upwards,
halving by halving, and what runs downwards again, each level a loop that vectorises; a chunk of
usual numbers is summed by the network alone, which has the same bits there. Whole chunks are the
blocks of a tree of their own, of which those are kept that something still waits for: one for each
power of two, as the digits of a counter.
"""

from __future__ import annotations

from mcf.kernels.numba.compile.vector_loops import step
from mcf.kernels.numba.loops.rows import narrow_text
from mcf.kernels.numba.runtime import team
from mcf.kernels.row_tasks import Narrow

# Elements of a chunk, a power of two: its levels are 3 * 8 * terms * CHUNK bytes.
CHUNK = 1 << 10
# What is computed beyond the last block fills a vector, or two: turns of a level are a multiple.
WHOLE = 16
# Of the blocks' first halves what runs up to them, of every other level, begins here.
HALF = CHUNK // 2 + 3 * WHOLE
# Numbers of a component on all levels, with room for those beyond, in whole vectors. No multiple of
# a page: what lies whole pages apart shares lines of the cache.
SIZE = 2 * HALF - 8
# Levels of chunks, more than there are bits of an address.
_LEVELS = 64
# Turns of a loop between two requests for what comes next, and for how many numbers they are.
PIECE, AHEAD = 128, 48
# Sums of a chunk of numbers below it, and of what runs before, stay within the range.
HUGE = 2.0**1000


def room(terms: int, count: int = 0, narrow: bool = False) -> int:
    """Numbers that a thread needs: three for each level, two for each of chunks.

    Of numbers that are kept narrower a chunk of what is read and one of what is written.
    """
    return terms * (3 * SIZE + 2 * _LEVELS + 2 * SIZE * narrow)


def source(terms: int, name: str = "", narrow: Narrow | None = None) -> str:
    """The loop; `name` is one of `mcf.kernels.row_tasks`."""

    def each(form: str) -> str:
        return "(" + "".join(f"{form.format(k=k)}, " for k in range(terms)) + ")"

    def at_level(first: int, size: int = SIZE, place: str = "CHUNK - (CHUNK >> level)") -> str:
        return each(f"advance(work, {first} + {{k}} * {size} + {place})")

    s, e, d, p = (each(c + "{k}") for c in "sedr")
    names = {c: [f"{c}{k}" for k in range(terms)] for c in "sedr"}
    rising, falling = ([n for c in some for n in names[c]] for some in ("sed", "red"))
    # Elements of even places are wanted again on the way down, side by side.
    up = [
        f"first = load_s({s}, 2 * i)",
        f"store_e({e}, i, first)",
        f"store_d({d}, i, algorithm(first, load_s({s}, 2 * i + 1)))",
    ]
    # From what runs up to each block to what runs up to its halves.
    down = [
        f"before = load_r({p}, i)",
        f"store_d({d}, 2 * i, before)",
        f"store_d({d}, 2 * i + 1, algorithm(before, load_e({e}, i)))",
    ]
    # The next place by an address of its own: LLVM would carry it from turn to turn, which does not
    # vectorise.
    last = [
        f"store_d({d}, 2 * i, algorithm(load_r({p}, i), load_e({e}, i)))",
        f"store_d({d}, 2 * i + 1, load_r({each('n{k}')}, i))",
    ]
    chunks = 3 * terms * SIZE
    more, taken, put, far = _ends(terms, narrow)
    # One component is the network already.
    bare = name == "cumsum" and terms > 1
    ending = [*falling, *(f"n{k}" for k in range(terms))]
    bodies = {"up": (rising, up), "down": (falling, down), "last": (ending, last)}
    lines = more
    for loop, (arguments, body) in bodies.items():
        lines += step(loop, "i", arguments, body)
        if bare:
            sums = [line.replace("algorithm(", "network(") for line in body]
            lines += step(f"bare_{loop}", "i", arguments, sums)

    def looped(loop: str, arguments: list[str], depth: int) -> str:
        """Turns turn, ..., stop - 1 of one of them, of the network alone where that will do."""
        general, alone = (
            f"over(turn, stop, {one}, ({', '.join(arguments)},))" for one in (loop, f"bare_{loop}")
        )
        found = ["if usual:", f"    {alone}", "else:", f"    {general}"] if bare else [general]
        return "\n".join(" " * depth + line for line in found)

    numbers = "load(x[{k}], i)" if narrow is None else "load_s(x, i)[{k}]"
    checked = _indented(16, _checked(terms, numbers)) if bare else ""
    held, size = (terms, 8) if narrow is None else (narrow.count, int(narrow.format.itemsize))
    asked = [narrow_text.asked(c, held, size, "first", "count") for c in ("x", "out")]
    lines += [
        "@jit",
        "def fetch(x, out, first, count):",
        *("    " + line for some in asked for line in some),
        "",
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
    outs = {_of(held, "word(data, 5 + {k})")}
    given = {_of(held, f"word(data, {5 + held} + {{k}})")}
    zero = {each("0.0")}
"""
        + "\n".join("    " + line for line in team.ITEMS)
        + f"""
            work = advance(works, arrival * {room(terms, 0, narrow is not None)})
            before = zero
            for begin in range(0, count, CHUNK):
                here = item * count + begin
                length = min(CHUNK, count - begin)
{_indented(16, taken)}
                # What is read and written next comes while this is computed.
                lines = AHEAD if length == CHUNK else 0
{checked}
                top = 0
                s = x
                while length >> top > 1:
                    level = top
                    d, e = {at_level(0)}, {at_level(terms * SIZE)}
                    {unpacked("s", terms)}
                    {unpacked("e", terms)}
                    {unpacked("d", terms)}
                    size = length >> top
                    turns = size >> 1
                    if top > 0:
                        turns = (turns + WHOLE - 1) & -WHOLE
                    for turn in range(0, turns, PIECE):
                        fetch({far}, ahead, lines)
                        ahead += lines
                        stop = min(turn + PIECE, turns)
{looped("up", rising, 24)}
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
                # What runs up to each block. Before the first of a row there is nothing.
                p = {at_level(2 * terms * SIZE, place="(top & 1) * HALF")}
                store_d(p, 0, before)
                store_d(p, 1, after)
                if top == 0:
                    store_d(out, 0, after)
                while top > 0:
                    level = top - 1
                    e = {at_level(terms * SIZE)}
                    {unpacked("r", terms, "p")}
                    {unpacked("e", terms)}
                    size = length >> level
                    if level == 0:
                        d = out
                        {unpacked("d", terms)}
                        {unpacked("n", terms, each("advance(r{k}, 1)"))}
                        for turn in range(0, size >> 1, PIECE):
                            fetch({far}, ahead, lines)
                            ahead += lines
                            stop = min(turn + PIECE, size >> 1)
{looped("last", ending, 28)}
                        if size & 1 == 1:
                            store_d(d, size - 1, joined(load_r(p, size >> 1), load_e(e, size >> 1)))
                        if begin == 0:
                            store_d(d, 0, load_e(e, 0))
                    else:
                        place = (level & 1) * HALF
                        d = {at_level(2 * terms * SIZE, place="place")}
                        {unpacked("d", terms)}
                        turn, stop = 0, ((size >> 1) + WHOLE) & -WHOLE
{looped("down", falling, 24)}
                        if begin == 0:
                            store_d(d, 1, load_e(e, 0))
                    p = d
                    top -= 1
{_indented(16, put)}
                before = after
"""
    )


def _of(count: int, form: str) -> str:
    return "(" + "".join(f"{form.format(k=k)}, " for k in range(count)) + ")"


def _indented(depth: int, lines: list[str]) -> str:
    return "\n".join(" " * depth + line for line in lines)


def _ends(terms: int, narrow: Narrow | None) -> tuple[list[str], list[str], list[str], str]:
    """Steps, what comes before and after a chunk is computed, and whose next numbers are fetched.

    A chunk of narrow numbers has places of its own for what is read and what is written.
    """
    if narrow is None:
        x, out = (_of(terms, f"advance({c}[{{k}}], here)") for c in ("given", "outs"))
        return [], [f"x = {x}", f"out = {out}", "ahead = CHUNK"], [], "x, out"
    first = terms * (3 * SIZE + 2 * _LEVELS)
    places = [
        _of(terms, f"advance(work, {first} + {k} * {SIZE})") for k in ("{k}", f"({terms} + {{k}})")
    ]
    # Of another kind than what is read, since the compiler is told that kinds do not overlap.
    steps = narrow_text.entering(narrow, terms) + narrow_text.leaving(narrow, terms, "d")
    x, out = (narrow_text.members(c, terms) for c in ("x", "out"))
    given, outs = (narrow_text.members(c, narrow.count) for c in ("given", "outs"))
    taken = [f"x = {places[0]}", f"out = {places[1]}", "ahead = here + CHUNK"]
    taken += [f"over(0, length, entering, (here, {x}, {given},))"]
    return steps, taken, [f"over(0, length, leaving, (here, {outs}, {out},))"], "given, outs"


def _checked(terms: int, numbers: str) -> list[str]:
    """Whether the network alone has the bits of the sum: components are usual, none overflows.

    A zero that the network ends in is then +0, as the plain sum is: a leading component goes
    through additions alone, and of these -0 comes only of two, which there are not, whatever runs
    before.
    """
    found = ["left = 0", "for i in range(length):"]
    found += [f"    v = {numbers.format(k=0)}"]
    found += ["    left += 1 if (abs(v) < HUGE) & (bits64(v) != LOWEST) else 0"]
    for k in range(1, terms):
        found += ["for i in range(length):"]
        found += [f"    left += 1 if abs({numbers.format(k=k)}) < HUGE else 0"]
    found += [f"usual = left == {terms} * length"]
    found += [f"usual = usual & (abs(before[{k}]) < HUGE)" for k in range(terms)]
    return found


def unpacked(name: str, terms: int, whole: str = "") -> str:
    """The statement that gives the members of a tuple names of their own."""
    return f"{', '.join(f'{name}{k}' for k in range(terms))}, = {whole or name}"
