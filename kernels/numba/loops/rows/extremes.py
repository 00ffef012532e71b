"""Extremes and running extremes of rows, by keys.

*Row by row*: one element at a time. Most blocks of a running extreme have all first components
beyond the extreme so far: they are compared as vectors, and the extreme is written to all indices.

*Adjacent rows*: one element of each of LANES rows at a time, as vectors. A long row is split into
LANES rows of every LANES-th element; the extreme of their extremes is the result.
"""

from mcf.kernels.numba.loops.rows.lanes import AWAY, LANES, adjacent
from mcf.kernels.ordering import HUGE

# Operands, which do not overlap: the keys in memory, new ones and the best ones, one number each
# for whether a new one wins, the place of the best, and the moved numbers, in memory and in lanes.
KEYS, NEW, BEST, WINS, PLACES, MOVED, CARRIED = range(7)
# Elements of a running extreme that are compared together.
TOGETHER = 64
# Length from which rows are cut into LANES.
LONG = 256
INFINITE, LARGEST_NUMBER = float("inf"), 1.7976931348623157e308


def workspace(terms: int, moved: int) -> int:
    """Return the 64-bit units of workspace per thread."""
    return LANES * (3 + 2 * terms + moved)


def give(data, row, source):
    """Write the place of a row's extreme, and the moved numbers of an element."""
    moved = number(data, 7)
    for v in range(moved):
        x = word(data, 9 + TERMS + moved + v)
        put_moved(word(data, 9 + v), row, take_moved(x, source))


def extreme(item, data, workspace):
    """Find the extreme of one row."""
    count = number(data, 5)
    keys, base = words(data, 9 + number(data, 7)), item * count
    place, best = 0, load(KEYS, keys, base)
    for i in range(1, count):
        new = load(KEYS, keys, base + i)
        if algorithm(best, new):
            best = new
            place = i
    put(word(data, 8), item, place)
    give(data, item, base + place)


def edge_of(best):
    """Return a bound that no first component beyond can exceed the extreme with.

    Components of pairs that are not canonical must exceed it by some units in the last place. All
    numbers are beyond NaN.
    """
    edge = best[0]
    if NARROW:
        # Beyond the limit a sum is not its key.
        if LARGEST:
            return edge if edge < LIMIT else LIMIT
        return edge if edge > -LIMIT else -LIMIT
    if TERMS == 2:
        gap = 2.0**-50 * abs(edge) + 2.0**-1072
        less = edge - gap if LARGEST else edge + gap
        if abs(edge) < INFINITE:
            return less
        # A pair whose sum is infinite has the largest number for its first component, or NaN.
        if LARGEST:
            return edge if edge < 0.0 else LARGEST_NUMBER
        return edge if edge > 0.0 else -LARGEST_NUMBER
    return edge


def leading(x):
    """Return the first component of a key."""
    return x[0]


def summed(x):
    """Return the sum of a narrow pair, the first component of its key."""
    return x[0] + x[1]


def always(x):
    """Return the canonical key of a pair."""
    return key(x)


def if_needed(x):
    """Return the canonical key of a pair; most pairs are their own keys."""
    return key(x) if x[0] + x[1] != x[0] else x


def of_sum(x):
    """Return the canonical key of a narrow pair."""
    return key(x, LIMIT, HUGE)


def precedes_edge(x, edge):
    """Return whether a first component is beyond the edge."""
    return x < edge if LARGEST else x > edge


def running(item, data, workspace):
    """Find the running extremes of one row."""
    count, moved = number(data, 5), number(data, 7)
    places, keys, base = word(data, 8), words(data, 9 + moved), item * count
    place, start = 0, 0
    best = canonical(load(KEYS, keys, base))
    while start < count:
        stop = min(start + TOGETHER, count)
        edge, left = edge_of(best), 0
        for i in range(base + start, base + stop):
            left += 1 if precedes_edge(first_of(load(KEYS, keys, i)), edge) else 0
        if left == stop - start:
            for i in range(base + start, base + stop):
                put(places, i, place)
            for v in range(moved):
                out, x = word(data, 9 + v), word(data, 9 + TERMS + moved + v)
                kept = take_moved(x, base + place)
                for i in range(base + start, base + stop):
                    put_moved(out, i, kept)
        else:
            for i in range(start, stop):
                new = canonical(load(KEYS, keys, base + i))
                if i > 0 and algorithm(best, new):
                    best = new
                    place = i
                put(places, base + i, place)
            for v in range(moved):
                out, x = word(data, 9 + v), word(data, 9 + TERMS + moved + v)
                for i in range(base + start, base + stop):
                    put_moved(out, i, take_moved(x, base + number(places, i)))
        start = stop


def _index(i, at, offsets):
    """Return the index of an element of row i; `offsets` is None for adjacent rows."""
    if offsets is None:
        return at + i
    return at + number(offsets, i)


def _read(i, new, keys, at, offsets):
    """Read the key of a row."""
    store(NEW, new, i, load(KEYS, keys, _index(i, at, offsets)))


def _begun(i, best, new, wins, places):
    """Take the first key of a row."""
    store(BEST, best, i, canonical(load(NEW, new, i)))
    store(WINS, wins, i, (1.0,))
    store(PLACES, places, i, (0.0,))


def _compared(i, best, new, wins, places, m):
    """Compare keys. Indices are float64, exactly, so that all lanes have one width."""
    x, y = load(BEST, best, i), canonical(load(NEW, new, i))
    later = algorithm(x, y)
    store(BEST, best, i, choose(later, y, x))
    store(WINS, wins, i, (1.0 if later else 0.0,))
    store(PLACES, places, i, (m if later else load(PLACES, places, i)[0],))


def _placed(i, to, places, offsets):
    """Write the place of a row."""
    put(to, _index(i, 0, offsets), int(load(PLACES, places, i)[0]))


def _carried(i, carried, wins, x, at, offsets):
    """Carry a moved number of a row."""
    new, old = load(MOVED, x, _index(i, at, offsets))[0], load(CARRIED, carried, i)[0]
    store(CARRIED, carried, i, (new if load(WINS, wins, i)[0] > 0.0 else old,))


def _given(i, out, carried, at, offsets):
    """Write a moved number of a row."""
    store(MOVED, out, _index(i, at, offsets), load(CARRIED, carried, i))


def _step(m, start, step, together, data, workspace):
    """Compare element m of each row, at `start` and the rows' offsets, with the best one."""
    keys = words(data, 9 + number(data, 7))
    wins, places = (advance(workspace, LANES),), (advance(workspace, 2 * LANES),)
    new = spaced(advance(workspace, 3 * LANES), LANES)
    best = shifted(new, TERMS * LANES)
    if together:
        for lane in range(0, LANES, 8):
            prefetch(keys, (start + lane + AWAY * step) >> (SMALLER if NARROW else 0))
        over(0, LANES, _read, (new, keys, start, None))
    else:
        over(0, LANES, _read, (new, keys, start, workspace))
    if m == 0:
        over(0, LANES, _begun, (best, new, wins, places))
    else:
        over(0, LANES, _compared, (best, new, wins, places, float(m)))
    return wins, places, advance(workspace, LANES * (3 + 2 * TERMS))


def lanes_running(item, data, workspace):
    """Find the running extremes of LANES adjacent rows."""
    rows, count, inner = number(data, 4), number(data, 5), number(data, 6)
    moved, offsets = number(data, 7), workspace
    some, start, together = adjacent(offsets, item, rows, count, inner)
    start = start if together else 0
    for m in range(count):
        wins, places, kept = _step(m, start, inner, together, data, workspace)
        to = advance(word(data, 8), start)
        if together:
            for lane in range(0, LANES, 8):
                prefetch((to,), lane + AWAY * inner)
                for v in range(moved):
                    at = (start + lane + AWAY * inner) >> SMALLER
                    prefetch((word(data, 9 + v), word(data, 9 + TERMS + moved + v)), at)
            over(0, LANES, _placed, (to, places, None))
        else:
            over(0, some, _placed, (to, places, offsets))
        for v in range(moved):
            carried = (advance(kept, LANES * v),)
            x, out = (word(data, 9 + TERMS + moved + v),), (word(data, 9 + v),)
            if together:
                over(0, LANES, _carried, (carried, wins, x, start, None))
                over(0, LANES, _given, (out, carried, start, None))
            else:
                over(0, LANES, _carried, (carried, wins, x, start, offsets))
                over(0, some, _given, (out, carried, start, offsets))
        start += inner


def lanes_extreme(item, data, workspace):
    """Find the extremes of LANES adjacent rows, or of one long row."""
    count, inner = number(data, 5), number(data, 6)
    if inner == 1 and count >= LONG:
        long_extreme(item, data, workspace)
        return
    some, start, together = adjacent(workspace, item, number(data, 4), count, inner)
    start = start if together else 0
    places = (advance(workspace, 2 * LANES),)
    for m in range(count):
        _step(m, start, inner, together, data, workspace)
        start += inner
    for lane in range(some):
        place, row = int(load(PLACES, places, lane)[0]), item * LANES + lane
        put(word(data, 8), row, place)
        give(data, row, number(workspace, lane) + place * inner)


def long_extreme(item, data, workspace):
    """Find the extreme of one long row."""
    count = number(data, 5)
    turns, base = count // LANES, item * count
    keys, places = words(data, 9 + number(data, 7)), (advance(workspace, 2 * LANES),)
    for m in range(turns):
        _step(m, base + m * LANES, LANES, True, data, workspace)
    # The first best of the lanes and of the elements after them.
    place = int(load(PLACES, places, 0)[0]) * LANES
    for lane in range(1, LANES + count % LANES):
        at = turns * LANES + lane - LANES
        if lane < LANES:
            at = int(load(PLACES, places, lane)[0]) * LANES + lane
        x, y = load(KEYS, keys, base + place), load(KEYS, keys, base + at)
        if algorithm(x, y) or (at < place and not algorithm(y, x)):
            place = at
    put(word(data, 8), item, place)
    give(data, item, base + place)
