"""The text of extremes of rows by their first components, or by sums of narrow ones.

One reading, in vectors. Lanes are neighbours in memory, which are of several rows, of one or of
both: the elements of a row that are a multiple of `fold` apart share a lane. Each lane keeps its
largest element, where that is, and its second largest, which says in the end whether the row is
decided. Sums of 16 bits decide wherever they are exact in float64.
"""

from __future__ import annotations

import dataclasses

from mcf.kernels.formats import BF16, FP16, FP64, Format
from mcf.kernels.numba.compile.vector_loops import step
from mcf.kernels.numba.loops.moves import MOVES
from mcf.kernels.numba.runtime import team

# Lanes at a time: what is kept of them stays in the first level of the cache.
TILE = 512
# Turns ahead for which memory is asked: no processor guesses what four at a time need.
_AWAY = 4
# Rows that are turned at a time.
ROWS = 64
# How far apart their elements are then: not a multiple of what shares lines of the cache.
APART = ROWS + 8

_WORDS = (
    *("shares", "parts", "works", "index", "table"),
    *("count", "inner", "fold", "tiles", "rows", "room"),
)
_ADDRESSES = frozenset({"shares", "works", "index", "table"})


@dataclasses.dataclass(frozen=True)
class Looked:
    """What is looked at of an element: a first component, or a sum of narrow ones.

    Args:
        keys: the format of what is looked at.
        terms: how many components; of more than one, and of 16 bits, their sum.
        moved: the format of what is moved to the result.
    """

    keys: Format
    terms: int
    moved: Format

    @property
    def summed(self) -> bool:
        """Whether sums decide, which are exact but for few; else first components."""
        return self.keys in (BF16, FP16)

    @property
    def names(self) -> list[str]:
        """The variables with addresses of what is looked at."""
        return [f"x{k}" for k in range(self.terms)]

    @property
    def words(self) -> tuple[str, ...]:
        """The words of a table."""
        return (*_WORDS, *(f"given_{x}" for x in self.names))

    @property
    def letters(self) -> dict[str, tuple[int, Format]]:
        """Kinds of numbers, which do not overlap; formats of them.

        "x" is what is given, "y" that in rows that were turned; of a lane "t" is the largest, "u"
        the second, "p" the turn of the largest; "s", "v" and "q" are the same of another lane, so
        that loads and stores do not overlap.
        """
        return {"x": (self.terms, self.keys), **dict.fromkeys("ytupsvq", (1, FP64))}

    def value(self, place: str) -> list[str]:
        """Statements that make `v` of an element, and `usual` where it may decide."""
        if not self.summed:
            return [f"v = load_x(({self.names[0]},), {place})[0]"]
        lines = [f"c = load_x(({', '.join(self.names)},), {place})", "v, usual = c[0], True"]
        for k in range(1, self.terms):
            lines += [f"a, b = v, c[{k}]", "v = a + b"]
            if self.keys != FP16:
                # Of float16 all sums are exact.
                lines += ["usual &= (v - a == b) & (v - b == a)"]
        # Nor infinity, nor NaN, nor what rounds to infinity.
        return [*lines, "usual &= abs(v) < LIMIT"]


def _loaded(looked: Looked, turned: bool, place: str) -> list[str]:
    """Statements for `v`, signed so that the largest is looked for, of what lies in a row."""
    if not turned:
        return [*looked.value(place), "v = v * sign"]
    usual = ["usual = v == v"] if looked.summed else []
    return [f"v = load_y((y,), {place})[0] * sign", *usual]


def _taken(looked: Looked, turned: bool, element: str, place: str) -> list[str]:
    """Statements that bring one more element to a lane.

    A NaN stays the second largest; of sums the second is infinity where one is not usual.
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
    """The steps that take elements of rows, as they lie or turned."""
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
    """The step that brings a lane to another of the same row."""
    body = [
        *_LOADED,
        "v, third, other = load_s((s,), l)[0], load_v((w,), l)[0], load_q((q,), l)[0] + half",
    ]
    if looked.summed:
        # Of equal ones the first.
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
    """All turns of rows, as they lie or turned."""
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
        # What is left over is less than a turn.
        lines.append(f"over(0, rest, one, ({given}, float(m), sign, wide))")
    return "\n".join(" " * depth + line for line in lines)


def _smaller(looked: Looked) -> int:
    """By how many powers of two an element has fewer bytes than one of 64 bits."""
    return 4 - int(looked.keys.itemsize).bit_length()


def source(looked: Looked) -> str:
    """The loop."""
    take, give = MOVES[looked.moved]
    less = _smaller(looked)
    lines = [*_steps(looked, False), *_steps(looked, True)]
    # Turns as places, of which the first lanes' are a multiple of the fold.
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
