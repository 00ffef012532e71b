"""Generated source of a loop that sorts distinct words.

Words are distributed by two digits of the upper bits in which they differ, the lower digit first
(Knuth, The Art of Computer Programming 3, 5.2.5). Larger inputs are distributed by one digit into
bins that fit into the cache. Runs with equal digits are sorted by insertion if short, else by their
remaining bits. Words that are in order already skip all of that.
"""

from __future__ import annotations

# Greatest numbers of words sorted by insertion, and by two digits.
FEW, SOME = 24, 1 << 14
# Bits of a digit for larger numbers: the written lines, one per bin, stay in the cache.
BITS = 10
# 64-bit units for counts.
COUNTED = 1 << BITS

# The function `cut`, and `length`: an upper bound of the bits of an integer, off by at most one, as
# float64 rounds; 64 for a negative one, a difference beyond the signed range.
SOURCE = f"""
@jit
def length(d):
    found = (bits64(float(d)) >> 52) - 1022
    return 64 if d < 0 else max(found, 0)

@jit
def inserted(words, first, last):
    for i in range(first + 1, last):
        new = number(words, i)
        j = i - 1
        while j >= first and number(words, j) > new:
            put(words, j + 1, number(words, j))
            j -= 1
        put(words, j + 1, new)

@jit
def by_digit(words, to, counts, first, last, low, shift, mask):
    total = first
    for j in range(mask + 1):
        here = number(counts, j)
        put(counts, j, total)
        total += here
    for i in range(first, last):
        w = number(words, i)
        at = ((w - low) >> shift) & mask
        place = number(counts, at)
        put(counts, at, place + 1)
        put(to, place, w)

@jit
def cut(words, spare, counts, left, first, last):
    put(left, 0, first)
    put(left, 1, last)
    depth = 1
    while depth > 0:
        depth -= 1
        first, last = number(left, 2 * depth), number(left, 2 * depth + 1)
        low, high, falls = number(words, first), number(words, first), 0
        for i in range(first + 1, last):
            w = number(words, i)
            falls += 1 if w < number(words, i - 1) else 0
            low, high = min(low, w), max(high, w)
        if falls == 0:
            continue
        size = last - first
        shift, longest = 0, 0
        if size > {FEW}:
            turns = 2 if size <= {SOME} else 1
            digit = min((length(size) + 5) >> 1, {BITS} - 1) if turns == 2 else {BITS}
            shift = max(0, length(high - low) - digit * turns)
            mask = (1 << digit) - 1
            upper = advance(counts, mask + 1)
            for j in range(turns * (mask + 1)):
                put(counts, j, 0)
            for i in range(first, last):
                w = (number(words, i) - low) >> shift
                put(counts, w & mask, number(counts, w & mask) + 1)
                if turns == 2:
                    w = w >> digit
                    put(upper, w, number(upper, w) + 1)
            given, to = words, spare
            for turn in range(turns):
                by_digit(given, to, counts, first, last, low, shift + turn * digit, mask)
                given, to, counts = to, given, upper
            counts = advance(upper, -1 - mask)
            if turns == 1:
                for i in range(first, last):
                    put(words, i, number(spare, i))
            if shift == 0:
                continue
            run = 0
            for i in range(first + 1, last):
                alike = (number(words, i) - low) >> shift == (number(words, i - 1) - low) >> shift
                run = run + 1 if alike else 0
                longest = max(longest, run)
        begin = first
        while begin < last:
            past = last
            if longest >= {FEW}:
                past = begin + 1
                w = (number(words, begin) - low) >> shift
                while past < last and (number(words, past) - low) >> shift == w:
                    past += 1
                if past - begin > {FEW}:
                    put(left, 2 * depth, begin)
                    put(left, 2 * depth + 1, past)
                    depth += 1
                    begin = past
                    continue
            inserted(words, begin, past)
            begin = past

"""
