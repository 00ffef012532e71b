"""Common source of batches of small matrices, with one matrix per vector lane.

A row of 3 numbers fills less than half of a vector, and its padding is computed in vain. With a
large batch an item is therefore a block of matrices, and a step operates on one number of all of
them. Number e of matrix c of a block is element e WIDE + c of the scratch memory. A lane's content
depends on no other lane, so the bits are those of a single matrix. Lanes after the last matrix
repeat it, and are not stored.
"""

from __future__ import annotations

from mcf.kernels.fold import GROUP
from mcf.kernels.numba.compile import vector_loops
from mcf.kernels.numba.loops.matrices.panel_text import PanelText
from mcf.kernels.numba.runtime import processor

# Greatest number of rows and columns in lanes: longer rows fill vectors by themselves, and a block
# of such matrices exceeds the caches. A reflection has more operations per number.
MOST, MOST_REFLECTED = 8, 12


def wide(size: int = 8) -> int:
    """Return the matrices per block, the numbers of a loop's step, for numbers of `size` bytes."""
    return vector_loops.INTERLEAVED * processor.vector_bytes() // size


def across(batch: int, longest: int, size: int = 8, most: int = MOST) -> bool:
    """Return whether matrices with sides up to `longest` use lanes: small, half a block or more.

    A smaller batch is as fast one matrix at a time.
    """
    # A single matrix needs no query of the processor, which takes microseconds.
    return batch > 1 and 0 < longest <= most and 2 * batch >= wide(size)


def blocks(batch: int, size: int = 8) -> int:
    """Return the number of blocks."""
    return -(-batch // wide(size))


class LaneText(PanelText):
    """Kernel whose items are blocks of matrices; the field `batch` is their number."""

    def each(self, name: str, **values: str) -> str:
        """Return the statement that runs a step for all lanes, a constant number; see `run`."""
        given = [values.get(a, a) for a in self.arguments[name]]
        return vector_loops.call(name, "0", str(self.pad), given)

    def opened(self, depth: int) -> None:
        """Set the first matrix of a block, and the number of its matrices."""
        self.add(depth, f"base = item * {self.pad}", f"count = min({self.pad}, batch - base)")

    def taken(self, depth: int, numbers: str, statement: str) -> None:
        """Load numbers of each matrix into lanes: {index in lanes} from {index in memory}."""
        self.add(
            depth,
            f"for c in range({self.pad}):",
            f"    here = (base + min(c, count - 1)) * {numbers}",
            f"    for e in range({numbers}):",
            f"        {statement.format(f'e * {self.pad} + c', 'here + e')}",
        )

    def given(self, depth: int, numbers: str, statement: str) -> None:
        """Store numbers of each matrix from lanes: {index in memory} from {index in lanes}."""
        self.add(
            depth,
            "for c in range(count):",
            f"    here = (base + c) * {numbers}",
            f"    for e in range({numbers}):",
            f"        {statement.format('here + e', f'e * {self.pad} + c')}",
        )

    def dots(self, left: str, right: str, kinds: int = 1) -> None:
        """Define steps of inner products of two operands, in the order of `row_folds`.

        Complex numbers (`kinds` 2, see there) are conjugated by `way` first, in the left operand.
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
        """Compute partial sums s of an inner product of `count` numbers.

        Each factor is given by the offset of its first number and its stride.
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
