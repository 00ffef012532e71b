"""Generated source of folds of adjacent rows, whose lanes are kept for a tile of rows at a time.

Rows are columns of matrices, adjacent in memory, or short contiguous rows. In a matrix no wider
than a tile, several elements of all columns are contiguous, and so are their lanes.
"""

from __future__ import annotations

from mcf.kernels.fold import GROUP, Fold
from mcf.kernels.numba.compile import vector_loops
from mcf.kernels.numba.runtime import team

# Columns per tile, whose lanes stay in the second-level cache.
TILE = 32
# Prefetch distance in elements of a column.
_AWAY = 2
WORDS = (
    *("bases", "out", "lanes_of_all", "shares", "parts"),
    *("total", "inner", "blocks", "tiles", "results", "wide", "far"),
)
_ADDRESSES = ("bases", "out", "lanes_of_all", "shares")


def source(spec: Fold, beside: bool = True) -> str:
    """Return the kernel; an item is a block of columns. See `mcf.kernels.fold` for the order.

    With `beside` equal elements of adjacent columns are adjacent in memory; else they are `far`
    apart, and a column has at most LANES elements.
    """
    addresses = [f"a{o}_{c}" for o, n in enumerate(spec.components) for c in range(n)]
    results = ", ".join(f"s{k}" for k in range(spec.state))
    next_to = "l" if beside else "l * far"

    # An operand with one element per row has a tile's elements adjacent in memory.
    fixed = len(spec.components) - spec.fixed

    def term(at: str) -> str:
        operands = []
        for o, n in enumerate(spec.components):
            place = f"{at} + {next_to}" if o < fixed else "own + l"
            loads = "".join(f"load_{o}_{c}(a{o}_{c}, {place}), " for c in range(n))
            operands.append(f"({loads})")
        return f"term({', '.join(operands)})"

    def state(index: str, which: str = "lane") -> str:
        cells = (f"{which}(lanes, {k} * stride + {index})" for k in range(spec.state))
        return f"({', '.join(cells)},)"

    trees = [term(f"here + {r} * apart") for r in range(GROUP)]
    while len(trees) > 1:
        trees = [f"merge({a}, {b})" for a, b in zip(trees[::2], trees[1::2], strict=True)]
    values = {"one": term("here"), "group": trees[0]} if beside else {"one": term("here")}
    given = [*addresses, "lanes", "stride", "here", "apart", "far", "to"]
    given += ["own"] * spec.fixed
    lines: list[str] = []
    kept = [f"store(lanes, {k} * stride + to + l, s{k})" for k in range(spec.state)]
    for name, value in values.items():
        lines += vector_loops.step(f"{name}_first", "l", given, [f"{results}, = {value}", *kept])
        both = f"combine({state('to + l')}, {value})"
        lines += vector_loops.step(name, "l", given, [f"{results}, = {both}", *kept])
    both = f"combine({state('l')}, {state('other + l', 'peek')})"
    halved = [line.replace("to + l", "l") for line in kept]
    lines += vector_loops.step(
        "halved", "l", ["lanes", "stride", "other"], [f"{results}, = {both}", *halved]
    )
    copies = [
        f"store(out, {k} * size + to + l, peek(lanes, {k} * stride + l))" for k in range(spec.state)
    ]
    lines += vector_loops.step("written", "l", ["out", "lanes", "stride", "size", "to"], copies)

    def added(depth: int, name: str, count: str) -> str:
        call = f"over(0, width * {count}, {{}}, ({', '.join(given)},))"
        found = ["if fresh:", f"    {call.format(f'{name}_first')}"]
        found += ["else:", f"    {call.format(name)}"]
        return "\n".join(" " * depth + line for line in found)

    def asked(depth: int, places: list[str]) -> str:
        if not beside:
            return ""
        found = ["if span == 1:"]
        for o, n in enumerate(spec.components[:fixed]):
            # In steps of a line's elements, plus one line for unaligned starts; prefetch counts
            # elements of 8 bytes.
            size = int(spec.formats[o].itemsize)
            found.append(f"    for l in range(0, TILE + 1, {64 // size}):")
            at = [f"({p} + l) * {size} >> 3" for p in places]
            found += [f"        prefetch(a{o}_{c}, {p})" for c in range(n) for p in at]
        return "\n".join(" " * depth + line for line in found)

    words = "\n".join(
        f"    {name} = {'word' if name in _ADDRESSES else 'number'}(data, {k})"
        for k, name in enumerate(WORDS)
    )
    bases = "\n".join(f"    {a} = word(bases, {k})" for k, a in enumerate(addresses))
    ahead = [f"here + {r} * apart + {_AWAY} * inner" for r in range(GROUP)]
    # Elements of a narrow matrix that are folded together; fixed operands have copies for STEP.
    together, last = ("STEP", "min(span, some - j)") if spec.fixed else ("some", "span")
    own = "own = outer * STEP * wide if narrow else outer * wide + column" if spec.fixed else ""
    chunks = f"""
            while at + CHUNK <= length:
                span = STEP if narrow else 1
                for t in range(0, LANES, STEP):
                    for j in range(0, STEP, span):
                        here = start + (at + t * GROUP + j) * inner
                        to = (t + j) * tile
{asked(24, ahead)}
{added(24, "group", "span")}
                at += CHUNK
                fresh = False
"""
    return (
        "\n".join(lines)
        + f"""
def kernel(data):
    prefer_wide_vectors()
{words}
{bases}
    narrow = {"tiles == 1" if beside else "False"}
    tile = wide if narrow else TILE
"""
        + "\n".join("    " + line for line in team.ITEMS)
        + f"""
            stride, size = LANES * TILE, blocks * results
            lanes = advance(lanes_of_all, arrival * {spec.state} * stride)
            column = item % tiles * TILE
            block, outer = item // tiles % blocks, item // tiles // blocks
            width = min(TILE, wide - column)
            length = min(BLOCK, total - block * BLOCK)
            start = (outer * total + block * BLOCK) * inner + column * far
            at, apart, fresh = 0, STEP * inner, True
            {own}
{chunks if beside else ""}
            while at < length:
                some = min(LANES, length - at)
                span = {together} if narrow else 1
                for j in range(0, some, span):
                    here, to = start + (at + j) * inner, j * tile
{asked(20, ahead[:1])}
{added(20, "one", last)}
                at += some
                fresh = False
            count = min(length, LANES)
            while count > 1:
                half = (count + 1) // 2
                # What is not one of these columns is of no use and does no harm.
                over(0, (count - half) * tile, halved, (lanes, stride, half * tile))
                count = half
            to = block * results + outer * wide + column
            over(0, width, written, (out, lanes, stride, size, to))
"""
    )


def short_source(spec: Fold) -> str:
    """Return the kernel of short contiguous rows."""
    return source(spec, beside=False)
