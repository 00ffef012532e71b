"""Products of rows, sums of all but one number of each row, and broadcasts along rows.

Both trees halve a row until one number is left. Adjacent rows are multiplied together, `wide`
columns at a time. Short contiguous rows are transposed first, so that their elements become such
columns.
"""

# Operands, which do not overlap; MEMORY holds narrow components, STAGED unconverted ones.
LEFT, RIGHT, OUT, MEMORY, STAGED = range(5)
# Columns at a time; a narrower matrix takes all.
WIDE = 64
# Greatest length of rows that are transposed.
SHORT = 128
# Prefetch distance in elements of a column.
AWAY = 2


def columns(rows: int, count: int, inner: int) -> int:
    """Return the number of rows that are multiplied together."""
    if inner > 1:
        return min(inner, WIDE)
    return WIDE if count <= SHORT and rows >= WIDE else 1


def items(rows: int, count: int, inner: int) -> int:
    """Return the number of items of rows."""
    wide = columns(rows, count, inner)
    return rows // inner * -(-inner // wide) if inner > 1 else -(-rows // wide)


def product_workspace(terms: int, count: int, wide: int = 1) -> int:
    """Return the numbers of workspace per thread: two halving buffers, and transposed rows."""
    return terms * wide * (2 * ((count + 1) // 2) + (count if wide > 1 else 0))


def rest_workspace(terms: int, count: int) -> int:
    """Return the numbers of workspace per thread: two halving buffers."""
    return 2 * terms * ((count + 1) // 2)


def combined(i, out, left, right):
    """Combine number i of two operands."""
    store(OUT, out, i, algorithm(load(LEFT, left, i), load(RIGHT, right, i)))


def copied(i, out, left):
    """Copy number i."""
    store(OUT, out, i, load(LEFT, left, i))


def repeated(i, out, left, row):
    """Copy the number of a row to element i."""
    store(OUT, out, i, load(LEFT, left, row))


def entered(i, out, staged):
    """Convert number i to components in registers."""
    store(OUT, out, i, enter(load(STAGED, staged, i)))


def first_copied(i, out, x, at):
    """Read number i from memory."""
    store(OUT, out, i, enter(load(MEMORY, x, at + i)))


def first_combined(i, out, x, at, second):
    """Combine number i of two columns in memory."""
    left, right = enter(load(MEMORY, x, at + i)), enter(load(MEMORY, x, second + i))
    store(OUT, out, i, algorithm(left, right))


def first_halves(found, x, start, shape):
    """Combine the halves of narrow columns in memory; return the length of the rest."""
    count, width, apart = shape
    half = (count + 1) >> 1
    pairs = count - half
    turns, length = (1, pairs * width) if apart == width else (pairs, width)
    for i in range(turns):
        low, high = start + i * apart, start + (half + i) * apart
        if turns > 1:
            # One line more for unaligned starts.
            for lane in range(0, width + 1, 8 << SMALLER):
                prefetch(x, (low + AWAY * apart + lane) >> SMALLER)
                prefetch(x, (high + AWAY * apart + lane) >> SMALLER)
        over(0, length, first_combined, (shifted(found, i * width), x, low, high))
    if half > pairs:
        over(0, width, first_copied, (shifted(found, pairs * width), x, start + pairs * apart))
    return half


def product(item, data, workspace):
    """Multiply the numbers of up to `wide` rows."""
    rows, count, inner, wide = number(data, 4), number(data, 5), number(data, 6), number(data, 7)
    out, x = words(data, 8), stored_words(data, 8 + TERMS)
    size = ((count + 1) >> 1) * wide
    here, there = workspace, advance(workspace, TERMS * size)
    if inner == 1 and wide > 1:
        row = item * wide
        width, apart, last = wide, wide, min(wide, rows - row)
        left = spaced(advance(there, TERMS * size), count * wide)
        for lane in range(last):
            first = (row + lane) * count
            for i in range(count):
                if NARROW:
                    store(STAGED, left[:COUNT], i * wide + lane, load(MEMORY, x, first + i))
                else:
                    store(ANY, left, i * wide + lane, load(ANY, x, first + i))
        if NARROW:
            over(0, count * wide, entered, (left, left[:COUNT]))
    else:
        tiles = (inner + wide - 1) // wide
        outer, column = item // tiles, item % tiles * wide
        width, apart = min(wide, inner - column), inner
        last, row = width, outer * inner + column
        start = outer * inner * count + column
        if NARROW:
            left = spaced(here, size)
            count = first_halves(left, x, start, (count, width, apart))
            apart = width
            here, there = there, here
        else:
            left = shifted(x, start)
    while count > 1:
        half = (count + 1) >> 1
        pairs = count - half
        # Adjacent elements are processed together.
        turns, length = (1, pairs * width) if apart == width else (pairs, width)
        found = spaced(here, size)
        for i in range(turns):
            right = shifted(left, (half + i) * apart)
            if turns > 1:
                for lane in range(0, width, 8):
                    prefetch(left, (i + AWAY) * apart + lane)
                    prefetch(left, (half + i + AWAY) * apart + lane)
            over(0, length, combined, (shifted(found, i * width), shifted(left, i * apart), right))
        if half > pairs:
            over(0, width, copied, (shifted(found, pairs * width), shifted(left, pairs * apart)))
        left, apart, count = found, width, half
        here, there = there, here
    over(0, last, copied, (shifted(out, row), left))


def rest(item, data, workspace):
    """Add all numbers of a row but one, which is replaced by 0."""
    count = number(data, 5)
    out, index, x = words(data, 6), word(data, 6 + TERMS), words(data, 7 + TERMS)
    size = (count + 1) >> 1
    here, there = workspace, advance(workspace, TERMS * size)
    left = shifted(x, item * count)
    store(ANY, left, number(index, item), ZEROS)
    while count > 1:
        half = count >> 1
        found = spaced(here, size)
        over(0, half, combined, (found, left, shifted(left, half)))
        if count & 1 == 1:
            store(OUT, found, half, load(LEFT, left, count - 1))
        left = found
        here, there = there, here
        count -= half
    store(OUT, out, item, load(LEFT, left, 0))


def spread(item, data, workspace):
    """Copy the number of a row to all of its elements."""
    count = number(data, 5)
    out, x = words(data, 6), words(data, 6 + TERMS)
    over(item * count, item * count + count, repeated, (out, x, item))
