"""Sorts of rows by integers of components and indices.

A number's integer has the order of a component, relative to the least of the row. Its upper bits
and, below them, its index in the row form one word: no two words are equal, so any sort of them is
stable. Runs with equal upper bits are sorted by the lower bits, and then by the next component: the
values of the numbers hardly affect the time.

Words are distributed by two digits of the upper bits in which they differ, the lower digit first
(Knuth, The Art of Computer Programming 3, 5.2.5). Larger inputs are distributed by one digit into
bins that fit into the cache. Runs with equal digits are sorted by insertion if short, else by their
remaining bits. Words that are in order already skip all of that.

A long row is sorted in steps, each shared by threads: integers of all its pieces and their range;
counts of a piece's words per bin; the words into their bins; each bin.
"""

# Meaning of an item: a row, or a piece or a bin of one long row.
ROWS, INTEGERS, COUNTS, WORDS, BINS = range(5)
# Numbers of a piece of a long row.
PIECE = 1 << 16
# Fields of a long row with the results of previous steps.
HEAD = 5
# Greatest numbers of words sorted by insertion, and by two digits.
FEW, SOME = 24, 1 << 14
# Bits of a digit for larger numbers: the written lines, one per bin, stay in the cache.
BITS = 10
# 64-bit units for counts.
COUNTED = 1 << BITS
LOWEST, HIGHEST = -(2**63), 2**63 - 1


def waiting_workspace(count):
    """Return the units for two lists of ends of runs still to be sorted, each above FEW numbers."""
    return 5 * (count // FEW + 1)


def workspace(count: int) -> int:
    """Return the 64-bit units of workspace per thread: words twice, counts, runs, an order."""
    return 3 * count + COUNTED + waiting_workspace(count)


def long_workspace(count: int, parts: int) -> int:
    """Return the 64-bit units of workspace for all steps of a long row on `parts` threads."""
    pieces = -(-count // PIECE)
    return 2 * count + HEAD + COUNTED * (max(pieces, 1 + parts) + 5) + waiting_workspace(count)


def length(x):
    """Return an upper bound of the bits of an integer, off by at most one, as float64 rounds.

    It is 64 for a negative one, a difference beyond the signed range.
    """
    found = (bits64(float(x)) >> 52) - 1022
    return 64 if x < 0 else max(found, 0)


def rising(x, descending):
    """Return the integer of a number: in its order, equal for both zeros, and highest for NaN."""
    integer = bits64(x)
    integer = integer ^ ((integer >> 63) & HIGHEST)
    integer = 0 if x == 0.0 else integer
    integer = HIGHEST if x != x else integer
    return ~integer if descending else integer


def inserted(keys, first, last):
    """Sort a short run of words by insertion."""
    for i in range(first + 1, last):
        new = number(keys, i)
        j = i - 1
        while j >= first and number(keys, j) > new:
            put(keys, j + 1, number(keys, j))
            j -= 1
        put(keys, j + 1, new)


def by_digit(keys, to, counts, first, last, low, shift, mask):
    """Distribute words by one digit, whose counts become the ends of its bins."""
    total = first
    for j in range(mask + 1):
        here = number(counts, j)
        put(counts, j, total)
        total += here
    for i in range(first, last):
        key = number(keys, i)
        digit = ((key - low) >> shift) & mask
        at = number(counts, digit)
        put(counts, digit, at + 1)
        put(to, at, key)


def sort_words(keys, spare, counts, waiting, first, last):
    """Sort words; `waiting` is a list of the ends of runs still to be sorted."""
    put(waiting, 0, first)
    put(waiting, 1, last)
    depth = 1
    while depth > 0:
        depth -= 1
        first, last = number(waiting, 2 * depth), number(waiting, 2 * depth + 1)
        low, high, falls = number(keys, first), number(keys, first), 0
        for i in range(first + 1, last):
            key = number(keys, i)
            falls += 1 if key < number(keys, i - 1) else 0
            low, high = min(low, key), max(high, key)
        if falls == 0:
            continue
        size = last - first
        shift, longest = 0, 0
        if size > FEW:
            turns = 2 if size <= SOME else 1
            digit = min((length(size) + 5) >> 1, BITS - 1) if turns == 2 else BITS
            shift = max(0, length(high - low) - digit * turns)
            mask = (1 << digit) - 1
            upper = advance(counts, mask + 1)
            for j in range(turns * (mask + 1)):
                put(counts, j, 0)
            for i in range(first, last):
                bits = (number(keys, i) - low) >> shift
                put(counts, bits & mask, number(counts, bits & mask) + 1)
                if turns == 2:
                    put(upper, bits >> digit, number(upper, bits >> digit) + 1)
            if turns == 2:
                by_digit(keys, spare, counts, first, last, low, shift, mask)
                by_digit(spare, keys, upper, first, last, low, shift + digit, mask)
            else:
                by_digit(keys, spare, counts, first, last, low, shift, mask)
                for i in range(first, last):
                    put(keys, i, number(spare, i))
            if shift == 0:
                continue
            run = 0
            for i in range(first + 1, last):
                bits = (number(keys, i) - low) >> shift
                run = run + 1 if bits == (number(keys, i - 1) - low) >> shift else 0
                longest = max(longest, run)
        begin = first
        while begin < last:
            past = last
            if longest >= FEW:
                past = begin + 1
                bits = (number(keys, begin) - low) >> shift
                while past < last and (number(keys, past) - low) >> shift == bits:
                    past += 1
                if past - begin > FEW:
                    put(waiting, 2 * depth, begin)
                    put(waiting, 2 * depth + 1, past)
                    depth += 1
                    begin = past
                    continue
            inserted(keys, begin, past)
            begin = past


def by_value(keys, order, first, last, descending):
    """Sort a short run of indices by the numbers there, by insertion."""
    for i in range(first + 1, last):
        place = number(order, i)
        new = load(ANY, keys, place)
        j = i - 1
        while j >= first:
            other = number(order, j)
            there = load(ANY, keys, other)
            after = algorithm(there, new) if descending else algorithm(new, there)
            if not after:
                break
            put(order, j + 1, other)
            j -= 1
        put(order, j + 1, place)


def integers(key, order, spare, first, last, descending, ordered):
    """Write the integers of numbers; return the least, the greatest, and all differing bits."""
    for i in range(first, last):
        place = number(order, i) if ordered else i
        put(spare, i, rising(value(key, place), descending))
    one = number(spare, first)
    low, high, unlike = one, one, 0
    for i in range(first, last):
        integer = number(spare, i)
        low, high = min(low, integer), max(high, integer)
        unlike |= integer ^ one
    return low, high, unlike


def join_words(keys, spare, first, last, low, high, unlike):
    """Write words of integers and indices.

    Return the bits of an index, the number of lost bits, and whether these differ.
    """
    below = max(1, length(last - first - 1))
    lost = max(0, length(high - low) - (63 - below))
    mask = (1 << (63 - below)) - 1
    for i in range(first, last):
        bits = ((number(spare, i) - low) >> lost) & mask
        put(keys, i, (bits << below) | (i - first))
    return below, lost, unlike & ((1 << lost) - 1) != 0


def piece(step, item, data):
    """Do one step for a piece of a long row; see `row_loops`."""
    count = number(data, 5)
    descending = number(data, 7) != 0
    keys, spare = word(data, 2), advance(word(data, 2), count)
    head = advance(spare, count)
    first, last = item * PIECE, min(item * PIECE + PIECE, count)
    own = advance(head, HEAD)
    if step == INTEGERS:
        key = word(data, 13 + number(data, 11))
        low, high, unlike = integers(key, keys, spare, first, last, descending, False)
        put(own, 3 * item, low)
        put(own, 3 * item + 1, high)
        put(own, 3 * item + 2, unlike)
        return
    low, lost, below, shift = number(head, 0), number(head, 1), number(head, 2), number(head, 3)
    mask = (1 << (63 - below)) - 1
    own = advance(own, item * COUNTED)
    if step == COUNTS:
        for j in range(COUNTED):
            put(own, j, 0)
        for i in range(first, last):
            digit = (((number(spare, i) - low) >> lost) & mask) >> shift
            put(own, digit, number(own, digit) + 1)
        return
    for i in range(first, last):
        bits = ((number(spare, i) - low) >> lost) & mask
        at = number(own, bits >> shift)
        put(own, bits >> shift, at + 1)
        put(keys, at, (bits << below) | i)


def sort(item, data, workspace):
    """Sort a row, or do one step for a piece or a bin of a long row."""
    step = number(data, 6)
    if step == ROWS or step == BINS:
        sort_run(step, item, data, workspace)
    else:
        piece(step, item, data)


def sort_run(step, item, data, workspace):
    """Sort a row, or a bin of a long row."""
    count = number(data, 5)
    descending, start, stop = number(data, 7) != 0, number(data, 8), number(data, 9)
    nan_first, moved = number(data, 10) != 0, number(data, 11)
    none = LOWEST if descending else HIGHEST
    wanted = stop - start
    row = item if step == ROWS else 0
    places, numbers = word(data, 12), shifted(words(data, 13 + moved), row * count)
    keys = workspace if step == ROWS else word(data, 2)
    spare, counts = advance(keys, count), advance(keys, 2 * count)
    waiting = advance(counts, COUNTED)
    order = advance(waiting, waiting_workspace(count))
    first, last = 0, count
    if step == ROWS:
        low, high, unlike = integers(numbers[0], order, spare, 0, count, descending, False)
        # Whether bits that do not fit in a word differ.
        below, lost, hidden = join_words(keys, spare, 0, count, low, high, unlike)
    else:
        low, lost, below = number(counts, 0), number(counts, 1), number(counts, 2)
        hidden = number(counts, 4) != 0
        ends = advance(counts, HEAD)
        first = 0 if item == 0 else number(ends, item - 1)
        last = number(ends, item)
        counts = advance(workspace, 2 * count + HEAD + COUNTED)
        waiting = advance(ends, COUNTED * (1 + number(data, 1)) + 5 * (first // FEW + item))
        if first == last:
            return
    if wanted == count:
        order = advance(places, row * count)
    begin, past_all = first, last
    todo = advance(waiting, 2 * ((last - first) // FEW + 1))
    put_run(todo, 0, first, last, 0)
    runs, fresh = 1, True
    while runs > 0:
        runs -= 1
        first, last = number(todo, 3 * runs), number(todo, 3 * runs + 1)
        component = number(todo, 3 * runs + 2)
        if not fresh:
            # Indices are those in the run, in whose order equal numbers stay.
            part = advance(word(data, 13 + moved + component), row * count)
            low, high, unlike = integers(part, order, spare, first, last, descending, True)
            below, lost, hidden = join_words(keys, spare, first, last, low, high, unlike)
        sort_words(keys, spare, counts, waiting, first, last)
        mask = (1 << below) - 1
        for i in range(first, last):
            at = number(keys, i) & mask
            put(spare, i, at if fresh else number(order, first + at))
        for i in range(first, last):
            put(order, i, number(spare, i))
        fresh = False
        if not hidden and component == TERMS - 1:
            continue
        ties = 0
        for i in range(first + 1, last):
            ties += 1 if number(keys, i) >> below == number(keys, i - 1) >> below else 0
        while ties > 0 and first < last:
            past = first + 1
            bits = number(keys, first) >> below
            while past < last and number(keys, past) >> below == bits:
                past += 1
            # NaN are equal.
            apart = hidden or (bits << lost) + low != none
            if past - first > 1 and apart:
                if past - first <= FEW:
                    by_value(numbers, order, first, past, descending)
                else:
                    put_run(todo, runs, first, past, component if hidden else component + 1)
                    runs += 1
            first = past
    if wanted < count:
        begin = start
        if nan_first and is_nan(value(numbers[0], number(order, count - 1))):
            begin = count - 1
            while begin > 0 and is_nan(value(numbers[0], number(order, begin - 1))):
                begin -= 1
        past_all = begin + wanted
        out = advance(places, row * wanted)
        for i in range(wanted):
            put(out, i, number(order, begin + i))
    # All numbers have the index of their row's place; some are written from its begin on.
    to = row * count if wanted == count else row * wanted - begin
    for v in range(moved):
        out, x = word(data, 13 + v), word(data, 13 + TERMS + moved + v)
        for i in range(begin, past_all):
            put_moved(out, to + i, take_moved(x, row * count + number(order, i)))


def put_run(todo, k, first, last, component):
    """Write run k to be sorted, by this component."""
    put(todo, 3 * k, first)
    put(todo, 3 * k + 1, last)
    put(todo, 3 * k + 2, component)


def is_nan(x):
    """Return whether a number is NaN."""
    return x != x
