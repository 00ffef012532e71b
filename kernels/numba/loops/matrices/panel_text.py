"""What the texts of the CPU's panels of matrices have in common."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from mcf.kernels.numba.compile import vector_loops
from mcf.kernels.numba.runtime import processor, team


def lanes() -> int:
    """How many numbers a loop's step takes: a row of no more is one step."""
    return vector_loops.INTERLEAVED * processor.vector_bytes() // 8


class PanelText:
    """The text of a kernel on numbers of several components, tuples, as it grows.

    `load_p(at_p, i)` and `store_p(at_p, i, x)` are a number of the operand p.

    Args:
        words: those of a call's table, in order.
        addresses: which of them are addresses; the others are integers.
        operands: the number of components of each, whose addresses are the words at `bases`.
        pad: how many elements of a row a step of a loop takes.
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
        # The depth of what is done for an item.
        self.own = team.ITEMS_DEPTH + 1

    def add(self, depth: int, *lines: str) -> None:
        """Lines of the kernel."""
        self.lines += ["    " * depth + line for line in lines]

    def text(self) -> str:
        """The whole."""
        return "\n".join([*self.steps, *self.lines]) + "\n"

    def sizes(self, terms: int, parts: int) -> None:
        """Functions of a number of so many components, of both parts: its size, whether real."""
        second = terms // 2
        size, mean, real = "abs(x[0])", "abs((x[0] + y[0]) / 2)", "x"
        if parts == 2:
            size += f" + abs(x[{second}])"
            mean += f" + abs((x[{second}] - y[{second}]) / 2)"
            real = f"x[:{second}] + ZEROS[{second}:]"
        for head, body in (
            ("size_of(x)", size),
            # Of (x + conj(y)) / 2.
            ("mean_of(x, y)", mean),
            ("real_of(x)", real),
        ):
            self.steps += ["@jit", f"def {head}:", f"    return {body}", ""]

    def step(self, name: str, arguments: str, *body: str) -> None:
        """Define a step of loops over c, see `vector_loops.step`."""
        self.arguments[name] = arguments.split()
        self.steps += vector_loops.step(name, "c", self.arguments[name], body)

    def run(self, name: str, first: str, **values: str) -> str:
        """The statement that runs a step for c from `first` to `last` - 1.

        Its arguments are variables of their names, or as given here.
        """
        given = [values.get(a, a) for a in self.arguments[name]]
        return vector_loops.call(name, first, "last", given)

    def whole(self, first: str, last: str) -> str:
        """The statement that extends a row to whole vectors."""
        return f"last = {first} + ({last} - ({first}) + {self.pad - 1}) // {self.pad} * {self.pad}"
