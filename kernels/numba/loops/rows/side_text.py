"""Generated source of scans along adjacent rows (`mcf.kernels.row_tasks`).

One element of each of LANES rows fills one or more vectors, so that rows may be short and need not
lie along the last dimension. Elements of the rows that are adjacent in memory are read as vectors,
others one by one.
"""

from __future__ import annotations

from mcf.kernels.numba.compile.vector_loops import step
from mcf.kernels.numba.loops.rows import narrow_text
from mcf.kernels.numba.runtime import team
from mcf.kernels.row_tasks import Narrow

# Rows at a time.
LANES = 64
# Prefetch distance in elements of a row: hardware prefetchers miss this stride.
AWAY = 2
# Levels of blocks, more than an address has bits.
_LEVELS = 48
# Up to so many numbers below `scan_text.HUGE` have a sum within the range.
_LONG = 1 << 20


def letters(terms: int) -> dict[str, int]:
    """Return component counts by operand letter, which do not overlap; "r" is in memory."""
    return dict.fromkeys("rsd", terms)


def items(rows: int) -> int:
    """Return the number of items of rows."""
    return -(-rows // LANES)


def room(terms: int, count: int) -> int:
    """Return the 64-bit units of workspace per thread."""
    return LANES * (1 + terms * (2 + 2 * _LEVELS))


def source(terms: int, name: str, narrow: Narrow | None = None) -> str:
    """Return the loop `name` of `mcf.kernels.row_tasks`."""
    return _scan(terms, name, narrow)


def each(terms: int, form: str) -> str:
    """Return the source of a tuple: `form` with {k} from 0 on."""
    return "(" + "".join(f"{form.format(k=k)}, " for k in range(terms)) + ")"


def copied(name: str, to: str, source: str, terms: int) -> list[str]:
    """Return steps that copy components: contiguous, and gathered or scattered at `bases`."""
    t, s = (each(terms, c + "{k}") for c in "ts")
    names = [f"{c}{k}" for c in "ts" for k in range(terms)]
    near = f"store_{to}({t}, l, load_{source}({s}, l))"
    there, here = ("number(bases, l)" if c == "r" else "l" for c in (to, source))
    far = f"store_{to}({t}, {there}, load_{source}({s}, {here}))"
    return [*step(name, "l", names, [near]), *step(f"{name}_far", "l", ["bases", *names], [far])]


def moving(
    name: str, to: str, source: str, terms: int, indent: int, last: str, less: int = 0
) -> str:
    """Return the loop over a copy step; contiguous if `together` is set.

    An element to prefetch has 8 / 2**`less` bytes.
    """
    away = f"(l + AWAY * inner) >> {less}" if less else "l + AWAY * inner"
    given = ", ".join(f"{c}[{k}]" for c in (to, source) for k in range(terms))
    lines = ["if together:"]
    lines += ["    for l in range(0, LANES, 8):"]
    lines += [f"        prefetch(r[{k}], {away})" for k in range(terms)]
    lines += [f"    over(0, LANES, {name}, ({given},))"]
    lines += ["else:", f"    over(0, {last}, {name}_far, (bases, {given},))"]
    return "\n".join(" " * indent + line for line in lines)


BEGIN = """
    rows, count = number(data, 0), number(data, 1)
    shares, parts, works = word(data, 2), number(data, 3), word(data, 4)
    inner = number(data, 5)
"""

# Offsets of the rows' elements: the next index within one outer index, else the first of the next
# one.
BASES = """
            first = item * LANES
            lanes = min(LANES, rows - first)
            bases = work
            outer = first // inner
            column = first - outer * inner
            begin = outer * inner * count + column
            together = column + LANES <= inner
            at = begin
            for l in range(LANES):
                put(bases, l, at)
                if l + 1 < lanes:
                    column += 1
                    at += 1
                    if column == inner:
                        column = 0
                        at += inner * (count - 1)
            start = begin if together else 0
"""


def _narrow_moving(narrow: Narrow, terms: int, reads: bool) -> str:
    """Return `moving` of numbers that are narrower in memory."""
    size, count = int(narrow.format.itemsize), narrow.count
    r, s = "given" if reads else "outs", narrow_text.members("s", terms)
    memory, w = (narrow_text.members(c, count) for c in (r, "w"))
    # One line more for unaligned starts.
    asked = narrow_text.asked(r, count, size, "start + AWAY * inner", "LANES + 1")
    lines = ["if together:", *("    " + line for line in asked)]
    if reads:
        lines += [f"    over(0, LANES, entering, (start, {s}, {memory},))", "else:"]
        lines += [f"    over(0, LANES, taken, (bases, start, {w}, {memory},))"]
        lines += [f"    over(0, LANES, widened, ({s}, {w},))"]
    else:
        lines += [f"    over(0, LANES, leaving, (start, {memory}, {s},))", "else:"]
        lines += [f"    over(0, LANES, rounded, ({w}, {s},))"]
        lines += [f"    over(0, lanes, put_back, (bases, start, {memory}, {w},))"]
    return indented(16, lines)


def _ends(terms: int, narrow: Narrow | None) -> tuple[list[str], str, str]:
    """Return steps that read and write numbers, and the statements that run them."""
    if narrow is not None:
        steps = narrow_text.entering(narrow, terms) + narrow_text.leaving(narrow, terms, "s")
        steps += narrow_text.apart(narrow, terms)
        return steps, *(_narrow_moving(narrow, terms, reads) for reads in (True, False))
    steps = copied("fetched", "s", "r", terms) + copied("written", "r", "s", terms)
    found = []
    for variable, name, to, source, last in (
        ("given", "fetched", "s", "r", "LANES"),
        ("outs", "written", "r", "s", "lanes"),
    ):
        place = each(terms, f"advance({variable}[{{k}}], start)")
        found.append(f"{' ' * 16}r = {place}\n{moving(name, to, source, terms, 16, last)}")
    return steps, found[0], found[1]


def _scan(terms: int, name: str, narrow: Narrow | None) -> str:
    s, t = (each(terms, c + "{k}") for c in "st")
    names = [f"{c}{k}" for c in "ts" for k in range(terms)]
    steps, read, written = _ends(terms, narrow)
    held = terms if narrow is None else narrow.count
    lines = [*steps, *copied("kept", "d", "s", terms)]
    # With one component the algorithm is the network already.
    bare = name == "cumsum" and terms > 1
    for loop, function in (("joined", "algorithm"), ("bare", "network"))[: 1 + bare]:
        both = f"{function}(load_d({t}, l), load_s({s}, l))"
        lines += step(loop, "l", names, [f"store_s({s}, l, {both})"])
    given = ", ".join(f"{c}[{k}]" for c in "ds" for k in range(terms))
    general, alone = (f"over(0, LANES, {loop}, ({given},))" for loop in ("joined", "bare"))
    combined = ["if usual:", f"    {alone}", "else:", f"    {general}"] if bare else [general]
    # Per level: the last block that waits for its other half, and its prefix.
    block, reached = (f"LANES * ({1 + terms} + {terms} * ({at}) + {{k}})" for at in _PLACES)
    return (
        "\n".join(lines)
        + f"""
def kernel(data):
    prefer_wide_vectors()
{BEGIN}
    outs = {each(held, "word(data, 6 + {k})")}
    given = {each(held, f"word(data, {6 + held} + {{k}})")}
"""
        + "\n".join("    " + line for line in team.ITEMS)
        + f"""
            work = advance(works, arrival * {room(terms, 0)})
{BASES}
            s = {each(terms, "advance(work, LANES * (1 + {k}))")}
            w = {each(terms, f"advance(work, LANES * ({1 + terms * (1 + 2 * _LEVELS)} + {{k}}))")}
            usual = count <= {_LONG}
            for m in range(1, count + 1):
{read}
{indented(16, _checked(terms) if bare else [])}
                level = 0
                left = True
                while left:
                    if (m >> level) & 1 == 0:
                        d = {each(terms, f"advance(work, {block})")}
                        level += 1
                    else:
                        left = False
                        d = {each(terms, f"advance(work, {block})")}
                        over(0, LANES, kept, ({given},))
                        later = level
                        if m >> level == 1:
                            break
                        level += 1
                        while (m >> level) & 1 == 0:
                            level += 1
                        d = {each(terms, f"advance(work, {reached})")}
{indented(20, combined)}
                level = later
                d = {each(terms, f"advance(work, {reached})")}
                over(0, LANES, kept, ({given},))
{written}
                start += inner
"""
    )


_PLACES = "level", f"{_LEVELS} + level"


def indented(depth: int, lines: list[str]) -> str:
    """Indent lines by `depth` spaces."""
    return "\n".join(" " * depth + line for line in lines)


def _checked(terms: int) -> list[str]:
    """Return whether the network alone still has the bits of the sum, see `scan_text`."""
    found = ["left = 0"]
    for k in range(terms):
        own = " & (bits64(v) != LOWEST)" if k == 0 else ""
        found += [
            "for l in range(LANES):",
            f"    v = load_s(s, l)[{k}]",
            f"    left += 1 if (abs(v) < HUGE){own} else 0",
        ]
    return [*found, f"usual = usual & (left == {terms} * LANES)"]
