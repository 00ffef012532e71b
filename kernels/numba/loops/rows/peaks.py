"""Extremes of rows by first components, or by sums of narrow ones.

The data is read once, in vectors. Lanes are adjacent in memory and belong to several rows, to one
or to both: elements of a row whose distance is a multiple of `fold` share a lane. Each lane keeps
its largest element, the index of that, and its second largest, which finally tells whether the row
is decided. Sums of 16-bit components decide wherever they are exact in float64; the second largest
is then infinite if one of them is not.
"""

from mcf.kernels.algorithms.primitives import neg, rn

# Operands, which do not overlap: components in memory, values in transposed rows, and for a lane
# the largest, the second largest and the turn of the largest, in two lanes that are merged.
KEYS, TRANSPOSED, TOP, SECOND, TURN, OTHER_TOP, OTHER_SECOND, OTHER_TURN = range(8)
# Lanes at a time, whose state stays in the first-level cache.
TILE = 512
# Prefetch distance in turns: hardware prefetchers miss four streams.
AWAY = 4
# Rows that are transposed at a time.
ROWS = 64
# Stride of their elements after transposing, chosen against cache set conflicts.
APART = ROWS + 8
# Lanes that suffice for vectors; smallest number of lanes that is worthwhile.
WIDE, LEAST = 64, 16
# Fewest turns per lane; with fewer, merging the lanes takes longer.
TURNS = 8
INFINITE, NAN = float("inf"), float("nan")


def folded(count: int, inner: int) -> int:
    """Return the number of elements of a row per turn; 0 if rows are processed one by one."""
    fold = 1
    while 2 * fold * inner <= WIDE and 2 * fold * TURNS <= count:
        fold *= 2
    return fold if fold * inner >= LEAST else 0


def workspace(count: int, fold: int) -> int:
    """Return the numbers of workspace per thread."""
    return 3 * TILE + (0 if fold else APART * count)


def first_component(x, limit):
    """Return the first component, and whether it is a number."""
    return x[0], x[0] == x[0]


def exact_sum(x, limit):
    """Return the sum of 16-bit components, and whether it is finite and exact in float64."""
    total, exact = x[0], None
    for other in x[1:]:
        before, total = total, rn(total + other)
        here = (rn(total - before) == other) & (rn(total - other) == before)
        exact = here if exact is None else exact & here
    inside = (total < limit) & (neg(total) < limit)
    return total, inside if exact is None else exact & inside


def second_of_components(top, second, x, usual):
    """Return the second largest of a lane and one more element; a NaN stays."""
    low = top if x > top else x
    second = low if low > second else second
    return second if usual else x


def second_of_sums(top, second, x, usual):
    """Return infinity if one sum of a lane does not decide."""
    return second if usual else INFINITE


def of_memory(keys, i):
    """Return the compared number of an element, and whether it may decide."""
    return compared(load(KEYS, keys, i), LIMIT)


def of_transposed(rows, i):
    """Return the compared number of a transposed element, and whether it may decide."""
    x = load(TRANSPOSED, rows, i)[0]
    return x, x == x


def _state(i, lanes):
    """Return the largest, the second largest and the turn of the largest of a lane."""
    top, second, turn = lanes
    return load(TOP, top, i)[0], load(SECOND, second, i)[0], load(TURN, turn, i)[0]


def _keep(i, lanes, found):
    """Store the state of a lane."""
    top, second, turn = lanes
    store(TOP, top, i, (found[0],))
    store(SECOND, second, i, (found[1],))
    store(TURN, turn, i, (found[2],))


def _more(found, x, usual, turn):
    """Add one more element to a lane."""
    top, second, place = found
    second = runner_up(top, second, x, usual)
    above = x > top
    return x if above else top, second, turn if above else place


def _begin(i, element, lanes, sign):
    """Take the first element of a lane."""
    new, usual = element
    _keep(i, lanes, (new * sign, -INFINITE if usual else INFINITE, 0.0))


def _begun(i, keys, at, lanes, sign):
    """Take the first element of a lane in memory."""
    _begin(i, of_memory(keys, at + i), lanes, sign)


def _begun_transposed(i, rows, at, lanes, sign):
    """Take the first element of a lane of transposed rows."""
    _begin(i, of_transposed(rows, at + i), lanes, sign)


def _one(i, keys, at, lanes, sign, turn):
    """Add one element in memory."""
    new, usual = of_memory(keys, at + i)
    _keep(i, lanes, _more(_state(i, lanes), new * sign, usual, turn))


def _one_transposed(i, rows, at, lanes, sign, turn):
    """Add one element of transposed rows."""
    new, usual = of_transposed(rows, at + i)
    _keep(i, lanes, _more(_state(i, lanes), new * sign, usual, turn))


def _four(i, keys, at, lanes, sign, turn, wide):
    """Add four elements in memory."""
    found = _state(i, lanes)
    for k in range(4):
        new, usual = of_memory(keys, at + i + k * wide)
        found = _more(found, new * sign, usual, turn + float(k))
    _keep(i, lanes, found)


def _four_transposed(i, rows, at, lanes, sign, turn, wide):
    """Add four elements of transposed rows."""
    found = _state(i, lanes)
    for k in range(4):
        new, usual = of_transposed(rows, at + i + k * wide)
        found = _more(found, new * sign, usual, turn + float(k))
    _keep(i, lanes, found)


def _scaled(i, lanes, fold):
    """Convert a turn to an index; those of the first lanes are multiples of the fold."""
    _, _, turn = lanes
    store(TURN, turn, i, (load(TURN, turn, i)[0] * fold,))


def _merged(i, lanes, others, half):
    """Merge two lanes of one row; the first of equal elements wins."""
    top, second, place = _state(i, lanes)
    others_top, others_second, others_turn = others
    x, third = load(OTHER_TOP, others_top, i)[0], load(OTHER_SECOND, others_second, i)[0]
    other = load(OTHER_TURN, others_turn, i)[0] + half
    second = runner_up(top, second, x, x == x)
    second = third if (third > second) | (third != third) else second
    above = (x > top) | ((x == top) & (other < place))
    _keep(i, lanes, (x if above else top, second, other if above else place))


def _all_turns(begun, one, four, x, at, lanes, shape, sign, smaller):
    """Add all elements of rows to the lanes; an element takes 8 / 2**smaller bytes."""
    count, wide, turns, rest = shape
    over(0, count, begun, (x, at, lanes, sign))
    at += wide
    turn = 1
    while turn + 4 <= turns:
        for k in range(4):
            for i in range(0, count, 8 << smaller):
                prefetch(x, (at + (k + AWAY) * wide + i) >> smaller)
        over(0, count, four, (x, at, lanes, sign, float(turn), wide))
        at += 4 * wide
        turn += 4
    while turn < turns:
        over(0, count, one, (x, at, lanes, sign, float(turn)))
        at += wide
        turn += 1
    # The remainder is less than a turn.
    over(0, rest, one, (x, at, lanes, sign, float(turn)))


def _transpose(item, data, rows):
    """Write the compared numbers of up to ROWS rows, whose elements become neighbours."""
    count, inner = number(data, 5), number(data, 6)
    keys = words(data, 14 + number(data, 7))
    row = item * ROWS
    outer = row // inner
    column = row - outer * inner
    at = outer * inner * count + column
    for lane in range(min(number(data, 4) - row, ROWS)):
        if inner == 1:
            for i in range(0, count, 8 << SMALLER):
                prefetch(keys, (at + i + ROWS * count) >> SMALLER)
        for i in range(count):
            x, usual = of_memory(keys, at + i * inner)
            store(TRANSPOSED, rows, i * APART + lane, (x if usual else NAN,))
        column, at = column + 1, at + 1
        if column == inner:
            column = 0
            at += inner * (count - 1)


def _finish(item, data, row, at, found):
    """Write the index of a row's extreme, -1 if undecided, and the moved numbers there."""
    moved, inner = number(data, 7), number(data, 6)
    top, second, place = found
    # Infinities and NaN leave it undecided too.
    decided = second < top - (abs(top) * value(data, 11) + value(data, 12))
    put(word(data, 13), row, int(place) if decided else -1)
    for v in range(moved):
        x = word(data, 14 + TERMS + moved + v)
        put_moved(word(data, 14 + v), row, take_moved(x, at + int(place) * inner))


def peak(item, data, workspace):
    """Find the extremes of some rows, and whether they are decided."""
    rows, count, inner = number(data, 4), number(data, 5), number(data, 6)
    fold, tiles, sign = number(data, 8), number(data, 9), value(data, 10)
    top, second = workspace, advance(workspace, TILE)
    lanes = (top,), (second,), (advance(workspace, 2 * TILE),)
    if fold == 0:
        transposed = (advance(workspace, 3 * TILE),)
        _transpose(item, data, transposed)
        row = item * ROWS
        own = min(rows - row, ROWS)
        shape = own, APART, count, 0
        # Steps as arguments of their own: Numba makes pointers of functions in a tuple.
        _all_turns(
            _begun_transposed, _one_transposed, _four_transposed,
            transposed, 0, lanes, shape, sign, 0,
        )  # fmt: skip
    else:
        outer, column = item // tiles, item % tiles * TILE
        own = min(inner - column, TILE)
        row, turns = outer * inner + column, count // fold
        shape = own * fold, inner * fold, turns, (count - turns * fold) * inner
        keys, at = words(data, 14 + number(data, 7)), outer * count * inner + column
        _all_turns(_begun, _one, _four, keys, at, lanes, shape, sign, SMALLER)
    half = fold >> 1
    if half > 0:
        over(0, own * fold, _scaled, (lanes, float(fold)))
    while half > 0:
        others = (
            shifted(lanes[0], half * inner),
            shifted(lanes[1], half * inner),
            shifted(lanes[2], half * inner),
        )
        over(0, half * inner, _merged, (lanes, others, float(half)))
        half = half >> 1
    outer = row // inner
    column = row - outer * inner
    at = outer * inner * count + column
    for lane in range(own):
        _finish(item, data, row + lane, at, _state(lane, lanes))
        column, at = column + 1, at + 1
        if column == inner:
            column, at = 0, at + inner * (count - 1)
