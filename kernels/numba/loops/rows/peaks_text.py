"""Generated source of extremes of rows by first components, or by sums of narrow ones.

It reads the data once, in vectors. Lanes are adjacent in memory and belong to several rows, to one
or to both: elements of a row whose distance is a multiple of `fold` share a lane. Each lane keeps
its largest element, the index of that, and its second largest, which finally tells whether the row
is decided. Sums of 16-bit components decide wherever they are exact in float64.
"""

from __future__ import annotations

import dataclasses

from mcf.kernels.formats import BF16, FP16, FP64, Format
from mcf.kernels.numba.compile.vector_loops import step
from mcf.kernels.numba.loops.moves import MOVES
from mcf.kernels.numba.runtime import team

# Lanes at a time, whose state stays in the first-level cache.
TILE = 512
# Prefetch distance in turns: hardware prefetchers miss four streams.
_AWAY = 4
# Rows that are transposed at a time.
ROWS = 64
# Stride of their elements after transposing, chosen against cache set conflicts.
APART = ROWS + 8

_WORDS = (
    *("shares", "parts", "works", "index", "table"),
    *("count", "inner", "fold", "tiles", "rows", "room"),
)
_ADDRESSES = frozenset({"shares", "works", "index", "table"})


@dataclasses.dataclass(frozen=True)
class Looked:
    """Compared part of an element: a first component, or a sum of narrow components.

    Args:
        keys: the format of the compared components.
        terms: number of components; several 16-bit ones are summed.
        moved: the format of the components that are copied to the result.
    """

    keys: Format
    terms: int
    moved: Format

    @property
    def summed(self) -> bool:
        """Whether sums decide, which are exact except for rare ones; else first components."""
        return self.keys in (BF16, FP16)

    @property
    def names(self) -> list[str]:
        """The variables with addresses of the compared components."""
        return [f"x{k}" for k in range(self.terms)]

    @property
    def words(self) -> tuple[str, ...]:
        """The fields of an argument struct."""
        return (*_WORDS, *(f"given_{x}" for x in self.names))

    @property
    def letters(self) -> dict[str, tuple[int, Format]]:
        """Operand letters, which do not overlap, with their formats.

        "x" is the input, "y" the value in transposed rows. For a lane "t" is the largest, "u" the
        second and "p" the turn of the largest; "s", "v" and "q" are the same for another lane, so
        that loads and stores do not overlap.
        """
        return {"x": (self.terms, self.keys), **dict.fromkeys("ytupsvq", (1, FP64))}

    def value(self, place: str) -> list[str]:
        """Return statements that compute `v` of an element, and `usual` if it may decide."""
        if not self.summed:
            return [f"v = load_x(({self.names[0]},), {place})[0]"]
        lines = [f"c = load_x(({', '.join(self.names)},), {place})", "v, usual = c[0], True"]
        for k in range(1, self.terms):
            lines += [f"a, b = v, c[{k}]", "v = a + b"]
            if self.keys != FP16:
                # All sums of float16 are exact.
                lines += ["usual &= (v - a == b) & (v - b == a)"]
        # Excludes infinity, NaN, and sums that round to infinity.
        return [*lines, "usual &= abs(v) < LIMIT"]


def _loaded(looked: Looked, turned: bool, place: str) -> list[str]:
    """Return statements for `v` of an element in a row, signed so that the largest is sought."""
    if not turned:
        return [*looked.value(place), "v = v * sign"]
    usual = ["usual = v == v"] if looked.summed else []
    return [f"v = load_y((y,), {place})[0] * sign", *usual]


def _taken(looked: Looked, turned: bool, element: str, place: str) -> list[str]:
    """Return statements that add one more element to a lane.

    A NaN stays the second largest; for sums the second is infinity if one is not `usual`.
    """
    if looked.summed:
        second = ["above = v > top", "second = second if usual else INF"]
    else:
        second = [
            "above = v > top",
            "low = top if above else v",
            "second = low if low > second else second",
            "second = v if v != v else second",
        ]
    return [
        *_loaded(looked, turned, element),
        *second,
        f"place = {place} if above else place",
        "top = v if above else top",
    ]


_LOADED = ["top, second, place = load_t((t,), l)[0], load_u((u,), l)[0], load_p((p,), l)[0]"]
_KEPT = [
    "store_t((t,), l, (top,))",
    "store_u((u,), l, (second,))",
    "store_p((p,), l, (place,))",
]


def _steps(looked: Looked, turned: bool) -> list[str]:
    """Return the steps that process elements of rows, in place or transposed."""
    given = [*(["y"] if turned else looked.names), "t", "u", "p", "m", "sign", "wide"]
    name = "_turned" * turned
    begun = [
        *_loaded(looked, turned, "l"),
        "store_t((t,), l, (v,))",
        f"store_u((u,), l, ({'-INF if usual else INF' if looked.summed else '-INF'},))",
        "store_p((p,), l, (0.0,))",
    ]
    one = _taken(looked, turned, "l", "m")
    four = [
        line for r in range(4) for line in _taken(looked, turned, f"l + {r} * wide", f"m + {r}.0")
    ]
    return [
        *step(f"begun{name}", "l", given, begun),
        *step(f"one{name}", "l", given, [*_LOADED, *one, *_KEPT]),
        *step(f"four{name}", "l", given, [*_LOADED, *four, *_KEPT]),
    ]


def _merged(looked: Looked) -> list[str]:
    """Return the step that merges two lanes of one row."""
    body = [
        *_LOADED,
        "v, third, other = load_s((s,), l)[0], load_v((w,), l)[0], load_q((q,), l)[0] + half",
    ]
    if looked.summed:
        # The first of equal ones wins.
        body += [
            "above = (v > top) | ((v == top) & (other < place))",
            "second = third if third > second else second",
        ]
    else:
        body += [
            "above = v > top",
            "low = top if above else v",
            "second = low if low > second else second",
            "second = third if third > second else second",
            "second = v if v != v else second",
            "second = third if third != third else second",
        ]
    body += ["place = other if above else place", "top = v if above else top"]
    return step("merged", "l", ["t", "u", "p", "s", "w", "q", "half"], [*body, *_KEPT])


def _turns(looked: Looked, turned: bool, depth: int) -> str:
    """Return the loop over all turns of rows, in place or transposed."""
    name, less = "_turned" * turned, 0 if turned else _smaller(looked)
    x = ["y"] if turned else looked.names
    forward = "advance" if turned or looked.keys == FP64 else "advance_x"
    given = f"{', '.join(x)}, t, u, p"
    ahead = f"((r + {_AWAY}) * wide + l)" + f" >> {less}" * bool(less)

    def on(turns: str) -> str:
        return "; ".join(f"{c} = {forward}({c}, {turns}wide)" for c in x)

    lines = [
        f"over(0, lanes, begun{name}, ({given}, 0.0, sign, wide))",
        on(""),
        "m = 1",
        "while m + 4 <= turns:",
        "    for r in range(4):",
        f"        for l in range(0, lanes, {8 << less}):",
        *(f"            prefetch({c}, {ahead})" for c in x),
        f"    over(0, lanes, four{name}, ({given}, float(m), sign, wide))",
        f"    {on('4 * ')}",
        "    m += 4",
        "while m < turns:",
        f"    over(0, lanes, one{name}, ({given}, float(m), sign, wide))",
        f"    {on('')}",
        "    m += 1",
    ]
    if not turned:
        # The remainder is less than a turn.
        lines.append(f"over(0, rest, one, ({given}, float(m), sign, wide))")
    return "\n".join(" " * depth + line for line in lines)


def _smaller(looked: Looked) -> int:
    """Return log2 of 8 bytes over the element's size."""
    return 4 - int(looked.keys.itemsize).bit_length()


def source(looked: Looked) -> str:
    """Return the loop."""
    take, give = MOVES[looked.moved]
    less = _smaller(looked)
    lines = [*_steps(looked, False), *_steps(looked, True)]
    # Turns as indices; those of the first lanes are multiples of the fold.
    lines += step("placed", "l", ["p", "fold"], ["store_p((p,), l, (load_p((p,), l)[0] * fold,))"])
    lines += _merged(looked)
    words = "\n".join(
        f"    {name} = {'word' if name in _ADDRESSES or 'given' in name else 'number'}(data, {k})"
        for k, name in enumerate(looked.words)
    )
    names = looked.names
    forward = "advance" if looked.keys == FP64 else "advance_x"
    whole = "; ".join(f"{x} = given_{x}" for x in names)
    here = "; ".join(f"{x} = {forward}(given_{x}, outer * count * inner + column)" for x in names)
    ahead = "\n".join(
        f"                            prefetch(given_{x}, (at + i + {ROWS} * count) >> {less})"
        for x in names
    )
    value = "\n".join(" " * 24 + line for line in looked.value("at + i * inner"))
    kept = "v if usual else NAN" if looked.summed else "v"
    return (
        "\n".join(lines)
        + f"""
@jit
def finished(data, index, row, begin, inner, top, second, place, scale, least):
    # Infinities and NaN leave it open too.
    decided = second < top - (abs(top) * scale + least)
    put(index, row, int(place) if decided else -1)
    moved = number(data, MOVED)
    for v in range(moved):
        given = {take}(word(data, MOVED + 1 + moved + v), begin + int(place) * inner)
        {give}(word(data, MOVED + 1 + v), row, given)

def kernel(data):
    prefer_wide_vectors()
{words}
    sign, scale, least = load(table, 0), load(table, 1), load(table, 2)
"""
        + "\n".join("    " + line for line in team.ITEMS)
        + f"""
            t = advance(works, arrival * room)
            u, p = advance(t, {TILE}), advance(t, {2 * TILE})
            if fold == 0:
                # Short rows side by side: turned, their elements are neighbours.
                row = item * {ROWS}
                lanes, wide, turns = min(rows - row, {ROWS}), {APART}, count
                y = advance(t, {3 * TILE})
                outer = row // inner
                column = row - outer * inner
                at = outer * inner * count + column
                {whole}
                for l in range(lanes):
                    if inner == 1:
                        for i in range(0, count, {8 << less}):
{ahead}
                    for i in range(count):
{value}
                        store_y((y,), i * {APART} + l, ({kept},))
                    column, at = column + 1, at + 1
                    if column == inner:
                        column = 0
                        at += inner * (count - 1)
                own, rest = lanes, 0
{_turns(looked, True, 16)}
            else:
                outer, column = item // tiles, item % tiles * {TILE}
                own = min(inner - column, {TILE})
                wide, lanes, turns = inner * fold, own * fold, count // fold
                {here}
                row, rest = outer * inner + column, (count - turns * fold) * inner
{_turns(looked, False, 16)}
            half = fold >> 1
            if half > 0:
                over(0, lanes, placed, (p, float(fold)))
            while half > 0:
                s, w = advance(t, half * inner), advance(u, half * inner)
                q = advance(p, half * inner)
                over(0, half * inner, merged, (t, u, p, s, w, q, float(half)))
                half = half >> 1
            outer = row // inner
            column = row - outer * inner
            at = outer * inner * count + column
            for l in range(own):
                top, second, place = load_t((t,), l)[0], load_u((u,), l)[0], load_p((p,), l)[0]
                finished(data, index, row + l, at, inner, top, second, place, scale, least)
                column, at = column + 1, at + 1
                if column == inner:
                    column, at = 0, at + inner * (count - 1)
"""
    )
