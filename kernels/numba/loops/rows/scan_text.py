"""Generated source of running sums and products (`mcf.kernels.row_tasks`): one read, one write.

A row is cut into chunks whose trees fit into the cache. In a chunk the blocks are combined upwards,
halving by halving, and prefixes are passed downwards, each level a loop that vectorises. A chunk of
numbers in the normal range is summed by the network alone, which has the same bits there. Whole
chunks are the blocks of a second tree, which keeps one pending block for each power of two, as the
digits of a binary counter.
"""

from __future__ import annotations

from mcf.kernels.numba.compile.vector_loops import step
from mcf.kernels.numba.loops.rows import narrow_text
from mcf.kernels.numba.runtime import team
from mcf.kernels.row_tasks import Narrow

# Elements of a chunk, a power of two: its levels are 3 * 8 * terms * CHUNK bytes.
CHUNK = 1 << 10
# Padding beyond the last block fills a vector, or two: turns of a level are a multiple.
WHOLE = 16
# Offset of the prefixes of the blocks' first halves, on every other level.
HALF = CHUNK // 2 + 3 * WHOLE
# Numbers of a component on all levels, padded to whole vectors. Not a multiple of a page, since
# addresses whole pages apart compete for cache sets.
SIZE = 2 * HALF - 8
# Levels of chunks, more than an address has bits.
_LEVELS = 64
# Turns of a loop between two prefetches, and the numbers that they cover.
PIECE, AHEAD = 128, 48
# Sums of a chunk of numbers below it, plus their prefix, stay within the range.
HUGE = 2.0**1000


def room(terms: int, count: int = 0, narrow: bool = False) -> int:
    """Return the numbers of workspace per thread: three per level, two per level of chunks.

    Narrow numbers add one chunk for reads and one for writes.
    """
    return terms * (3 * SIZE + 2 * _LEVELS + 2 * SIZE * narrow)


def source(terms: int, name: str = "", narrow: Narrow | None = None) -> str:
    """Return the loop `name` of `mcf.kernels.row_tasks`."""

    def each(form: str) -> str:
        return "(" + "".join(f"{form.format(k=k)}, " for k in range(terms)) + ")"

    def at_level(first: int, size: int = SIZE, place: str = "CHUNK - (CHUNK >> level)") -> str:
        return each(f"advance(work, {first} + {{k}} * {size} + {place})")

    s, e, d, p = (each(c + "{k}") for c in "sedr")
    names = {c: [f"{c}{k}" for k in range(terms)] for c in "sedr"}
    rising, falling = ([n for c in some for n in names[c]] for some in ("sed", "red"))
    # Elements of even index are read again on the way down, contiguously.
    up = [
        f"first = load_s({s}, 2 * i)",
        f"store_e({e}, i, first)",
        f"store_d({d}, i, algorithm(first, load_s({s}, 2 * i + 1)))",
    ]
    # From the prefix of each block to the prefixes of its halves.
    down = [
        f"before = load_r({p}, i)",
        f"store_d({d}, 2 * i, before)",
        f"store_d({d}, 2 * i + 1, algorithm(before, load_e({e}, i)))",
    ]
    # The next index has an address of its own: LLVM would carry its value from turn to turn, which
    # does not vectorise.
    last = [
        f"store_d({d}, 2 * i, algorithm(load_r({p}, i), load_e({e}, i)))",
        f"store_d({d}, 2 * i + 1, load_r({each('n{k}')}, i))",
    ]
    chunks = 3 * terms * SIZE
    more, taken, put, far = _ends(terms, narrow)
    # With one component the algorithm is the network already.
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
        """Return turns turn, ..., stop - 1 of one loop; the network alone if its bits are equal."""
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
    """Return steps, statements before and after a chunk, and the operands to prefetch.

    A chunk of narrow numbers has separate buffers for reads and writes.
    """
    if narrow is None:
        x, out = (_of(terms, f"advance({c}[{{k}}], here)") for c in ("given", "outs"))
        return [], [f"x = {x}", f"out = {out}", "ahead = CHUNK"], [], "x, out"
    first = terms * (3 * SIZE + 2 * _LEVELS)
    places = [
        _of(terms, f"advance(work, {first} + {k} * {SIZE})") for k in ("{k}", f"({terms} + {{k}})")
    ]
    # Written under another operand letter than read: the compiler assumes that letters do not
    # overlap.
    steps = narrow_text.entering(narrow, terms) + narrow_text.leaving(narrow, terms, "d")
    x, out = (narrow_text.members(c, terms) for c in ("x", "out"))
    given, outs = (narrow_text.members(c, narrow.count) for c in ("given", "outs"))
    taken = [f"x = {places[0]}", f"out = {places[1]}", "ahead = here + CHUNK"]
    taken += [f"over(0, length, entering, (here, {x}, {given},))"]
    return steps, taken, [f"over(0, length, leaving, (here, {outs}, {out},))"], "given, outs"


def _checked(terms: int, numbers: str) -> list[str]:
    """Return whether the network alone has the sum's bits: normal range, no overflow.

    A final zero of the network is then +0, as in the plain sum: a leading component passes through
    additions alone, and -0 results only from two of them, which do not occur, whatever the prefix.
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
    """Return the statement that unpacks a tuple into named variables."""
    return f"{', '.join(f'{name}{k}' for k in range(terms))}, = {whole or name}"
