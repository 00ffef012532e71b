"""Generated source of extremes and running extremes of adjacent rows, see `side_text`.

A long row is split into LANES rows of every LANES-th element; the extreme of their extremes is the
result.
"""

from __future__ import annotations

from mcf.kernels.formats import FP64, Format
from mcf.kernels.narrow_keys import HUGE
from mcf.kernels.numba.compile.vector_loops import step
from mcf.kernels.numba.loops.rows.side_text import (
    BASES,
    BEGIN,
    LANES,
    copied,
    each,
    indented,
    moving,
)
from mcf.kernels.numba.runtime import team

# Length from which rows are cut into LANES.
LONG = 256


def letters(terms: int) -> dict[str, int]:
    """Return component counts by operand letter, which do not overlap; "r" and "x" are inputs."""
    return {**dict.fromkeys("rsd", terms), **dict.fromkeys("xcfp", 1)}


def room(terms: int, moved: int) -> int:
    """Return the 64-bit units of workspace per thread."""
    return LANES * (3 + 2 * terms + moved)


def source(terms: int, name: str, fmt: Format = FP64, keys: Format = FP64) -> str:
    """Return the loop `name` of `mcf.kernels.row_tasks` for a format of numbers and one of keys."""
    return _running(terms, fmt, keys) if name.startswith("running") else _extreme(terms)


def _compared(terms: int, key: str = "{}") -> list[str]:
    """Return steps that keep keys and indices of extremes; `key` makes a key canonical.

    Indices are float64, exactly, so that all lanes have one width.
    """
    s, d = (each(terms, c + "{k}") for c in "sd")
    names = [f"{c}{k}" for c in "ds" for k in range(terms)]
    chosen = ", ".join(f"w[{k}] if wins else t[{k}]" for k in range(terms))
    return [
        *copied("fetched", "s", "r", terms),
        *step(
            "compared",
            "l",
            ["m", *names, "f", "p"],
            [
                f"t, w = load_d({d}, l), {key.format(f'load_s({s}, l)')}",
                "wins, place = algorithm(t, w), load_p((p,), l)[0]",
                f"store_d({d}, l, ({chosen},))",
                "store_f((f,), l, (1.0 if wins else 0.0,))",
                "store_p((p,), l, (m if wins else place,))",
            ],
        ),
        *step(
            "begun",
            "l",
            [*names, "f", "p"],
            [
                f"store_d({d}, l, {key.format(f'load_s({s}, l)')})",
                "store_f((f,), l, (1.0,))",
                "store_p((p,), l, (0.0,))",
            ],
        ),
    ]


def _kernel(terms: int) -> str:
    return (
        f"""
def kernel(data):
    prefer_wide_vectors()
{BEGIN}
    moved, places = number(data, 6), word(data, 7)
    keys = {each(terms, "word(data, 8 + moved + {k})")}
"""
        + indented(4, list(team.ITEMS))
        + f"""
            work = advance(works, arrival * ({room(terms, 0)} + LANES * moved))
            f, p = advance(work, LANES), advance(work, 2 * LANES)
            s = {each(terms, "advance(work, LANES * (3 + {k}))")}
            d = {each(terms, f"advance(work, LANES * ({3 + terms} + {{k}}))")}
            c_all = advance(work, LANES * {3 + 2 * terms})
"""
    )


def _step(terms: int, keys: Format = FP64) -> str:
    """Return the step for one element of each row: key, index, and whether it wins."""
    given = ", ".join(f"{c}[{k}]" for c in "ds" for k in range(terms))
    return f"""
                r = {each(terms, f"{_advance(keys, 'key')}(keys[{{k}}], start)")}
{moving("fetched", "s", "r", terms, 16, "LANES", _smaller(keys))}
                if m == 0:
                    over(0, LANES, begun, ({given}, f, p))
                else:
                    over(0, LANES, compared, (float(m), {given}, f, p))
"""


def _advance(fmt: Format, kind: str) -> str:
    """Return the function that addresses a format's elements; the common one for 64 bits."""
    return "advance" if fmt == FP64 else f"advance_{kind}"


def _smaller(fmt: Format) -> int:
    """Return log2 of 8 bytes over the element's size."""
    return 3 - (int(fmt.itemsize).bit_length() - 1)


def _running(terms: int, fmt: Format, held: Format) -> str:
    advance, less = _advance(fmt, "x"), _smaller(fmt)
    key = {FP64: "key({})" if terms == 2 else "{}"}.get(held, f"key({{}}, LIMIT, {HUGE})")
    taken = "store_c((c,), l, (w if load_f((f,), l)[0] > 0 else t,))"
    lines = [*_compared(terms, key)]
    for name, at in (("", "l"), ("_far", "number(bases, l)")):
        lines += step(
            f"taken{name}",
            "l",
            ["bases", "c", "f", "x"],
            [f"t, w = load_c((c,), l)[0], load_x((x,), {at})[0]", taken],
        )
        lines += step(
            f"given{name}", "l", ["bases", "c", "x"], [f"store_x((x,), {at}, load_c((c,), l))"]
        )
        lines += step(
            f"placed{name}",
            "l",
            ["bases", "p", "to"],
            [f"put(to, {at}, int(load_p((p,), l)[0]))"],
        )
    return (
        "\n".join(lines)
        + _kernel(terms)
        + f"""
{BASES}
            for m in range(count):
{_step(terms, held)}
                to = advance(places, start)
                if together:
                    for l in range(0, LANES, 8):
                        prefetch(to, l + AWAY * inner)
                        for v in range(moved):
                            at = (start + l + AWAY * inner) >> {less}
                            prefetch(word(data, 8 + v), at)
                            prefetch(word(data, {8 + terms} + moved + v), at)
                    over(0, LANES, placed, (bases, p, to))
                else:
                    over(0, lanes, placed_far, (bases, p, to))
                for v in range(moved):
                    c = advance(c_all, LANES * v)
                    x = {advance}(word(data, {8 + terms} + moved + v), start)
                    out = {advance}(word(data, 8 + v), start)
                    if together:
                        over(0, LANES, taken, (bases, c, f, x))
                        over(0, LANES, given, (bases, c, out))
                    else:
                        over(0, LANES, taken_far, (bases, c, f, x))
                        over(0, lanes, given_far, (bases, c, out))
                start += inner
"""
    )


def _extreme(terms: int) -> str:
    best = each(terms, "load(keys[{k}], base + place)")
    other = each(terms, "load(keys[{k}], base + at)")
    return (
        "\n".join(_compared(terms))
        + _kernel(terms)
        + f"""
            cut = inner == 1 and count >= {LONG}
            apart, turns = (LANES, count // LANES) if cut else (inner, count)
            bases, base, start, lanes, together = work, item * count, item * count, 1, True
            if not cut:
{indented(4, BASES.splitlines())}
            for m in range(turns):
{_step(terms)}
                start += apart
            if cut:
                # Of the lanes the first best, and what is left after them.
                place = int(load_p((p,), 0)[0]) * LANES
                for l in range(1, LANES + count % LANES):
                    at = turns * LANES + l - LANES
                    if l < LANES:
                        at = int(load_p((p,), l)[0]) * LANES + l
                    t, w = {best}, {other}
                    if algorithm(t, w) or (at < place and not algorithm(w, t)):
                        place = at
                put(places, item, place)
                for v in range(moved):
                    x = word(data, {8 + terms} + moved + v)
                    put(word(data, 8 + v), item, number(x, base + place))
            else:
                for l in range(lanes):
                    place = int(load_p((p,), l)[0])
                    put(places, first + l, place)
                    for v in range(moved):
                        x = word(data, {8 + terms} + moved + v)
                        here = number(bases, l) + place * inner
                        put(word(data, 8 + v), first + l, number(x, here))
"""
    )
