"""Generated source of a loop that sorts rows by integers of components and indices.

A number's integer has the order of a component, relative to the least of the row. Its upper bits
and, below them, its index in the row form one word: no two words are equal, so any sort of them is
stable (`words_text`). Runs with equal upper bits are sorted by the lower bits, and then by the next
component: the values of the numbers hardly affect the time.

A long row is sorted in steps, each shared by threads: integers of all its pieces and their range;
counts of a piece's words per bin; the words into their bins; each bin.
"""

from __future__ import annotations

from mcf.kernels.formats import FP64, Format
from mcf.kernels.numba.loops.moves import MOVES
from mcf.kernels.numba.loops.rows import words_text
from mcf.kernels.numba.loops.rows.words_text import COUNTED, FEW
from mcf.kernels.numba.runtime import team

# Meaning of an item: a row, or a piece or a bin of one long row.
ROWS, INTEGERS, COUNTS, WORDS, BINS = range(5)
# Numbers of a piece of a long row.
PIECE = 1 << 16
# Fields of a long row with the results of previous steps.
HEAD = 5


def left(count: int) -> int:
    """Return the units for two lists of ends of runs still to be sorted, each above FEW numbers."""
    return 5 * (count // FEW + 1)


def room(terms: int, count: int) -> int:
    """Return the 64-bit units of workspace per thread: words twice, counts, runs, an order."""
    return 3 * count + COUNTED + left(count)


def long_room(count: int, parts: int) -> int:
    """Return the 64-bit units of workspace for all steps of a long row on `parts` threads."""
    pieces = -(-count // PIECE)
    return 2 * count + HEAD + COUNTED * (max(pieces, 1 + parts) + 5) + left(count)


def source(terms: int, name: str = "", fmt: Format = FP64, keys: Format = FP64) -> str:
    """Return the loop `name` of `mcf.kernels.row_tasks`; `fmt` is that of the moved numbers."""
    take, give = MOVES[fmt]
    names = [f"k{k}" for k in range(terms)]
    given = ", ".join(names)

    def of(place: str) -> str:
        return "(" + "".join(f"load({k}, {place}), " for k in names) + ")"

    rows = "\n".join(
        f"            {k} = advance(word(data, 12 + moved + {j}), row * count)"
        for j, k in enumerate(names)
    )
    return (
        words_text.SOURCE
        + f"""
@jit
def rising(x, descending):
    w = bits64(x)
    w = w ^ ((w >> 63) & HIGHEST)
    w = 0 if x == 0.0 else w
    w = HIGHEST if x != x else w
    return ~w if descending else w

@jit
def by_value({given}, order, first, last, descending):
    for i in range(first + 1, last):
        place = number(order, i)
        new = {of("place")}
        j = i - 1
        while j >= first:
            other = number(order, j)
            there = {of("other")}
            after = algorithm(there, new) if descending else algorithm(new, there)
            if not after:
                break
            put(order, j + 1, other)
            j -= 1
        put(order, j + 1, place)

def kernel(data):
    rows, count = number(data, 0), number(data, 1)
    shares, parts, works = word(data, 2), number(data, 3), word(data, 4)
    descending, start, stop = number(data, 5) != 0, number(data, 6), number(data, 7)
    nan_first, step, moved = number(data, 8) != 0, number(data, 9), number(data, 10)
    places = word(data, 11)
    none = LOWEST if descending else HIGHEST
    wanted = stop - start
"""
        + "\n".join("    " + line for line in team.ITEMS)
        + f"""
            work, row = works, 0
            if step == {ROWS}:
                size = 3 * count + {COUNTED} + 5 * (count // {FEW} + 1)
                work, row = advance(works, arrival * size), item
            words, spare = work, advance(work, count)
            counts = advance(work, 2 * count)
            left = advance(counts, {COUNTED})
            order = advance(left, 5 * (count // {FEW} + 1))
            first, last = 0, count
            low = high = below = lost = mask = shift = 0
            # Whether bits that have no room in a word are not the same in all.
            hidden = False
            own = left
            if step != {ROWS}:
                # Of a long row: what the steps before found, then counts of pieces or ends of bins.
                own = counts
                low, lost = number(own, 0), number(own, 1)
                below, shift, hidden = number(own, 2), number(own, 3), number(own, 4) != 0
                own = advance(own, {HEAD})
                first, last = item * {PIECE}, min(item * {PIECE} + {PIECE}, count)
                mask = (1 << (63 - below)) - 1
            if step == {BINS}:
                first = 0 if item == 0 else number(own, item - 1)
                last = number(own, item)
                counts = advance(own, {COUNTED} * (1 + arrival))
                left = advance(own, {COUNTED} * (1 + parts) + 5 * (first // {FEW} + item))
                if first == last:
                    continue
{rows}
            if step <= {INTEGERS}:
                for i in range(first, last):
                    put(spare, i, rising(load(k0, i), descending))
                low, high, one = number(spare, first), number(spare, first), number(spare, first)
                unlike = 0
                for i in range(first, last):
                    w = number(spare, i)
                    low, high = min(low, w), max(high, w)
                    unlike |= w ^ one
                if step == {INTEGERS}:
                    put(own, 3 * item, low)
                    put(own, 3 * item + 1, high)
                    put(own, 3 * item + 2, unlike)
                    continue
                below = max(1, length(count - 1))
                lost = max(0, length(high - low) - (63 - below))
                hidden = unlike & ((1 << lost) - 1) != 0
                mask = (1 << (63 - below)) - 1
                for i in range(count):
                    w = ((number(spare, i) - low) >> lost) & mask
                    put(words, i, (w << below) | i)
            elif step < {BINS}:
                own = advance(own, item * {COUNTED})
                if step == {COUNTS}:
                    for j in range({COUNTED}):
                        put(own, j, 0)
                    for i in range(first, last):
                        at = (((number(spare, i) - low) >> lost) & mask) >> shift
                        put(own, at, number(own, at) + 1)
                    continue
                for i in range(first, last):
                    w = ((number(spare, i) - low) >> lost) & mask
                    at = w >> shift
                    place = number(own, at)
                    put(own, at, place + 1)
                    put(words, place, (w << below) | i)
                continue
            if wanted == count:
                order = advance(places, row * count)
            todo = advance(left, 2 * ((last - first) // {FEW} + 1))
            put(todo, 0, first)
            put(todo, 1, last)
            put(todo, 2, 0)
            waiting, fresh = 1, True
            begin, past_all = first, last
            while waiting > 0:
                waiting -= 1
                first, last = number(todo, 3 * waiting), number(todo, 3 * waiting + 1)
                c = number(todo, 3 * waiting + 2)
                if not fresh:
                    # Places are those in the run, in whose order equal numbers stay.
                    key = advance(word(data, 12 + moved + c), row * count)
                    low, high, unlike = HIGHEST, LOWEST, 0
                    one = rising(load(key, number(order, first)), descending)
                    for i in range(first, last):
                        w = rising(load(key, number(order, i)), descending)
                        low, high = min(low, w), max(high, w)
                        unlike |= w ^ one
                        put(spare, i, w)
                    below = max(1, length(last - first - 1))
                    lost = max(0, length(high - low) - (63 - below))
                    hidden = unlike & ((1 << lost) - 1) != 0
                    mask = (1 << (63 - below)) - 1
                    for i in range(first, last):
                        w = ((number(spare, i) - low) >> lost) & mask
                        put(words, i, (w << below) | (i - first))
                cut(words, spare, counts, left, first, last)
                mask = (1 << below) - 1
                if not fresh:
                    for i in range(first, last):
                        put(spare, i, number(order, i))
                    for i in range(first, last):
                        put(order, i, number(spare, first + (number(words, i) & mask)))
                else:
                    for i in range(first, last):
                        put(order, i, number(words, i) & mask)
                fresh = False
                if not hidden and c == {terms - 1}:
                    continue
                ties = 0
                for i in range(first + 1, last):
                    ties += 1 if number(words, i) >> below == number(words, i - 1) >> below else 0
                while ties > 0 and first < last:
                    past = first + 1
                    w = number(words, first) >> below
                    while past < last and number(words, past) >> below == w:
                        past += 1
                    if past - first > 1 and (hidden or c > 0 or (w << lost) + low != none):
                        if past - first <= {FEW}:
                            by_value({given}, order, first, past, descending)
                        else:
                            put(todo, 3 * waiting, first)
                            put(todo, 3 * waiting + 1, past)
                            put(todo, 3 * waiting + 2, c if hidden else c + 1)
                            waiting += 1
                    first = past
            if wanted < count:
                begin = start
                if nan_first:
                    value = load(k0, number(order, count - 1))
                    if value != value:
                        begin = count - 1
                        while begin > 0:
                            value = load(k0, number(order, begin - 1))
                            if value == value:
                                break
                            begin -= 1
                past_all = begin + wanted
                out = advance(places, row * wanted)
                for i in range(wanted):
                    put(out, i, number(order, begin + i))
            for v in range(moved):
                x, out = word(data, {12 + terms} + moved + v), word(data, 12 + v)
                base = row * count
                if wanted < count:
                    for i in range(wanted):
                        {give}(out, row * wanted + i, {take}(x, base + number(order, begin + i)))
                else:
                    for i in range(begin, past_all):
                        {give}(out, base + i, {take}(x, base + number(order, i)))
"""
    )
