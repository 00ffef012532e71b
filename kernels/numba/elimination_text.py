"""The text of the CPU's eliminations: panels in memory of their own, whose rows are vectors.

A panel is copied to rows with room behind them, so that loops always run over whole vectors: the
numbers behind a row are computed with and mean nothing. What a row is multiplied with lies in
memory that the loop does not write.
"""

from __future__ import annotations

from collections.abc import Sequence

from mcf.kernels.elimination import Elimination
from mcf.kernels.formats import FP32
from mcf.kernels.numba import loops, team

# The words of a call's table. `bases` are the addresses of the components of A, of those of X for a
# substitution, of the scratch memory's and of a row's; strides and offsets count elements.
COMMON = ("bases", "shares", "parts", "length", "scratch", "width")
PANEL = (*COMMON, "pivots", "info", "start", "rows", "columns", "count", "exchange")
SUBSTITUTION = (
    *COMMON,
    *("tiles", "tile", "columns", "unit"),
    *("a_batch", "a_row", "a_column", "x_batch", "x_row", "x_column"),
)
_ADDRESSES = ("bases", "shares", "pivots", "info")


def padding(spec: Elimination) -> int:
    """Elements that one step of a loop takes: two of the widest vectors."""
    return 32 if spec.format.register == FP32 else 16


class _Text:
    """The text of a kernel as it grows."""

    def __init__(self, spec: Elimination, words: Sequence[str], operands: str) -> None:
        self.spec, self.terms = spec, range(spec.terms)
        self.steps: list[str] = []
        self.arguments: dict[str, list[str]] = {}
        self.lines = ["def kernel(data):", "    prefer_wide_vectors()"]
        self.add(
            1, *(f"{n} = {'word' if n in _ADDRESSES else 'number'}(data, {k})"
                 for k, n in enumerate(words))
        )  # fmt: skip
        names = [f"{o}_{k}" for o in operands for k in self.terms]
        self.add(1, *(f"at_{name} = word(bases, {k})" for k, name in enumerate(names)))
        self.add(1, *team.ITEMS)
        self.own = team.ITEMS_DEPTH + 1
        # Each thread's own scratch memory and row.
        self.add(self.own, "p = arrival * scratch", "w = arrival * length")
        rows = [*self._at("p"), *self._at("w")]
        self.step("divide_row", [*rows, "p", "w", *self._each("h")], [
            f"{self._names('q')} = quotient({self.cells('p', 'p + c')}, ({self._names('h')}))",
            *self.stores("p", "p + c", "q"), *self.stores("w", "w + c", "q"),
        ])  # fmt: skip
        self.step("keep_row", [*rows, "p", "w"], [
            f"{self._names('q')} = {self.cells('p', 'p + c')}", *self.stores("w", "w + c", "q"),
        ])  # fmt: skip
        cells = f"{self.cells('p', 'p + c')}, ({self._names('m')}), {self.cells('w', 'w + c')}"
        self.step("update_row", [*rows, "p", "w", *self._each("m")], [
            f"{self._names('q')} = update({cells})", *self.stores("p", "p + c", "q"),
        ])  # fmt: skip

    def add(self, depth: int, *lines: str) -> None:
        self.lines += ["    " * depth + line for line in lines]

    def text(self) -> str:
        return "\n".join([*self.steps, *self.lines]) + "\n"

    def step(self, name: str, arguments: list[str], body: list[str]) -> None:
        self.steps += loops.step(name, "c", arguments, body)
        self.arguments[name] = arguments

    def run(self, name: str, first: str, row: str) -> str:
        """The statement that runs a step for whole vectors from `first` on, on row `row` of P."""
        given = [row if a == "p" else a for a in self.arguments[name]]
        return loops.call(name, first, "last", given)

    def _at(self, operand: str) -> list[str]:
        return [f"at_{operand}_{k}" for k in self.terms]

    def _each(self, name: str) -> list[str]:
        return [f"{name}_{k}" for k in self.terms]

    def _names(self, name: str) -> str:
        return ", ".join(self._each(name)) + ","

    def cells(self, operand: str, index: str) -> str:
        """The number at an index of an operand, as a tuple."""
        loads = [f"load_{operand}_{k}(at_{operand}_{k}, {index})" for k in self.terms]
        return f"({', '.join(loads)},)"

    def held(self, name: str, value: str) -> str:
        return f"{self._names(name)} = {value}"

    def stores(self, operand: str, index: str, name: str) -> list[str]:
        return [f"store_{operand}_{k}(at_{operand}_{k}, {index}, {name}_{k})" for k in self.terms]

    def copy(self, depth: int, target: str, to: str, source: str, index: str) -> None:
        self.add(depth, self.held("v", self.cells(source, index)), *self.stores(target, to, "v"))

    def whole(self, first: str, last: str) -> str:
        """The statement that extends a row to whole vectors."""
        return f"last = {first} + ({last} - ({first}) + {padding(self.spec) - 1}) // PAD * PAD"


def panel_source(spec: Elimination) -> str:
    """The kernel of "lu" and "cholesky": an item is a matrix, whose panel is factorised in place.

    Row k of the scratch memory is column start + k of A from row `start` on. For "lu" the rows of
    all other columns of A are exchanged too.
    """
    lu = spec.kind == "lu"
    text = _Text(spec, PANEL, "apw")
    d = text.own
    text.add(
        d,
        "base = item * rows * columns + start * (columns + 1)",
        # For "cholesky" the panel is the square block on the diagonal.
        "height = rows - start if exchange >= 0 else width",
        "for k in range(width):",
        f"    for i in range({'0' if lu else 'k'}, height):",
    )
    text.copy(d + 2, "p", "p + k * length + i", "a", "base + i * columns + k")
    text.add(d, "for j in range(width):", "    row = p + j * length")
    if lu:
        _exchange(text, d + 1)
    text.add(d + 1, text.held("d", text.cells("p", "row + j")))
    good = "d_0 != 0" if lu else "d_0 > 0"
    multiplier = "p + k * length + j" if lu else "row + k"
    text.add(
        d + 1,
        f"if number(info, item) == 0 and not ({good}):",
        "    put(info, item, start + j + 1)",
        text.held("h", f"head(({text._names('d')}))"),
    )
    if not lu:
        text.add(d + 1, *text.stores("p", "row + j", "h"))
    text.add(
        d + 1,
        "if j + 1 < height:",
        f"    {text.whole('j + 1', 'height')}",
        f"    {text.run('divide_row', 'j + 1', 'row')}",
        "    for k in range(j + 1, width):",
        f"        {text.held('m', text.cells('p', multiplier))}",
        f"        {text.run('update_row', 'j + 1', 'p + k * length')}",
    )
    text.add(d, "for k in range(width):", f"    for i in range({'0' if lu else 'k'}, height):")
    text.copy(d + 2, "a", "base + i * columns + k", "p", "p + k * length + i")
    return text.text()


def _exchange(text: _Text, depth: int) -> None:
    """Bring the first of the largest to the diagonal, and exchange the rows of A outside."""
    text.add(
        depth,
        "if exchange:",
        "    found = j",
        "    largest = abs(load_p_0(at_p_0, row + j))",
        "    for i in range(j + 1, height):",
        "        size = abs(load_p_0(at_p_0, row + i))",
        "        if size > largest or (size != size and largest == largest):",
        "            largest = size",
        "            found = i",
        "    put(pivots, item * count + start + j, start + found + 1)",
        "    if found != j:",
    )
    inner = depth + 2
    text.add(inner, "for k in range(width):")
    swap(text, inner + 1, "p", "p + k * length + j", "p + k * length + found")
    text.add(
        inner,
        "here = item * rows * columns + (start + j) * columns",
        "there = item * rows * columns + (start + found) * columns",
    )
    for cells in ("range(start)", "range(start + width, columns)"):
        text.add(inner, f"for k in {cells}:")
        swap(text, inner + 1, "a", "here + k", "there + k")


def swap(text: _Text, depth: int, operand: str, one: str, other: str) -> None:
    """Statements that exchange two numbers of an operand."""
    text.add(
        depth,
        text.held("u", text.cells(operand, one)),
        text.held("v", text.cells(operand, other)),
        *text.stores(operand, one, "v"),
        *text.stores(operand, other, "u"),
    )


def substitution_source(spec: Elimination) -> str:
    """The kernel of "substitution": an item is some columns of one X, which are solved in place."""
    text = _Text(spec, SUBSTITUTION, "axpw")
    d = text.own
    text.add(
        d,
        "a = item // tiles * a_batch",
        "first = item % tiles * tile",
        "x = item // tiles * x_batch + first * x_column",
        "some = min(tile, columns - first)",
        "for j in range(width):",
        "    for c in range(some):",
    )
    text.copy(d + 2, "p", "p + j * length + c", "x", "x + j * x_row + c * x_column")
    text.add(
        d,
        text.whole("0", "some"),
        "for j in range(width):",
        "    row = p + j * length",
        "    if unit:",
        f"        {text.run('keep_row', '0', 'row')}",
        "    else:",
        f"        {text.held('h', text.cells('a', 'a + j * (a_row + a_column)'))}",
        f"        {text.run('divide_row', '0', 'row')}",
        "    for k in range(j + 1, width):",
        f"        {text.held('m', text.cells('a', 'a + k * a_row + j * a_column'))}",
        f"        {text.run('update_row', '0', 'p + k * length')}",
        "for j in range(width):",
        "    for c in range(some):",
    )
    text.copy(d + 2, "x", "x + j * x_row + c * x_column", "p", "p + j * length + c")
    return text.text()
