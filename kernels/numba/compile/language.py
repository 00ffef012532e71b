"""The names that loops are written over, which `mcf.kernels.numba.compile.bound` binds.

A loop is an ordinary Python function over an item, operands, 64-bit integers, addresses and float64
numbers. Its parameters after the item are the fields of its argument struct, but `data` is the
address of that and `workspace` that of the thread's workspace. An expansion is a tuple of TERMS
numbers in registers, and a tuple of TERMS addresses in memory; ZEROS is one of zeros.

A loop reads `x = operand[i]` and writes `operand[i] = x`. The same function is compiled for one
matrix an item, or for a block of matrices with one matrix per vector lane: a number is then the
vectors of its lanes in scratch memory, and `operand[i, lane]` is the number of one lane.

| name | meaning |
|---|---|
| number, word, value (address, i) | the 64-bit integer, address or float64 i of an array |
| put (address, i, x) | store a 64-bit integer |
| take_moved, put_moved (address, i) | the bits of a component that is moved without arithmetic |
| advance (address, i) | the address of the 64-bit entry i of an array |
| words (address, i), stored_words | the addresses i, i + 1, ... of TERMS or COUNT components |
| shifted (addresses, i) | the addresses of the 64-bit entries i of arrays |
| spaced (address, n) | the addresses of TERMS arrays of n 64-bit entries, one after the other |
| load, store (operand, addresses, i) | the components of number i |
| prefetch (addresses, i) | load the float64 numbers i into the cache, if there are any |
| over (first, last, step, arguments) | step(i, *arguments) for each i, on two vectors at a time |
| over_one (first, last, step, arguments) | the same loop on one vector at a time |
| bits64 (x) | the bit pattern of a float64 |

The operand of `load` and `store` is a small integer, for memory that a loop addresses in other
ways. Tensors and workspaces of different operands do not overlap, so that LLVM vectorises; ANY may
overlap every other one. Further names are those of a `Loop`: the task's algorithms, and constants.
"""


def items(data):
    """Call a loop for each item that this thread claims: first those of one share, then others.

    An argument struct begins with the address of the shares, their number, the address of the
    threads' workspaces, and the 64-bit entries of one workspace.
    """
    prefer_wide_vectors()
    shares, parts = word(data, 0), number(data, 1)
    arrival = claim(shares, 0)
    arguments = fields(data, arrival)
    for turn in range(parts):
        share = SHARE * ((arrival + turn) % parts + 1)
        end = number(shares, share + 1)
        while True:
            item = claim(shares, share)
            if item >= end:
                break
            loop(item, *arguments)


def nothing():
    """Do nothing: in place of `prefer_wide_vectors` for loops that 512-bit vectors slow down."""


def same(x):
    """Return x: the conversion of components that need none."""
    return x
