"""Adjacent rows, one element of each of LANES rows at a time."""

# Rows at a time.
LANES = 64
# Prefetch distance in elements of a row: hardware prefetchers miss this stride.
AWAY = 2


def items(rows: int) -> int:
    """Return the number of items of rows."""
    return -(-rows // LANES)


def adjacent(offsets, item, rows, count, inner):
    """Write the offsets of an item's rows; return their number and the first one's offset.

    Also return whether all are adjacent in memory. After the last of the `inner` rows with one
    outer index, the next one is the first of the next outer index.
    """
    first = item * LANES
    lanes = min(LANES, rows - first)
    outer = first // inner
    column = first - outer * inner
    offset = outer * inner * count + column
    together = column + LANES <= inner
    at = offset
    for lane in range(LANES):
        put(offsets, lane, at)
        if lane + 1 < lanes:
            column += 1
            at += 1
            if column == inner:
                column = 0
                at += inner * (count - 1)
    return lanes, offset, together
