"""Generated source of eliminations of a batch of small matrices, one matrix per lane.

The steps are those of `elimination_text`, on whole matrices. Each step reads one kind of scratch
memory and writes another, except for the number that it updates. `p` has panels and right-hand
sides, `w` the subtrahend rows and their factors, `h` divisors and rows to be exchanged. `e` has
sizes of pivots, `f` the pivots' indices and the first bad one.
"""

from __future__ import annotations

from collections.abc import Sequence

from mcf.kernels.elimination import Elimination
from mcf.kernels.formats import FP32
from mcf.kernels.numba.loops.matrices.lane_text import LaneText, wide


def define_steps(text: LaneText, spec: Elimination) -> None:
    """Define the steps of an elimination, each a loop over lanes."""
    text.step("headed", "at_p at_h x h", "store_h(at_h, h + c, head(load_p(at_p, x + c)))")
    text.step("raised", "at_p at_h x h", "store_h(at_h, h + c, load_p(at_p, x + c))")
    text.step("lowered", "at_p at_h x h", "store_p(at_p, x + c, load_h(at_h, h + c))")
    text.step("kept", "at_p at_w x w", "store_w(at_w, w + c, load_p(at_p, x + c))")
    text.step(
        "divided",
        "at_p at_w at_h x w h",
        "q = quotient(load_p(at_p, x + c), load_h(at_h, h + c))",
        "store_p(at_p, x + c, q)",
        "store_w(at_w, w + c, q)",
    )
    text.step(
        "updated",
        "at_p at_w x m w",
        "less = update(load_p(at_p, x + c), load_w(at_w, m + c), load_w(at_w, w + c))",
        "store_p(at_p, x + c, less)",
    )
    if spec.kind == "substitution":
        return
    good = "magnitude(d) != 0" if spec.kind == "lu" else "d[0] > 0"
    text.step(
        "examined",
        "at_p at_f x f number",
        "d, bad = load_p(at_p, x + c), load_f(at_f, f + c)[0]",
        f"store_f(at_f, f + c, (number if (bad == 0) & (not ({good})) else bad,))",
    )
    if spec.kind == "cholesky":
        return
    text.step(
        "first",
        "at_p at_e at_f x e f number",
        "store_e(at_e, e + c, (magnitude(load_p(at_p, x + c)),))",
        "store_f(at_f, f + c, (number,))",
    )
    text.step(
        "compared",
        "at_p at_e at_f x e f number",
        "size, largest = magnitude(load_p(at_p, x + c)), load_e(at_e, e + c)[0]",
        "more = (size > largest) | ((size != size) & (largest == largest))",
        "store_e(at_e, e + c, (size if more else largest,))",
        "store_f(at_f, f + c, (number if more else load_f(at_f, f + c)[0],))",
    )
    # Exchange row `number` with another one, `w`, if it is the pivot's.
    each = range(spec.terms)
    text.step(
        "exchanged",
        "at_p at_w at_h at_f x w h f number",
        "here = load_f(at_f, f + c)[0] == number",
        "one, other, row = load_p(at_p, x + c), load_w(at_w, w + c), load_h(at_h, h + c)",
        f"store_p(at_p, x + c, ({''.join(f'other[{k}] if here else one[{k}], ' for k in each)}))",
        f"store_h(at_h, h + c, ({''.join(f'one[{k}] if here else row[{k}], ' for k in each)}))",
    )
    text.step(
        "signed",
        "at_w at_f w f number",
        "odd, d = load_f(at_f, f + c)[0] != number, load_w(at_w, w + c)",
        "other = minus(d)",
        f"store_w(at_w, w + c, ({''.join(f'other[{k}] if odd else d[{k}], ' for k in each)}))",
    )
    text.step(
        "multiplied",
        "at_w at_h w x h",
        "store_h(at_h, h + c, product(load_w(at_w, w + c), load_w(at_w, x + c)))",
    )
    text.step("returned", "at_w at_h w h", "store_w(at_w, w + c, load_h(at_h, h + c))")


COMMON = ("bases", "shares", "parts", "batch", "p_size", "w_size", "width")
CHOLESKY = (*COMMON, "info")
# Right-hand sides of a square matrix: their number; whether the determinant and L U are requested.
LU = (*CHOLESKY, "pivots", "rows", "exchange", "sides", "wanted", "stored")
SUBSTITUTION = (
    *(*COMMON, "columns", "unit"),
    *("a_batch", "a_row", "a_column", "x_batch", "x_row", "x_column"),
)
_ADDRESSES = ("bases", "shares", "pivots", "info")


def size(spec: Elimination) -> int:
    """Return the bytes of a number in scratch memory."""
    return 4 if spec.format.register == FP32 else 8


def operands(spec: Elimination) -> dict[str, int]:
    """Return component counts of the operands: A and X, scratch memory, determinants."""
    names = {"lu": "axpwhefz", "cholesky": "apwhf", "substitution": "axpwh"}[spec.kind]
    return {name: 1 if name in "ef" else spec.terms for name in names}


def words(spec: Elimination) -> Sequence[str]:
    """Return the fields of a call's argument struct."""
    return {"lu": LU, "cholesky": CHOLESKY, "substitution": SUBSTITUTION}[spec.kind]


def sizes(spec: Elimination, rows: int, width: int, sides: int) -> dict[str, int]:
    """Return the numbers per component of a thread's scratch memory, by operand letter."""
    counts = {"p": width * (rows + sides)} | dict.fromkeys("whef", 1 + max(rows, sides))
    held = operands(spec)
    return {kind: wide(size(spec)) * n for kind, n in counts.items() if kind in held}


def source(spec: Elimination) -> str:
    """Return the kernel of an elimination."""
    pad = wide(size(spec))
    text = LaneText(words(spec), _ADDRESSES, operands(spec), pad)
    define_steps(text, spec)
    text.opened(text.own)
    text.add(
        text.own,
        f"one = {pad}",
        "p = arrival * p_size",
        # Offsets in `w`, `h`, `e` and `f`: one number, then one for each of some rows or columns.
        "w = arrival * w_size",
        "rest = w + one",
    )
    {"lu": _lu, "cholesky": _cholesky, "substitution": _substitution}[spec.kind](text, text.own)
    return text.text()


def _lu(text: LaneText, depth: int) -> None:
    """Factorise L U of matrices with rows >= columns; solve and compute determinants."""
    _begun(text, depth)
    text.taken(depth, "rows * width", "store_p(at_p, p + {}, load_a(at_a, {}))")
    text.add(
        depth,
        "for j in range(width):",
        "    diagonal = p + j * (width + 1) * one",
        "    if exchange:",
        f"        {text.each('first', x='diagonal', e='w', f='rest + j * one', number='REAL(j)')}",
        "        for i in range(j + 1, rows):",
        "            below = p + (i * width + j) * one",
        "            "
        + text.each("compared", x="below", e="w", f="rest + j * one", number="REAL(i)"),
    )
    _exchange(text, depth + 2, "p", "width", "rows")
    text.add(
        depth + 1,
        text.each("examined", x="diagonal", f="w", number="REAL(j + 1)"),
        text.each("headed", x="diagonal", h="w"),
        "for i in range(j + 1, rows):",
        f"    {text.each('divided', x='p + (i * width + j) * one', w='rest + i * one', h='w')}",
        "for k in range(j + 1, width):",
        f"    {text.each('kept', x='p + (j * width + k) * one')}",
        "    for i in range(j + 1, rows):",
        "        " + text.each("updated", x="p + (i * width + k) * one", m="w", w="rest + i * one"),
    )
    text.add(depth, "if stored:")
    text.given(depth + 1, "rows * width", "store_a(at_a, {}, load_p(at_p, p + {}))")
    text.add(
        depth,
        "for c in range(count):",
        "    for j in range(width if exchange else 0):",
        "        found = int(load_f(at_f, rest + j * one + c)[0]) + 1",
        "        put(pivots, (base + c) * width + j, found)",
    )
    _ended(text, depth)
    text.add(depth, "if sides > 0:")
    _solve(text, depth + 1)
    text.add(depth, "if wanted:")
    _determinant(text, depth + 1)


def _begun(text: LaneText, depth: int) -> None:
    """Load the index of the first bad pivot so far."""
    text.add(
        depth,
        "for c in range(one):",
        "    store_f(at_f, w + c, (REAL(number(info, base + min(c, count - 1))),))",
    )


def _ended(text: LaneText, depth: int) -> None:
    """Store the index of the first bad pivot."""
    text.add(
        depth,
        "for c in range(count):",
        "    put(info, base + c, int(load_f(at_f, w + c)[0]))",
    )


def _exchange(text: LaneText, depth: int, start: str, columns: str, rows: str) -> None:
    """Exchange row j of a matrix in `p` with the pivot's row."""
    text.add(
        depth,
        f"for k in range({columns}):",
        f"    above = {start} + (j * {columns} + k) * one",
        f"    {text.each('kept', x='above', w='rest + k * one')}",
        f"    {text.each('raised', x='above', h='rest + k * one')}",
        f"    for i in range(j + 1, {rows}):",
        f"        below = {start} + (i * {columns} + k) * one",
        "        "
        + text.each(
            "exchanged",
            **{"x": "below", "w": "rest + k * one", "h": "rest + k * one"},
            **{"f": "rest + j * one", "number": "REAL(i)"},
        ),
        f"    {text.each('lowered', x='above', h='rest + k * one')}",
    )


def _solve(text: LaneText, depth: int) -> None:
    """Solve for right-hand sides of square matrices, stored after the matrices."""
    text.add(depth, "q = p + width * width * one")
    text.taken(depth, "width * sides", "store_p(at_p, q + {}, load_x(at_x, {}))")
    text.add(depth, "for j in range(width if exchange else 0):")
    _exchange(text, depth + 1, "q", "sides", "width")
    text.add(depth, "for j in range(width):", "    row = q + j * sides * one")
    text.add(
        depth + 1,
        "for s in range(sides):",
        f"    {text.each('kept', x='row + s * one', w='rest + s * one')}",
        "for k in range(j + 1, width):",
    )
    _less(text, depth + 2, "sides")
    text.add(
        depth,
        "for above in range(width):",
        "    j = width - 1 - above",
        "    row = q + j * sides * one",
    )
    _over(text, depth + 1, "sides")
    text.add(depth + 1, "for k in range(j):")
    _less(text, depth + 2, "sides")
    text.given(depth, "width * sides", "store_x(at_x, {}, load_p(at_p, q + {}))")


def _over(text: LaneText, depth: int, sides: str) -> None:
    """Divide row j of right-hand sides by the diagonal element; `rest` keeps the quotients."""
    text.add(
        depth,
        text.each("raised", x="p + j * (width + 1) * one", h="w"),
        f"for s in range({sides}):",
        f"    {text.each('divided', x='row + s * one', w='rest + s * one', h='w')}",
    )


def _less(text: LaneText, depth: int, sides: str) -> None:
    """Subtract from row k its element in column j times the row in `rest`."""
    text.add(
        depth,
        text.each("kept", x="p + (k * width + j) * one"),
        f"for s in range({sides}):",
        f"    there = q + (k * {sides} + s) * one",
        f"    {text.each('updated', x='there', m='w', w='rest + s * one')}",
    )


def _determinant(text: LaneText, depth: int) -> None:
    """Compute the products of the diagonals of U, with the signs of the exchanges."""
    text.add(
        depth,
        "for j in range(width):",
        f"    {text.each('kept', x='p + j * (width + 1) * one', w='rest + j * one')}",
        "for j in range(width if exchange else 0):",
        f"    {text.each('signed', w='rest', f='rest + j * one', number='REAL(j)')}",
        "left = width",
        "while left > 1:",
        "    half = left // 2",
        "    for k in range(half):",
        "        here, there = rest + k * one, rest + (left - half + k) * one",
        f"        {text.each('multiplied', w='here', x='there', h='here')}",
        "    for k in range(half):",
        f"        {text.each('returned', w='rest + k * one', h='rest + k * one')}",
        "    left -= half",
        "for c in range(count):",
        "    store_z(at_z, base + c, load_w(at_w, rest + c))",
    )


def _cholesky(text: LaneText, depth: int) -> None:
    """Factorise L of square matrices, in their lower triangles."""
    _begun(text, depth)
    text.taken(depth, "width * width", "store_p(at_p, p + {}, load_a(at_a, {}))")
    text.add(
        depth,
        "for j in range(width):",
        "    diagonal = p + j * (width + 1) * one",
        f"    {text.each('examined', x='diagonal', f='w', number='REAL(j + 1)')}",
        f"    {text.each('headed', x='diagonal', h='w')}",
        f"    {text.each('lowered', x='diagonal', h='w')}",
        "    for i in range(j + 1, width):",
        f"        {text.each('divided', x='p + (i * width + j) * one', w='rest + i * one', h='w')}",
        "    for k in range(j + 1, width):",
        "        for i in range(k, width):",
        "            there = p + (i * width + k) * one",
        f"            {text.each('updated', x='there', m='rest + k * one', w='rest + i * one')}",
        "for c in range(count):",
        "    here = (base + c) * width * width",
        "    for i in range(width):",
        "        for k in range(i + 1):",
        "            at = i * width + k",
        "            store_a(at_a, here + at, load_p(at_p, p + at * one + c))",
    )
    _ended(text, depth)


def _substitution(text: LaneText, depth: int) -> None:
    """Solve for X of triangular matrices with any strides, traversed as lower ones."""
    text.add(
        depth,
        "q = p + width * width * one",
        "for c in range(one):",
        "    here = base + min(c, count - 1)",
        "    for j in range(width):",
        "        a = here * a_batch + j * a_row",
        "        for k in range(j + 1):",
        "            at = (j * width + k) * one + c",
        "            store_p(at_p, p + at, load_a(at_a, a + k * a_column))",
        "        x = here * x_batch + j * x_row",
        "        for k in range(columns):",
        "            at = (j * columns + k) * one + c",
        "            store_p(at_p, q + at, load_x(at_x, x + k * x_column))",
        "for j in range(width):",
        "    row = q + j * columns * one",
        "    for s in range(columns if unit else 0):",
        f"        {text.each('kept', x='row + s * one', w='rest + s * one')}",
        "    if not unit:",
    )
    _over(text, depth + 2, "columns")
    text.add(depth + 1, "for k in range(j + 1, width):")
    _less(text, depth + 2, "columns")
    text.add(
        depth,
        "for c in range(count):",
        "    for j in range(width):",
        "        x = (base + c) * x_batch + j * x_row",
        "        for k in range(columns):",
        "            at = (j * columns + k) * one + c",
        "            store_x(at_x, x + k * x_column, load_p(at_p, q + at))",
    )
