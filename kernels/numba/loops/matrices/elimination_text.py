"""Generated source of eliminations: panels in scratch memory, whose rows are vectors.

A panel is copied to padded rows, so that loops always run over whole vectors: the numbers after a
row take part and are ignored. Factors of a row are read from memory that the loop does not write.
"""

from __future__ import annotations

from collections.abc import Sequence

from mcf.kernels.elimination import Elimination
from mcf.kernels.formats import FP32
from mcf.kernels.numba.loops.matrices.panel_text import PanelText

# Fields of a call's argument struct. `bases` are the addresses of the components of A, of X for a
# substitution, of the scratch memory and of a row; strides and offsets count elements.
COMMON = ("bases", "shares", "parts", "length", "scratch", "row_size", "width")
PANEL = (*COMMON, "pivots", "info", "start", "rows", "columns", "count", "exchange")
# Right-hand sides of a whole matrix: their number, the length of their rows, whether the
# determinant is requested.
LU = (*PANEL, "sides", "side", "wanted")
SUBSTITUTION = (
    *COMMON,
    *("tiles", "tile", "columns", "unit"),
    *("a_batch", "a_row", "a_column", "x_batch", "x_row", "x_column"),
)
_ADDRESSES = ("bases", "shares", "pivots", "info")


def padding(spec: Elimination) -> int:
    """Return the elements per step of a loop: two of the widest vectors."""
    return 32 if spec.format.register == FP32 else 16


def operands(spec: Elimination) -> dict[str, int]:
    """Return component counts of the operands: A and X, scratch memory and a row, determinants."""
    names = {"lu": "axpwz", "cholesky": "apw", "substitution": "axpw"}[spec.kind]
    return dict.fromkeys(names, spec.terms)


def words(spec: Elimination) -> Sequence[str]:
    """Return the fields of a call's argument struct."""
    return {"lu": LU, "cholesky": PANEL, "substitution": SUBSTITUTION}[spec.kind]


def _text(spec: Elimination) -> PanelText:
    """Return the source that all eliminations share: operations on a row."""
    text = PanelText(words(spec), _ADDRESSES, operands(spec), padding(spec))
    # Each thread's own scratch memory and row.
    text.add(text.own, "p = arrival * scratch", "w = arrival * row_size")
    text.step(
        "divide_row",
        "at_p at_w p w h",
        "q = quotient(load_p(at_p, p + c), h)",
        "store_p(at_p, p + c, q)",
        "store_w(at_w, w + c, q)",
    )
    text.step("keep_row", "at_p at_w p w", "store_w(at_w, w + c, load_p(at_p, p + c))")
    text.step(
        "update_row",
        "at_p at_w p w m",
        "store_p(at_p, p + c, update(load_p(at_p, p + c), m, load_w(at_w, w + c)))",
    )
    return text


def panel_source(spec: Elimination) -> str:
    """Return the kernel of "lu" and "cholesky", which factorises a matrix's panel in place.

    Row k of the scratch memory is column start + k of A from row `start` on. "lu" also exchanges
    the rows of all other columns of A. "cholesky" factorises the square block on the diagonal.
    """
    lu = spec.kind == "lu"
    text = _text(spec)
    d = text.own
    good = "magnitude(d) != 0" if lu else "d[0] > 0"
    multiplier = "p + k * length + j" if lu else "row + k"
    text.add(
        d,
        "base = item * rows * columns + start * (columns + 1)",
        f"height = {'rows - start' if lu else 'width'}",
        "for k in range(width):",
        f"    for i in range({'0' if lu else 'k'}, height):",
        "        store_p(at_p, p + k * length + i, load_a(at_a, base + i * columns + k))",
        "for j in range(width):",
        "    row = p + j * length",
    )
    if lu:
        _exchange(text, d + 1)
    text.add(
        d + 1,
        "d = load_p(at_p, row + j)",
        f"if number(info, item) == 0 and not ({good}):",
        "    put(info, item, start + j + 1)",
        "h = head(d)",
        *([] if lu else ["store_p(at_p, row + j, h)"]),
        "if j + 1 < height:",
        f"    {text.whole('j + 1', 'height')}",
        f"    {text.run('divide_row', 'j + 1', p='row')}",
        "    for k in range(j + 1, width):",
        f"        m = load_p(at_p, {multiplier})",
        f"        {text.run('update_row', 'j + 1', p='p + k * length')}",
    )
    text.add(
        d,
        "for k in range(width):",
        f"    for i in range({'0' if lu else 'k'}, height):",
        "        store_a(at_a, base + i * columns + k, load_p(at_p, p + k * length + i))",
    )
    if lu:
        _solve(text, d)
        _determinant(text, d)
    return text.text()


def _solve(text: PanelText, depth: int) -> None:
    """Solve for right-hand sides of the whole matrix, in rows after it."""
    text.add(
        depth,
        "if sides > 0:",
        "    here = item * width * sides",
        "    q = p + width * length",
        "    for j in range(width):",
        "        for c in range(sides):",
        "            store_p(at_p, q + j * side + c, load_x(at_x, here + j * sides + c))",
        "    for j in range(width if exchange else 0):",
        "        found = number(pivots, item * count + j) - 1",
        "        if found != j:",
        "            for c in range(sides):",
        *("    " + s for s in _swap("p", "q + j * side + c", "q + found * side + c")),
        f"    {text.whole('0', 'sides')}",
        "    for j in range(width):",
        "        row = q + j * side",
        f"        {text.run('keep_row', '0', p='row')}",
        "        for k in range(j + 1, width):",
        "            m = load_p(at_p, p + j * length + k)",
        f"            {text.run('update_row', '0', p='q + k * side')}",
        "    for above in range(width):",
        "        j = width - 1 - above",
        "        row = q + j * side",
        "        h = load_p(at_p, p + j * length + j)",
        f"        {text.run('divide_row', '0', p='row')}",
        "        for k in range(j):",
        "            m = load_p(at_p, p + j * length + k)",
        f"            {text.run('update_row', '0', p='q + k * side')}",
        "    for j in range(width):",
        "        for c in range(sides):",
        "            store_x(at_x, here + j * sides + c, load_p(at_p, q + j * side + c))",
    )


def _determinant(text: PanelText, depth: int) -> None:
    """Compute the product of the diagonal of U, with the sign of the exchanges."""
    text.add(
        depth,
        "if wanted:",
        "    odd = 0",
        "    for j in range(width):",
        "        store_w(at_w, w + j, load_p(at_p, p + j * length + j))",
        "        if exchange and number(pivots, item * count + j) != j + 1:",
        "            odd = 1 - odd",
        "    if odd:",
        "        store_w(at_w, w, minus(load_w(at_w, w)))",
        "    left = width",
        "    while left > 1:",
        "        half = left // 2",
        "        for c in range(half):",
        "            other = load_w(at_w, w + left - half + c)",
        "            store_w(at_w, w + c, product(load_w(at_w, w + c), other))",
        "        left -= half",
        "    store_z(at_z, item, load_w(at_w, w))",
    )


def _exchange(text: PanelText, depth: int) -> None:
    """Move the first of the largest to the diagonal, and exchange the rows of A outside."""
    text.add(
        depth,
        "if exchange:",
        "    found = j",
        "    largest = magnitude(load_p(at_p, row + j))",
        "    for i in range(j + 1, height):",
        "        size = magnitude(load_p(at_p, row + i))",
        "        if size > largest or (size != size and largest == largest):",
        "            largest = size",
        "            found = i",
        "    put(pivots, item * count + start + j, start + found + 1)",
        "    if found != j:",
        "        for k in range(width):",
        *_swap("p", "p + k * length + j", "p + k * length + found"),
        "        here = item * rows * columns + (start + j) * columns",
        "        there = item * rows * columns + (start + found) * columns",
        "        for k in range(start):",
        *_swap("a", "here + k", "there + k"),
        "        for k in range(start + width, columns):",
        *_swap("a", "here + k", "there + k"),
    )


def _swap(operand: str, one: str, other: str) -> list[str]:
    """Return statements that exchange two numbers of an operand."""
    lines = [
        f"one = load_{operand}(at_{operand}, {one})",
        f"other = load_{operand}(at_{operand}, {other})",
        f"store_{operand}(at_{operand}, {one}, other)",
        f"store_{operand}(at_{operand}, {other}, one)",
    ]
    return ["            " + line for line in lines]


def source(spec: Elimination) -> str:
    """Return the kernel of an elimination."""
    return substitution_source(spec) if spec.kind == "substitution" else panel_source(spec)


def substitution_source(spec: Elimination) -> str:
    """Return the kernel of "substitution"; an item is some columns of one X, solved in place."""
    text = _text(spec)
    text.add(
        text.own,
        "a = item // tiles * a_batch",
        "first = item % tiles * tile",
        "x = item // tiles * x_batch + first * x_column",
        "some = min(tile, columns - first)",
        "for j in range(width):",
        "    for c in range(some):",
        "        store_p(at_p, p + j * length + c, load_x(at_x, x + j * x_row + c * x_column))",
        text.whole("0", "some"),
        "for j in range(width):",
        "    row = p + j * length",
        "    if unit:",
        f"        {text.run('keep_row', '0', p='row')}",
        "    else:",
        "        h = load_a(at_a, a + j * (a_row + a_column))",
        f"        {text.run('divide_row', '0', p='row')}",
        "    for k in range(j + 1, width):",
        "        m = load_a(at_a, a + k * a_row + j * a_column)",
        f"        {text.run('update_row', '0', p='p + k * length')}",
        "for j in range(width):",
        "    for c in range(some):",
        "        store_x(at_x, x + j * x_row + c * x_column, load_p(at_p, p + j * length + c))",
    )
    return text.text()
