"""Native steps of programs (`mcf.kernels.program`): calls of loops, copies, tests of ranges."""

from __future__ import annotations

from mcf.kernels.numba.compile import stored
from mcf.kernels.numba.compile.loop import Loop


def calls(data):
    """Call the launches of a program until one counts unusable results.

    Fields: the numbers of addresses to copy, of calls and of supplied addresses, and whether a call
    counted; the supplied addresses; pairs of an index of these and the address of the field that it
    is copied to; for each call its code and argument, the addresses of two fields to be zeroed, and
    the address of a number that is not 0 if it counted.
    """
    at = 4 + number(data, 2)
    for _ in range(number(data, 0)):
        put(word(data, at + 1), 0, number(data, 4 + number(data, at)))
        at += 2
    for _ in range(number(data, 1)):
        put(word(data, at + 2), 0, 0)
        put(word(data, at + 3), 0, 0)
        call(word(data, at), word(data, at + 1))
        counted = word(data, at + 4)
        if counted != 0 and number(counted, 0) != 0:
            put(data, 3, 1)
            return
        at += 5
    put(data, 3, 0)


def move(data):
    """Copy elements of tensors, see `mcf.kernels.program.Move`."""
    count, tensors, size, index = number(data, 0), number(data, 1), number(data, 2), word(data, 3)
    for k in range(tensors):
        source, target = word(data, 4 + k), word(data, 4 + tensors + k)
        for i in range(count):
            j = i
            if index != 0:
                j = number(index, i)
            if size == 8:
                put(target, i, number(source, j))
            elif size == 4:
                put_half(target, i, half(source, j))
            elif size == 132:
                put(target, i, widened(source, j))
            elif size == 72:
                put_half(target, i, narrowed(source, j))
            else:
                put_byte(target, i, byte(source, j))


def within(data):
    """Test the range of numbers, see `mcf.kernels.program.Within`."""
    count, tensors = number(data, 0), number(data, 1)
    least, most = number(data, 2), number(data, 3)
    outside = 0
    for k in range(tensors):
        source = word(data, 5 + k)
        for i in range(count):
            # Without branches, so that it is a loop over vectors.
            x = number(source, i) & 0x7FFFFFFFFFFFFFFF
            outside |= (x != 0) & ((x < least) | (x > most))
    put(data, 4, outside)


def shared(data):
    """Call a loop on the team of threads, with its shares reset.

    Fields: the code and its argument struct, the shares and their number, the team, the items'
    counts and their number, and the output for the sum of counts.
    """
    function, table, shares, parts = word(data, 0), word(data, 1), word(data, 2), number(data, 3)
    team, counts, counted = word(data, 4), word(data, 5), number(data, 6)
    put(shares, 0, 0)
    for k in range(1, parts + 1):
        put(shares, 8 * k, number(shares, 8 * k + 2))
    threads = min(parts, number(team, 1))
    if threads > 1:
        call_team(word(team, 0), function, table, threads)
    else:
        call(function, table)
    found = 0
    for k in range(counted):
        found = found | number(counts, k)
    put(data, 7, found)


@stored.once
def native(function):
    """Return the native code of one of these functions."""
    return Loop(function, whole=True).native()
