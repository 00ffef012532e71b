"""Generated source of products of rows: halving, element by element.

Adjacent rows are multiplied together, `wide` columns at a time. Short contiguous rows are
transposed first, so that their elements become such columns.
"""

from __future__ import annotations

from mcf.kernels.numba.compile.vector_loops import step
from mcf.kernels.numba.loops.rows import narrow_text
from mcf.kernels.numba.runtime import team
from mcf.kernels.row_tasks import Narrow

# Columns at a time; a narrower matrix takes all.
WIDE = 64
# Greatest length of rows that are transposed.
SHORT = 128
# Prefetch distance in elements of a column.
_AWAY = 2


def columns(rows: int, count: int, inner: int) -> int:
    """Return the number of rows that are multiplied together."""
    if inner > 1:
        return min(inner, WIDE)
    return WIDE if count <= SHORT and rows >= WIDE else 1


def items(rows: int, count: int, inner: int) -> int:
    """Return the number of items of rows."""
    wide = columns(rows, count, inner)
    return rows // inner * -(-inner // wide) if inner > 1 else -(-rows // wide)


def room(terms: int, count: int, wide: int = 1) -> int:
    """Return the numbers of workspace per thread: two halving buffers, and transposed rows."""
    return terms * wide * (2 * ((count + 1) // 2) + (count if wide > 1 else 0))


def _first_steps(narrow: Narrow, terms: int) -> list[str]:
    """Return steps that read narrow numbers: columns, their first halves, rows to be transposed."""
    s, d = (narrow_text.names(c, terms) for c in "sd")
    x = narrow_text.names("x", narrow.count)
    w = narrow_text.names("w", narrow.count)
    to, turned, moved = (f"({', '.join(c)},)" for c in (d, s, w))
    number = f"enter(load_x(({', '.join(x)},), {{}}))"
    both = f"algorithm({number.format('low + i')}, {number.format('high + i')})"
    copied = f"store_d({to}, i, {number.format('low + i')})"
    widened = f"store_s({turned}, i, enter(load_w({moved}, i)))"
    return [
        *step("first_joined", "i", ["low", "high", *d, *x], [f"store_d({to}, i, {both})"]),
        *step("first_copied", "i", ["low", *d, *x], [copied]),
        *step("widened", "i", [*s, *w], [widened]),
    ]


def _first_halves(narrow: Narrow, terms: int) -> list[str]:
    """Return statements that compute wide products of the halves of narrow columns."""
    size, count = int(narrow.format.itemsize), narrow.count
    d, x = narrow_text.members("d_at", terms), narrow_text.members("given", count)
    to = "(" + "".join(f"advance(here, {k} * size + {{i}} * width), " for k in range(terms)) + ")"
    asked = narrow_text.asked("given", count, size, f"low + {_AWAY} * apart", "width + 1")
    asked += narrow_text.asked("given", count, size, f"high + {_AWAY} * apart", "width + 1")
    return [
        "start = outer * inner * count + column",
        "left = (count + 1) >> 1",
        "pairs = count - left",
        "turns, length = (1, pairs * width) if apart == width else (pairs, width)",
        "for i in range(turns):",
        "    low, high = start + i * apart, start + (left + i) * apart",
        "    if turns > 1:",
        *("        " + line for line in asked),
        f"    d_at = {to.format(i='i')}",
        f"    over(0, length, first_joined, (low, high, {d}, {x},))",
        "if left > pairs:",
        f"    d_at = {to.format(i='pairs')}",
        f"    over(0, width, first_copied, (start + pairs * apart, {d}, {x},))",
        f"s = ({', '.join(f'advance(here, {k} * size)' for k in range(terms))},)",
        "apart = width",
        "here, there = there, here",
    ]


def source(terms: int, name: str, narrow: Narrow | None = None) -> str:
    """Return the loop `name` of `mcf.kernels.row_tasks`.

    Narrow numbers are widened where they are read, once each.
    """

    def each(form: str, count: int = terms) -> str:
        return "(" + "".join(f"{form.format(k=k)}, " for k in range(count)) + ")"

    def indented(depth: int, lines: list[str]) -> str:
        return "\n".join(" " * depth + line for line in lines)

    def unpacked(letters: str) -> str:
        return "; ".join(f"{', '.join(f'{c}{k}' for k in range(terms))}, = {c}_at" for c in letters)

    s, e, d = (each(c + "{k}") for c in "sed")
    names = {c: [f"{c}{k}" for k in range(terms)] for c in "sed"}
    both, two = [*names["s"], *names["e"], *names["d"]], [*names["s"], *names["d"]]
    body = f"store_d({d}, i, algorithm(load_s({s}, i), load_e({e}, i)))"
    held = terms if narrow is None else narrow.count
    lines = [
        *step("joined", "i", both, [body]),
        *step("copied", "i", two, [f"store_d({d}, i, load_s({s}, i))"]),
        *([] if narrow is None else _first_steps(narrow, terms)),
        "def kernel(data):",
        "    prefer_wide_vectors()",
        "    rows, count = number(data, 0), number(data, 1)",
        "    shares, parts, works = word(data, 2), number(data, 3), word(data, 4)",
        "    inner, wide = number(data, 5), number(data, 6)",
        f"    outs = {each('word(data, 7 + {k})')}",
        f"    given = {each(f'word(data, {7 + terms} + {{k}})', held)}",
        *("    " + line for line in team.ITEMS),
    ]
    if narrow is None:
        turned = [
            "for l in range(last):",
            "    at = (row + l) * count",
            "    for i in range(count):",
        ]
        moved = "put(s[{k}], i * wide + l, number(given[{k}], at + i))"
        turned += ["        " + moved.format(k=k) for k in range(terms)]
        column = [f"s = {each('advance(given[{k}], outer * inner * count + column)')}"]
    else:
        to, x = narrow_text.members("s", terms), narrow_text.members("given", held)
        here = f"({narrow_text.members('s', held)},)"
        turned = [
            "for l in range(last):",
            "    at = (row + l) * count",
            "    for i in range(count):",
            f"        store_w({here}, i * wide + l, load_x(({x},), at + i))",
            f"over(0, count * wide, widened, ({to}, {narrow_text.members('s', held)},))",
        ]
        column = _first_halves(narrow, terms)
    asked = "\n".join(
        f"                            prefetch(s[{k}], (i + {_AWAY}) * apart + {place})"
        for k in range(terms)
        for place in ("l", "half * apart + l")
    )
    return (
        "\n".join(lines)
        + f"""
            size = ((count + 1) >> 1) * wide
            own = (2 * size + (count * wide if wide > 1 else 0)) * {terms}
            here = advance(works, arrival * own)
            there = advance(here, {terms} * size)
            left = count
            if inner == 1 and wide > 1:
                row = item * wide
                width, apart, last = wide, wide, min(wide, rows - row)
                s = {each("advance(there, {k} * count * wide + " + f"{terms} * size)")}
{indented(16, turned)}
            else:
                tiles = (inner + wide - 1) // wide
                outer, column = item // tiles, item % tiles * wide
                width, apart = min(wide, inner - column), inner
                last, row = width, outer * inner + column
{indented(16, column)}
            while left > 1:
                half = (left + 1) >> 1
                pairs = left - half
                # What is not apart is one piece.
                turns, length = (1, pairs * width) if apart == width else (pairs, width)
                for i in range(turns):
                    if turns > 1:
                        for l in range(0, width, 8):
{asked}
                    s_at = {each("advance(s[{k}], i * apart)")}
                    e_at = {each("advance(s[{k}], (half + i) * apart)")}
                    d_at = {each("advance(here, {k} * size + i * width)")}
                    {unpacked("sed")}
                    over(0, length, joined, ({", ".join(both)},))
                if half > pairs:
                    s_at = {each("advance(s[{k}], pairs * apart)")}
                    d_at = {each("advance(here, {k} * size + pairs * width)")}
                    {unpacked("sd")}
                    over(0, width, copied, ({", ".join(two)},))
                s = {each("advance(here, {k} * size)")}
                apart = width
                here, there = there, here
                left = half
            s_at = s
            d_at = {each("advance(outs[{k}], row)")}
            {unpacked("sd")}
            over(0, last, copied, ({", ".join(two)},))
"""
    )
