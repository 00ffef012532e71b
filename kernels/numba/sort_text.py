"""The text of a loop that sorts rows: by bits of first components, where those are equal by all.

Many elements go by the eight digits of 8 bits of an integer in the order of the first components,
the lowest first, each digit in one pass that keeps the order of equal ones (Knuth, The Art of
Computer Programming 3, 5.2.5); a digit that all share takes none. Runs of equal integers, and rows
of few elements, are merged: blocks of a few by insertion, then pairs of neighbours.
"""

from __future__ import annotations

from mcf.kernels.numba import team

# Rows of fewer elements are merged.
MANY = 256
# Elements that are inserted one by one.
_INSERTED = 8
_DIGITS = 8


def room(terms: int, count: int) -> int:
    """Words that a thread needs: the order, two records of an integer and an index, counts."""
    return 5 * count + _DIGITS * 256


def source(terms: int, name: str = "") -> str:
    """The loop; `name` is one of `mcf.kernels.row_tasks`."""
    names = [f"k{k}" for k in range(terms)]
    given = ", ".join(names)

    def of(place: str) -> str:
        return "(" + "".join(f"load({k}, {place}), " for k in names) + ")"

    taken = "\n".join(f"    {k}_all = word(data, 11 + moved + {j})" for j, k in enumerate(names))
    rows = "\n".join(f"            {k} = advance({k}_all, item * count)" for k in names)
    return (
        f"""
@jit
def after(t, w, descending):
    if descending:
        return algorithm(t, w)
    return algorithm(w, t)

@jit
def inserted({given}, order, first, last, descending):
    for i in range(first + 1, last):
        place = number(order, i)
        new = {of("place")}
        j = i - 1
        while j >= first:
            other = number(order, j)
            if not after({of("other")}, new, descending):
                break
            put(order, j + 1, other)
            j -= 1
        put(order, j + 1, place)

@jit
def merged({given}, order, spare, first, last, descending):
    for begin in range(first, last, {_INSERTED}):
        inserted({given}, order, begin, min(begin + {_INSERTED}, last), descending)
    width = {_INSERTED}
    while width < last - first:
        for i in range(first, last):
            put(spare, i, number(order, i))
        for begin in range(first, last, 2 * width):
            left, middle = begin, min(begin + width, last)
            right, end = middle, min(begin + 2 * width, last)
            for i in range(begin, end):
                take_right = left >= middle
                if not take_right and right < end:
                    u, v = number(spare, left), number(spare, right)
                    take_right = after({of("u")}, {of("v")}, descending)
                if take_right:
                    put(order, i, number(spare, right))
                    right += 1
                else:
                    put(order, i, number(spare, left))
                    left += 1
        width *= 2

@jit
def by_digits(first, order, work, count, descending):
    source, target = work, advance(work, 2 * count)
    counts = advance(work, 4 * count)
    for j in range({_DIGITS * 256}):
        put(counts, j, 0)
    for i in range(count):
        head = load(first, i)
        w = bits64(head)
        if head == 0.0:
            w = 0
        w = ~w if w < 0 else w ^ LOWEST
        if head != head:
            w = -1
        if descending:
            w = ~w
        put(source, 2 * i, w)
        put(source, 2 * i + 1, i)
        for digit in range({_DIGITS}):
            at = digit * 256 + ((w >> (8 * digit)) & 255)
            put(counts, at, number(counts, at) + 1)
    for digit in range({_DIGITS}):
        mine = advance(counts, digit * 256)
        shift = 8 * digit
        if number(mine, (number(source, 0) >> shift) & 255) == count:
            continue
        total = 0
        for j in range(256):
            here = number(mine, j)
            put(mine, j, total)
            total += here
        for i in range(count):
            w = number(source, 2 * i)
            at = (w >> shift) & 255
            place = number(mine, at)
            put(mine, at, place + 1)
            put(target, 2 * place, w)
            put(target, 2 * place + 1, number(source, 2 * i + 1))
        source, target = target, source
    for i in range(count):
        put(order, i, number(source, 2 * i + 1))
    return source

def kernel(data):
    rows, count = number(data, 0), number(data, 1)
    shares, parts, works = word(data, 2), number(data, 3), word(data, 4)
    descending, start, stop = number(data, 5) != 0, number(data, 6), number(data, 7)
    nan_first, moved, places = number(data, 8) != 0, number(data, 9), word(data, 10)
{taken}
"""
        + "\n".join("    " + line for line in team.ITEMS)
        + f"""
            work = advance(works, arrival * (5 * count + {_DIGITS * 256}))
            order = advance(work, 4 * count + {_DIGITS * 256})
{rows}
            runs = work
            if count >= {MANY}:
                runs = by_digits(k0, order, work, count, descending)
            else:
                for i in range(count):
                    put(order, i, i)
                    put(work, 2 * i, 0)
            spare = work if runs != work else advance(work, 2 * count)
            none = 0 if descending else -1
            begin = 0
            while begin < count:
                past = begin + 1
                w = number(runs, 2 * begin)
                while past < count and number(runs, 2 * past) == w:
                    past += 1
                if past - begin > 1 and (count < {MANY} or ({terms} > 1 and w != none)):
                    merged({given}, order, spare, begin, past, descending)
                begin = past
            begin = start
            if nan_first:
                last = load(k0, number(order, count - 1))
                if last != last:
                    begin = count - 1
                    while begin > 0:
                        last = load(k0, number(order, begin - 1))
                        if last == last:
                            break
                        begin -= 1
            wanted = stop - start
            out = advance(word(data, 10), item * wanted)
            for i in range(wanted):
                put(out, i, number(order, begin + i))
            for v in range(moved):
                x = advance(word(data, {11 + terms} + moved + v), item * count)
                out = advance(word(data, 11 + v), item * wanted)
                for i in range(wanted):
                    put(out, i, number(x, number(order, begin + i)))
"""
    )
