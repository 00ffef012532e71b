"""Order the statements of a program."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple


class Statement(NamedTuple):
    """A statement of a program.

    Args:
        made: the codes of its results.
        text: of it.
        read: the codes that it reads.
    """

    made: tuple[int, ...]
    text: str
    read: frozenset[int]


def needed(statements: Sequence[Statement], results: Collection[int]) -> list[Statement]:
    """Return the statements that results depend on, in their order."""
    wanted, found = set(results), []
    for each in reversed(statements):
        if not wanted.isdisjoint(each.made):
            wanted |= each.read
            found.append(each)
    return found[::-1]


def depth_first(statements: Sequence[Statement], results: Sequence[int]) -> list[Statement]:
    """Return the statements that results depend on, in depth-first order, longest chain first.

    Each statement directly follows those that only it needs. So fewer numbers are alive at once
    than in recording order, in which an operation on all elements of a tensor precedes the next
    operation.
    """
    maker = {code: k for k, s in enumerate(statements) for code in s.made}
    before = [{maker[c] for c in s.read if c in maker} for s in statements]
    length: list[int] = []
    for places in before:
        length.append(1 + max((length[k] for k in places), default=0))

    def pending(k: int) -> Iterator[int]:
        return iter(sorted(before[k], key=lambda j: (-length[j], j)))

    order: dict[int, None] = {}
    for result in results:
        path = [(maker[result], pending(maker[result]))] if result in maker else []
        while path:
            place, rest = path[-1]
            step = next((k for k in rest if k not in order), None)
            if step is None:
                order[place] = None
                path.pop()
            else:
                path.append((step, pending(step)))
    return [statements[k] for k in order]
