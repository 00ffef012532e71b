"""Common source of the CPU's loops over panels of matrices."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from mcf.kernels.numba.compile import vector_loops
from mcf.kernels.numba.runtime import processor, team


def lanes() -> int:
    """Return the numbers per step of a loop: a row no longer than this is one step."""
    return vector_loops.INTERLEAVED * processor.vector_bytes() // 8


class PanelText:
    """Source of a kernel on tuples of components, under construction.

    `load_p(at_p, i)` and `store_p(at_p, i, x)` access a number of the operand p.

    Args:
        words: the fields of a call's argument struct, in order.
        addresses: which of them are addresses; the others are integers.
        operands: the component counts, by letter; their addresses are the entries of `bases`.
        pad: the elements of a row per step of a loop.
    """

    def __init__(
        self,
        words: Sequence[str],
        addresses: Collection[str],
        operands: Mapping[str, int],
        pad: int,
    ) -> None:
        if team.ITEMS_NAMES & {*words}:
            raise ValueError(f"words {words} are variables of the loop over items")
        self.pad = pad
        self.steps: list[str] = []
        self.arguments: dict[str, list[str]] = {}
        self.lines = ["def kernel(data):", "    prefer_wide_vectors()"]
        for k, name in enumerate(words):
            self.add(1, f"{name} = {'word' if name in addresses else 'number'}(data, {k})")
        k = 0
        for operand, count in operands.items():
            places = "".join(f"word(bases, {k + c}), " for c in range(count))
            self.add(1, f"at_{operand} = ({places})")
            k += count
        self.add(1, *team.ITEMS)
        # Depth of the statements of an item.
        self.own = team.ITEMS_DEPTH + 1

    def add(self, depth: int, *lines: str) -> None:
        """Add lines to the kernel."""
        self.lines += ["    " * depth + line for line in lines]

    def text(self) -> str:
        """Return the complete source."""
        return "\n".join([*self.steps, *self.lines]) + "\n"

    def sizes(self, terms: int, parts: int) -> None:
        """Define size, size of the mean with a conjugate, and real part of a number."""
        second = terms // 2
        size, mean, real = "abs(x[0])", "abs((x[0] + y[0]) / 2)", "x"
        if parts == 2:
            size += f" + abs(x[{second}])"
            mean += f" + abs((x[{second}] - y[{second}]) / 2)"
            real = f"x[:{second}] + ZEROS[{second}:]"
        for head, body in (
            ("size_of(x)", size),
            # Size of (x + conj(y)) / 2.
            ("mean_of(x, y)", mean),
            ("real_of(x)", real),
        ):
            self.steps += ["@jit", f"def {head}:", f"    return {body}", ""]

    def step(self, name: str, arguments: str, *body: str) -> None:
        """Define a step of loops over c, see `vector_loops.step`."""
        self.arguments[name] = arguments.split()
        self.steps += vector_loops.step(name, "c", self.arguments[name], body)

    def run(self, name: str, first: str, **values: str) -> str:
        """Return the statement that runs a step for c from `first` to `last` - 1.

        Its arguments are variables of the same names, unless set by `values`.
        """
        given = [values.get(a, a) for a in self.arguments[name]]
        return vector_loops.call(name, first, "last", given)

    def whole(self, first: str, last: str) -> str:
        """Return the statement that extends a row to whole vectors."""
        return f"last = {first} + ({last} - ({first}) + {self.pad - 1}) // {self.pad} * {self.pad}"
