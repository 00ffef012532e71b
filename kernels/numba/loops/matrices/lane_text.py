"""What the texts of batches of small matrices have in common, one matrix a lane of vectors.

A row of 3 numbers fills less than half of a vector, and what lies behind it is computed with for
nothing. Where there are many matrices an item is a block of some, and what the texts of single
matrices do to a number is done to that number of all of them: number e of matrix c of a block is
element e WIDE + c of the scratch memory. What a lane holds depends on no other one, so the bits are
those of a matrix alone. Behind the last matrix lanes repeat it, and are not stored.
"""

from __future__ import annotations

from mcf.kernels.fold import GROUP
from mcf.kernels.numba.compile import vector_loops
from mcf.kernels.numba.loops.matrices.panel_text import PanelText
from mcf.kernels.numba.runtime import processor

# Rows and columns up to which matrices are lanes: rows of more fill vectors by themselves, and a
# block of such matrices leaves the caches. A reflection has more to do with each number.
MOST, MOST_REFLECTED = 8, 12


def wide(size: int = 8) -> int:
    """How many matrices a block has, of numbers of so many bytes: those of a loop's step."""
    return vector_loops.INTERLEAVED * processor.vector_bytes() // size


def across(batch: int, longest: int, size: int = 8, most: int = MOST) -> bool:
    """Whether matrices of sides up to `longest` are lanes: small ones that fill half of a block.

    Of fewer, a matrix after the other takes as long.
    """
    # Of one matrix nobody asks for the processor, which takes microseconds.
    return batch > 1 and 0 < longest <= most and 2 * batch >= wide(size)


def blocks(batch: int, size: int = 8) -> int:
    """How many blocks."""
    return -(-batch // wide(size))


class LaneText(PanelText):
    """A kernel whose items are blocks of matrices; the word `batch` says how many there are."""

    def each(self, name: str, **values: str) -> str:
        """The statement that runs a step for all lanes, see `run`; their number is a constant."""
        given = [values.get(a, a) for a in self.arguments[name]]
        return vector_loops.call(name, "0", str(self.pad), given)

    def opened(self, depth: int) -> None:
        """The first matrix of a block, and how many it has."""
        self.add(depth, f"base = item * {self.pad}", f"count = min({self.pad}, batch - base)")

    def taken(self, depth: int, numbers: str, statement: str) -> None:
        """Bring so many numbers of each matrix to lanes: {place in these} of {place in memory}."""
        self.add(
            depth,
            f"for c in range({self.pad}):",
            f"    here = (base + min(c, count - 1)) * {numbers}",
            f"    for e in range({numbers}):",
            f"        {statement.format(f'e * {self.pad} + c', 'here + e')}",
        )

    def given(self, depth: int, numbers: str, statement: str) -> None:
        """Bring so many numbers of each matrix to {place in memory} from {place in lanes}."""
        self.add(
            depth,
            "for c in range(count):",
            f"    here = (base + c) * {numbers}",
            f"    for e in range({numbers}):",
            f"        {statement.format('here + e', f'e * {self.pad} + c')}",
        )

    def dots(self, left: str, right: str, kinds: int = 1) -> None:
        """Steps of inner products of numbers of two operands, in the order of `row_folds`.

        Complex numbers (`kinds` 2, see there) are turned by `way` first, those of the left operand.
        """
        turn = "turned({}, way)" if kinds == 2 else "{}"
        for kind, count in (("group", GROUP // kinds), ("one", 1)):
            pairs = []
            for k in range(count):
                x = turn.format(f"load_{left}(at_{left}, x + {k} * over_x + c)")
                pairs.append(f"{x}, load_{right}(at_{right}, y + {k} * over_y + c)")
            parts = [f"term({each})" for each in pairs]
            while len(parts) > 1:
                parts = [f"merge({a}, {b})" for a, b in zip(parts[::2], parts[1::2], strict=True)]
            combined = f"combine(load_s(at_s, s + c), {parts[0]})"
            if kinds == 2 and count == 1:
                parts = [f"alone({pairs[0]})"]
                combined = f"joined(load_s(at_s, s + c), {pairs[0]})"
            arguments = f"at_{left} at_{right} at_s x over_x y over_y s" + " way" * (kinds == 2)
            name = f"{left}{right}_{kind}"
            self.step(f"{name}_first", arguments, f"store_s(at_s, s + c, {parts[0]})")
            self.step(name, arguments, f"store_s(at_s, s + c, {combined})")

    def dot(
        self,
        depth: int,
        name: str,
        count: str,
        left: tuple[str, str],
        right: tuple[str, str],
        way: int | str = 1,
        kinds: int = 1,
    ) -> None:
        """Partial sums s of an inner product of so many numbers.

        Both factors are given by the place of their first number and by how far it is to the next.
        """
        self.add(depth, f"x, over_x, y, over_y = {', '.join([*left, *right])}", f"todo = {count}")
        turned = str(float(way)) if isinstance(way, int) else way
        for kind, taken in (("group", GROUP // kinds), ("one", 1)):
            self.add(
                depth,
                f"while todo >= {taken}:",
                f"    if todo == {count}:",
                f"        {self.each(f'{name}_{kind}_first', way=turned)}",
                "    else:",
                f"        {self.each(f'{name}_{kind}', way=turned)}",
                f"    x += {taken} * over_x",
                f"    y += {taken} * over_y",
                f"    todo -= {taken}",
            )
