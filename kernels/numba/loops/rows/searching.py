"""Searches of numbers in one sorted sequence (`mcf.kernels.ordering`).

The elements compared depend on a number only through the index where a step begins, so numbers take
their steps together, and their memory latencies overlap.
"""

# Operands: the sequence, the numbers, the starts of their steps, and their paths.
SEQUENCE, WANTED, STARTS, PATHS = range(4)
# Numbers searched together.
TOGETHER = 64

# 64-bit entries of workspace per thread.
WORKSPACE = 2 * TOGETHER


def search(item, data, workspace):
    """Search expansions. First components decide unless they are equal or NaN."""
    count, size, total = number(data, 5), number(data, 6), number(data, 7)
    out, sequence, wanted = word(data, 9), words(data, 10), words(data, 10 + TERMS)
    past = min(item * count + count, total)
    for first in range(item * count, past, TOGETHER):
        some = min(TOGETHER, past - first)
        for i in range(some):
            put(workspace, i, 0)
        left = size
        while left > 0:
            half = left - (left >> 1)
            for i in range(some):
                low = number(workspace, i)
                at = low + half - 1
                there, x = value(sequence[0], at), value(wanted[0], first + i)
                # The sign of a difference of floats decides without a branch, which half of the
                # numbers would take and no processor could guess.
                gap = there - x
                mask = bits64(gap) >> 63
                if not abs(gap) > 0.0:
                    before = algorithm(
                        load(SEQUENCE, sequence, at), load(WANTED, wanted, first + i)
                    )
                    mask = -1 if before else 0
                put(workspace, i, low + (half & mask))
            left = left >> 1
        for i in range(some):
            put(out, first + i, number(workspace, i))


def _at_level(i, starts, paths, level, wanted, half):
    """Do one step by a table entry, whose index is the path to it in binary."""
    low, path = load(STARTS, starts, i)[0], load(PATHS, paths, i)[0]
    precedes = algorithm(load(SEQUENCE, level, int(path)), load(WANTED, wanted, i))
    store(STARTS, starts, i, (low + half if precedes else low,))
    store(PATHS, paths, i, (2.0 * path + 1.0 if precedes else 2.0 * path,))


def _in_sequence(i, starts, sequence, wanted, half):
    """Do one step by an element of the sequence."""
    low = load(STARTS, starts, i)[0]
    there = load(SEQUENCE, sequence, int(low + half) - 1)
    precedes = algorithm(there, load(WANTED, wanted, i))
    store(STARTS, starts, i, (low + half if precedes else low,))


def search_numbers(item, data, workspace):
    """Search single components in vectors: lanes are step starts and elements there.

    The first levels read from a table of the elements that their steps compare, level by level,
    which stays in the cache: level k has 2**k entries.
    """
    count, size, total, depth = number(data, 5), number(data, 6), number(data, 7), number(data, 8)
    out, sequence = word(data, 9), words(data, 10)
    starts, paths = (workspace,), (advance(workspace, TOGETHER),)
    past = min(item * count + count, total)
    for first in range(item * count, past, TOGETHER):
        some = min(TOGETHER, past - first)
        wanted = shifted(words(data, 11), first)
        for i in range(some):
            store(STARTS, starts, i, (0.0,))
            store(PATHS, paths, i, (0.0,))
        left, begin = size, 0
        level = words(data, 12)
        for _ in range(depth):
            half = left - (left >> 1)
            arguments = (starts, paths, shifted(level, begin), wanted, float(half))
            over(0, some, _at_level, arguments)
            left, begin = left >> 1, 2 * begin + 1
        while left > 0:
            half = left - (left >> 1)
            over(0, some, _in_sequence, (starts, sequence, wanted, float(half)))
            left = left >> 1
        for i in range(some):
            put(out, first + i, int(load(STARTS, starts, i)[0]))
