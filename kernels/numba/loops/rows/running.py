"""Running sums and products (`mcf.kernels.row_tasks`): one read, one write.

Narrow components are converted where they are read and written.

*Row by row*: a row is cut into chunks whose trees fit into the cache. In a chunk the blocks are
combined upwards, halving by halving, and prefixes are passed downwards, each level a loop that
vectorises. Whole chunks are the blocks of a second tree.

*Adjacent rows*: one element of each of LANES rows fills one or more vectors, so that rows may be
short and need not lie along the last dimension. Each element is a block of the tree.

A second tree keeps one pending block for each power of two, as the digits of a binary counter.
Numbers in the normal range are summed by the network alone, which has the same bits there.
"""

from mcf.kernels.numba.loops.rows.lanes import AWAY, LANES, adjacent

# Operands, which do not overlap: the tensors and the numbers that a step reads; each level's even
# elements; the numbers that a step writes; prefixes; a block of each row; the second tree; narrow
# components in memory, and unconverted ones of each row.
SOURCE, EVEN, FOUND, PREFIX, BLOCK, TREE, MEMORY, STAGED = range(8)
# Elements of a chunk, a power of two: its levels are 3 * 8 * terms * CHUNK bytes.
CHUNK = 1 << 10
# Padding beyond the last block fills a vector, or two: turns of a level are a multiple.
WHOLE = 16
# Offset of the prefixes of the blocks' first halves, on every other level.
HALF = CHUNK // 2 + 3 * WHOLE
# Numbers of a component on all levels, padded to whole vectors. Not a multiple of a page, since
# addresses whole pages apart compete for cache sets.
SIZE = 2 * HALF - 8
# Levels of the second tree, more than an address has bits.
LEVELS = 48
# Turns of a loop between two prefetches, and the numbers that they cover.
PIECE, AHEAD = 128, 48
# Up to so many numbers below HUGE have a sum within the range.
HUGE, LONG = 2.0**1000, 1 << 20
LOWEST = -(2**63)


def workspace(terms: int, side: bool) -> int:
    """Return the 64-bit entries of workspace per thread.

    Adjacent rows need offsets, a block and a second tree of each; a row three numbers per level, a
    second tree, a block, and two chunks.
    """
    if side:
        return LANES * (1 + terms * (1 + 2 * LEVELS))
    return terms * (5 * SIZE + 2 * LEVELS + 1)


def _up(i, combine, sums, evens, source):
    """Combine two blocks. The first of each pair is read again on the way down, contiguously."""
    first = load(SOURCE, source, 2 * i)
    store(EVEN, evens, i, first)
    store(FOUND, sums, i, combine(first, load(SOURCE, source, 2 * i + 1)))


def _down(i, combine, halves, prefixes, evens):
    """Pass the prefix of a block on to its halves."""
    before = load(PREFIX, prefixes, i)
    store(FOUND, halves, 2 * i, before)
    store(FOUND, halves, 2 * i + 1, combine(before, load(EVEN, evens, i)))


def _last(i, combine, out, prefixes, evens, following):
    """Write two results.

    The next prefix has an address of its own: LLVM would carry its value from turn to turn, which
    does not vectorise.
    """
    store(FOUND, out, 2 * i, combine(load(PREFIX, prefixes, i), load(EVEN, evens, i)))
    store(FOUND, out, 2 * i + 1, load(PREFIX, following, i))


def _joined(i, combine, block, before):
    """Combine a block with the one before it, in place."""
    store(BLOCK, block, i, combine(load(TREE, before, i), load(BLOCK, block, i)))


def _kept(i, tree, block):
    """Copy a block into the second tree."""
    store(TREE, tree, i, load(BLOCK, block, i))


def _read(i, block, x, at):
    """Read a number of a row that is adjacent to the others."""
    store(BLOCK, block, i, enter(load(MEMORY, x, at + i)))


def _gathered(i, staged, x, offsets, at):
    """Read a number of a row at any offset."""
    store(STAGED, staged, i, load(MEMORY, x, at + number(offsets, i)))


def _entered(i, block, staged):
    """Convert a number; apart from `_gathered`, so that the arithmetic vectorises."""
    store(BLOCK, block, i, enter(load(STAGED, staged, i)))


def _written(i, out, block, at):
    """Write a number of a row that is adjacent to the others."""
    store(MEMORY, out, at + i, leave(load(BLOCK, block, i)))


def _left(i, staged, block):
    """Convert a number back."""
    store(STAGED, staged, i, leave(load(BLOCK, block, i)))


def _scattered(i, out, staged, offsets, at):
    """Write a number of a row at any offset."""
    store(MEMORY, out, at + number(offsets, i), load(STAGED, staged, i))


def _taken(i, buffer, x, at):
    """Read a number of a chunk of narrow numbers."""
    store(SOURCE, buffer, i, enter(load(MEMORY, x, at + i)))


def _given(i, out, buffer, at):
    """Write a number of a chunk of narrow numbers."""
    store(MEMORY, out, at + i, leave(load(FOUND, buffer, i)))


def _are_usual(numbers, count):
    """Return whether the network alone gives the result's bits: no number is huge or -0.

    A final zero of the network is then +0, as in the plain sum: a leading component passes through
    additions alone, and -0 results only from two of them, which do not occur, whatever the prefix.
    """
    usual = 0
    for k in range(TERMS):
        part = numbers[k]
        for i in range(count):
            x = value(part, i)
            usual += 1 if (abs(x) < HUGE) & ((k > 0) | (bits64(x) != LOWEST)) else 0
    return usual == TERMS * count


def _looped(first, last, step, usual, arguments):
    """Run a step with the network alone where that has the same bits.

    Numba compiles one loop alone if `usual` is None, and two if it is a condition.
    """
    if usual is None:
        over(first, last, step, (algorithm,) + arguments)  # noqa: RUF005
    elif NETWORK and usual:
        over(first, last, step, (network,) + arguments)  # noqa: RUF005
    else:
        over(first, last, step, (algorithm,) + arguments)  # noqa: RUF005


def _level(levels, level):
    """Return the addresses of the blocks on a level of a chunk's tree."""
    return shifted(spaced(levels, SIZE), CHUNK - (CHUNK >> level))


def _digit(tree, level, width):
    """Return the addresses of `width` numbers on a level of the second tree."""
    return spaced(advance(tree, level * TERMS * width), width)


def _counted(m, found, tree, width, usual):
    """Turn the m-th block of each of `width` rows, in place, into the result at its end.

    The first half of the tree has the last block of each size that waits for its other half, the
    second half the results at their ends.
    """
    ends = advance(tree, LEVELS * TERMS * width)
    level = 0
    while (m >> level) & 1 == 0:
        _looped(0, width, _joined, usual, (found, _digit(tree, level, width)))
        level += 1
    over(0, width, _kept, (_digit(tree, level, width), found))
    own = level
    if m >> level > 1:
        level += 1
        while (m >> level) & 1 == 0:
            level += 1
        _looped(0, width, _joined, usual, (found, _digit(ends, level, width)))
    over(0, width, _kept, (_digit(ends, own, width), found))


def _fetch(x, out, first, count):
    """Load what is read and written next into the cache."""
    for i in range(first, first + count, 8 << SMALLER):
        prefetch(x, i >> SMALLER)
        prefetch(out, i >> SMALLER)


def _after(begin, length, block, tree, found, before):
    """Return the result at the end of a chunk, whose own combination is `block`."""
    if length == CHUNK:
        store(BLOCK, found, 0, block)
        _counted(begin // CHUNK + 1, found, tree, 1, None)
        return load(BLOCK, found, 0)
    return algorithm(before, block) if begin > 0 else block


def row(item, data, workspace):
    """Compute the running results of one row."""
    count = number(data, 5)
    out, x = stored_words(data, 7), stored_words(data, 7 + COUNT)
    evens = advance(workspace, TERMS * SIZE)
    prefixes = advance(evens, TERMS * SIZE)
    tree = advance(prefixes, TERMS * SIZE)
    found = spaced(advance(tree, 2 * TERMS * LEVELS), 1)
    buffers = advance(tree, TERMS * (2 * LEVELS + 1))
    before = ZEROS
    for begin in range(0, count, CHUNK):
        length = min(CHUNK, count - begin)
        here = item * count + begin
        if NARROW:
            # The compiler assumes that operands do not overlap: results have another buffer.
            given, results = spaced(buffers, SIZE), spaced(advance(buffers, TERMS * SIZE), SIZE)
            over(0, length, _taken, (given, x, here))
        else:
            given, results = shifted(x, here), shifted(out, here)
        usual = True
        if NETWORK:
            usual = _are_usual(given, length)
            for k in range(TERMS):
                usual = usual & (abs(before[k]) < HUGE)
        # The next chunk is loaded into the cache while this one is computed.
        ahead, lines = here + CHUNK, AHEAD if length == CHUNK else 0
        source, top = given, 0
        while length >> top > 1:
            sums, firsts = _level(workspace, top), _level(evens, top)
            size = length >> top
            turns = size >> 1
            if top > 0:
                turns = (turns + WHOLE - 1) & -WHOLE
            for turn in range(0, turns, PIECE):
                _fetch(x, out, ahead, lines)
                ahead += lines
                _looped(turn, min(turn + PIECE, turns), _up, usual, (sums, firsts, source))
            if size & 1 == 1:
                store(EVEN, firsts, size >> 1, load(SOURCE, source, size - 1))
            source = sums
            top += 1
        after = _after(begin, length, load(SOURCE, source, 0), tree, found, before)
        # The results up to each block; before the first of a row there is nothing.
        ends = shifted(spaced(prefixes, SIZE), (top & 1) * HALF)
        store(FOUND, ends, 0, before)
        store(FOUND, ends, 1, after)
        if top == 0:
            store(FOUND, results, 0, after)
        while top > 0:
            level = top - 1
            firsts = _level(evens, level)
            size = length >> level
            if level == 0:
                halves = results
                for turn in range(0, size >> 1, PIECE):
                    _fetch(x, out, ahead, lines)
                    ahead += lines
                    arguments = (halves, ends, firsts, shifted(ends, 1))
                    _looped(turn, min(turn + PIECE, size >> 1), _last, usual, arguments)
                if size & 1 == 1:
                    last = algorithm(load(PREFIX, ends, size >> 1), load(EVEN, firsts, size >> 1))
                    store(FOUND, halves, size - 1, last)
            else:
                halves = shifted(spaced(prefixes, SIZE), (level & 1) * HALF)
                turns = ((size >> 1) + WHOLE) & -WHOLE
                _looped(0, turns, _down, usual, (halves, ends, firsts))
            if begin == 0:
                store(FOUND, halves, 0 if level == 0 else 1, load(EVEN, firsts, 0))
            ends = halves
            top -= 1
        if NARROW:
            over(0, length, _given, (out, results, here))
        before = after


def lanes(item, data, workspace):
    """Compute the running results of LANES adjacent rows, one element of each at a time."""
    rows, count, inner = number(data, 4), number(data, 5), number(data, 6)
    out, x = stored_words(data, 7), stored_words(data, 7 + COUNT)
    offsets = workspace
    found = spaced(advance(workspace, LANES), LANES)
    staged = found[:COUNT]
    tree = advance(workspace, LANES * (1 + TERMS))
    some, offset, together = adjacent(offsets, item, rows, count, inner)
    start = offset if together else 0
    usual = count <= LONG
    for m in range(1, count + 1):
        if together:
            # One line more for unaligned starts.
            _fetch(x, out, start + AWAY * inner, LANES + 1 if NARROW else LANES)
            over(0, LANES, _read, (found, x, start))
        else:
            over(0, LANES, _gathered, (staged, x, offsets, start))
            over(0, LANES, _entered, (found, staged))
        if NETWORK:
            usual = usual & _are_usual(found, LANES)
        _counted(m, found, tree, LANES, usual)
        if together:
            over(0, LANES, _written, (out, found, start))
        else:
            over(0, LANES, _left, (staged, found))
            over(0, some, _scattered, (out, staged, offsets, start))
        start += inner
