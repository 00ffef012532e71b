"""Generated source of the CPU's folds."""

from __future__ import annotations

from collections.abc import Sequence

from mcf.kernels.fold import GROUP, Fold
from mcf.kernels.formats import FP64
from mcf.kernels.numba.compile import vector_loops
from mcf.kernels.numba.runtime import team

# Fields of the kernels' argument structs. `bases` are the components' addresses; all others except
# `out`, `lanes` and `shares` are numbers. `step` is STEP, hidden from LLVM, which would unroll the
# loop over it before vectorising.
SUM = ("bases", "out", "lanes", "shares", "parts", "total", "blocks", "items", "step")
PRODUCT = (
    *("bases", "out", "shares", "parts"),
    *("rows", "inner", "columns", "stride", "down", "across"),
)
# For a fold that checks its first operand: address of one flag per item, set if a magnitude other
# than 0 is out of range, and the range as bit patterns of float64.
WITHIN = (*SUM, "outside", "least", "most")
_ADDRESSES = ("bases", "out", "lanes", "shares", "outside")


class _Source:
    """Source of a kernel under construction."""

    def __init__(self, spec: Fold, words: Sequence[str], operands: bool = True) -> None:
        self.spec = spec
        # Functions that are steps of loops, placed before the kernel.
        self.steps: list[str] = []
        self.lines = ["def kernel(data):"]
        self.addresses = [
            f"address_{o}_{c}"
            for o, count in enumerate(spec.components if operands else ())
            for c in range(count)
        ]
        self.add(1, "prefer_wide_vectors()")
        for k, name in enumerate(words):
            self.add(1, f"{name} = {'word' if name in _ADDRESSES else 'number'}(data, {k})")
        for k, address in enumerate(self.addresses):
            self.add(1, f"{address} = word(bases, {k})")
        if operands:
            self.add(1, *team.ITEMS)

    def add(self, depth: int, *lines: str) -> None:
        self.lines += ["    " * depth + line for line in lines]

    def text(self) -> str:
        return "\n".join([*self.steps, *self.lines]) + "\n"

    def term(self, indices: list[str]) -> str:
        """Return a call of the term on one element of each operand, given its index."""
        operands = []
        for o, (count, index) in enumerate(zip(self.spec.components, indices, strict=True)):
            loads = [f"load_{o}_{c}(address_{o}_{c}, {index})" for c in range(count)]
            operands.append("(" + ", ".join(loads) + ",)")
        return f"term({', '.join(operands)})"

    def tree(self, terms: list[str]) -> str:
        while len(terms) > 1:
            terms = [f"merge({a}, {b})" for a, b in zip(terms[::2], terms[1::2], strict=True)]
        return terms[0]

    def state(self, index: str, shadow: bool = False) -> str:
        """Return the partial sum of a lane; `shadow` reads a lane that the loop does not write."""
        which = "peek" if shadow else "lane"
        cells = [f"{which}(lanes, {k} * stride + {index})" for k in range(self.spec.state)]
        return "(" + ", ".join(cells) + ",)"

    def lanes(
        self, depth: int, first: str, last: str, names: Sequence[str], index: str, value: str
    ) -> None:
        """Add a loop over j = first, ..., last - 1 that stores `value` as the state at `index`.

        Args:
            depth: of the loop.
            first: a number.
            last: a number.
            names: the variables, other than j and addresses, that `index` and `value` use.
            index: of the lane.
            value: the partial sum.
        """
        results = ", ".join(f"s{k}" for k in range(self.spec.state))
        stores = [f"store(lanes, {k} * stride + {index}, s{k})" for k in range(self.spec.state)]
        name = f"step{len(self.steps)}"
        arguments = [*self.addresses, "lanes", "stride", *names]
        self.steps += vector_loops.step(name, "j", arguments, [f"{results}, = {value}", *stores])
        self.add(depth, vector_loops.call(name, first, last, arguments))


def sum_source(spec: Fold, looks: bool = False) -> str:
    """Return the kernel that folds blocks: item k is block k % blocks of row k // blocks.

    With `looks` it checks the range of a float64 block before folding it, while the block is loaded
    into the cache.
    """
    text = _Source(spec, WITHIN if looks else SUM)
    # An operand with one element per row is read at the row's index.
    operands = len(spec.components) - spec.fixed
    fixed = ["row"] * spec.fixed

    def chunk(depth: int, combined: bool) -> None:
        at = [f"start + t * GROUP + {r} * STEP + j" for r in range(GROUP)]
        value = text.tree([text.term([index] * operands + fixed) for index in at])
        if combined:
            value = f"combine({text.state('t + j')}, {value})"
        text.add(depth, "for t in range(0, LANES, STEP):")
        text.lanes(depth + 1, "0", "step", ["start", "t", *fixed], "t + j", value)
        text.add(depth, "start += CHUNK")

    def rest(depth: int, count: str, combined: bool) -> None:
        value = text.term(["start + j"] * operands + fixed)
        if combined:
            value = f"combine({text.state('j')}, {value})"
        text.lanes(depth, "0", count, ["start", *fixed], "j", value)
        text.add(depth, "start += LANES")

    inside = team.ITEMS_DEPTH + 2
    # Addresses advance by 64-bit units.
    words = "LANES" if spec.register == FP64 else "(LANES // 2)"
    text.add(
        inside - 1,
        "stride = LANES",
        f"lanes = advance(lanes_of_all, arrival * {spec.state} * {words})",
        *(["row = item // blocks"] * spec.fixed),
        "start = item // blocks * total + item % blocks * BLOCK",
        "stop = min(start + BLOCK, (item // blocks + 1) * total)",
        "count = min(stop - start, LANES)",
    )
    if looks:
        text.add(inside - 1, "found = 0", "for i in range(start, stop):")
        for c in range(spec.components[0]):
            # Without branches, so that the loop vectorises.
            text.add(inside, f"x = number(address_0_{c}, i) & 0x7FFFFFFFFFFFFFFF")
            text.add(inside, "found |= (x != 0) & ((x < least) | (x > most))")
        text.add(inside - 1, "put(outside, item, found)")
    text.add(inside - 1, "if start + CHUNK <= stop:")
    chunk(inside, False)
    text.add(inside, "while start + CHUNK <= stop:")
    chunk(inside + 1, True)
    text.add(inside - 1, "else:")
    rest(inside, "count", False)
    text.add(inside - 1, "while start < stop:")
    rest(inside, "min(LANES, stop - start)", True)
    text.add(inside - 1, "while count > 1:", "    half = (count + 1) // 2")
    merged = f"combine({text.state('j')}, {text.state('half + j', shadow=True)})"
    text.lanes(inside, "0", "count - half", ["half"], "j", merged)
    text.add(inside, "count = half")
    for k in range(spec.state):
        text.add(inside - 1, f"store(out, {k} * items + item, lane(lanes, {k} * stride))")
    return text.text().replace("    lanes = word", "    lanes_of_all = word", 1)


def within_source(spec: Fold) -> str:
    """Return the kernel that also checks the range of blocks, see `sum_source`."""
    return sum_source(spec, looks=True)


def product_source(spec: Fold) -> str:
    """Return the kernel that folds the inner dimension of matrix products.

    An item is a block of at most ROWS times COLUMNS results of one matrix. Lanes are the results
    themselves. Items advance along rows first, so that threads work on different rows: a thread
    that prefetches beyond its block would otherwise take lines from another.
    """
    text = _Source(spec, PRODUCT)

    def element(k: str) -> list[str]:
        return [f"i * inner + {k}", f"(right + {k}) * columns + j"]

    group = text.tree([text.term(element(f"k + {r}")) for r in range(GROUP)])
    inside = team.ITEMS_DEPTH + 2
    text.add(
        inside - 1,
        "lanes = out",
        "matrix = item // down // across",
        "left_column = item % across * COLUMNS",
        "last_column = min(left_column + COLUMNS, columns)",
        "top = item // across % down * ROWS",
        "bottom = matrix * rows + min(top + ROWS, rows)",
        "top += matrix * rows",
        "right = matrix * inner",
        "k = 0",
    )
    cell = "i * columns + j"
    names = ["i", "k", "inner", "columns", "right"]
    for condition, value, step in (
        ("while k + GROUP <= inner", group, "GROUP"),
        ("while k < inner", text.term(element("k")), "1"),
    ):
        text.add(inside - 1, f"{condition}:")
        for case, stored in (
            ("if k == 0", value),
            ("else", f"combine({text.state(cell)}, {value})"),
        ):
            text.add(inside, f"{case}:")
            text.add(inside + 1, "for i in range(top, bottom):")
            text.lanes(inside + 2, "left_column", "last_column", names, cell, stored)
        text.add(inside, f"k += {step}")
    return text.text()


def halving_source(spec: Fold) -> str:
    """Return the kernel that adds the second half of rows of [state, rows, columns] to the first.

    A call computes `half` rows out of `count`. An odd row in the middle stays.
    """
    text = _Source(spec, ("lanes", "rows", "columns", "count", "half"), operands=False)
    text.add(1, "stride = rows * columns", "for row in range(count - half):")
    cell = "row * columns + j"
    value = f"combine({text.state(cell)}, {text.state(f'half * columns + {cell}', shadow=True)})"
    text.lanes(2, "0", "columns", ["row", "columns", "half"], cell, value)
    return text.text()
