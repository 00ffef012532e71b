"""The text of folds of rows that lie side by side: lanes are kept for a few columns at a time."""

from __future__ import annotations

from mcf.kernels.fold import GROUP, Fold
from mcf.kernels.numba import loops, team

# Columns at a time, whose lanes stay in the second level of the cache.
TILE = 32
# How many elements of a column ahead what comes next is asked for.
_AWAY = 2
WORDS = (
    *("bases", "out", "lanes_of_all", "shares", "parts"),
    *("total", "inner", "blocks", "tiles", "results"),
)
_ADDRESSES = ("bases", "out", "lanes_of_all", "shares")


def source(spec: Fold) -> str:
    """The kernel: an item is a block of so many columns; see `mcf.kernels.fold` for the order."""
    (components,) = spec.components
    addresses = [f"a{c}" for c in range(components)]
    results = ", ".join(f"s{k}" for k in range(spec.state))

    def term(at: str) -> str:
        return f"term(({', '.join(f'load_0_{c}(a{c}, {at})' for c in range(components))},))"

    def state(index: str, which: str = "lane") -> str:
        cells = (f"{which}(lanes, {k} * stride + {index})" for k in range(spec.state))
        return f"({', '.join(cells)},)"

    trees = [term(f"here + {r} * apart + l") for r in range(GROUP)]
    while len(trees) > 1:
        trees = [f"merge({a}, {b})" for a, b in zip(trees[::2], trees[1::2], strict=True)]
    values = {"one": term("here + l"), "group": trees[0]}
    given = [*addresses, "lanes", "stride", "here", "apart", "to"]
    lines: list[str] = []
    kept = [f"store(lanes, {k} * stride + to + l, s{k})" for k in range(spec.state)]
    for name, value in values.items():
        lines += loops.step(f"{name}_first", "l", given, [f"{results}, = {value}", *kept])
        both = f"combine({state('to + l')}, {value})"
        lines += loops.step(name, "l", given, [f"{results}, = {both}", *kept])
    both = f"combine({state('to + l')}, {state('other + l', 'peek')})"
    lines += loops.step(
        "halved", "l", ["lanes", "stride", "to", "other"], [f"{results}, = {both}", *kept]
    )
    copies = [
        f"store(out, {k} * size + to + l, peek(lanes, {k} * stride + l))" for k in range(spec.state)
    ]
    lines += loops.step("written", "l", ["out", "lanes", "stride", "size", "to"], copies)

    def added(depth: int, name: str) -> str:
        call = f"over(0, width, {{}}, ({', '.join(given)},))"
        found = ["if fresh:", f"    {call.format(f'{name}_first')}"]
        found += ["else:", f"    {call.format(name)}"]
        return "\n".join(" " * depth + line for line in found)

    def asked(depth: int, places: list[str]) -> str:
        found = ["for l in range(0, TILE, 8):"]
        found += [f"    prefetch({a}, {p} + l)" for a in addresses for p in places]
        return "\n".join(" " * depth + line for line in found)

    words = "\n".join(
        f"    {name} = {'word' if name in _ADDRESSES else 'number'}(data, {k})"
        for k, name in enumerate(WORDS)
    )
    bases = "\n".join(f"    {a} = word(bases, {k})" for k, a in enumerate(addresses))
    ahead = [f"here + {r} * apart + {_AWAY} * inner" for r in range(GROUP)]
    return (
        "\n".join(lines)
        + f"""
def kernel(data):
    prefer_wide_vectors()
{words}
{bases}
"""
        + "\n".join("    " + line for line in team.ITEMS)
        + f"""
            stride, size = LANES * TILE, blocks * results
            lanes = advance(lanes_of_all, arrival * {spec.state} * stride)
            column = item % tiles * TILE
            block, outer = item // tiles % blocks, item // tiles // blocks
            width = min(TILE, inner - column)
            length = min(BLOCK, total - block * BLOCK)
            start = (outer * total + block * BLOCK) * inner + column
            at, apart, fresh = 0, STEP * inner, True
            while at + CHUNK <= length:
                for t in range(0, LANES, STEP):
                    for j in range(STEP):
                        here = start + (at + t * GROUP + j) * inner
                        to = (t + j) * TILE
{asked(24, ahead)}
{added(24, "group")}
                at += CHUNK
                fresh = False
            while at < length:
                some = min(LANES, length - at)
                for j in range(some):
                    here, to = start + (at + j) * inner, j * TILE
{asked(20, ahead[:1])}
{added(20, "one")}
                at += some
                fresh = False
            count = min(length, LANES)
            while count > 1:
                half = (count + 1) // 2
                for j in range(count - half):
                    to, other = j * TILE, (half + j) * TILE
                    over(0, width, halved, (lanes, stride, to, other))
                count = half
            to = block * results + outer * inner + column
            over(0, width, written, (out, lanes, stride, size, to))
"""
    )
