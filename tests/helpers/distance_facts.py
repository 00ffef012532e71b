"""What is true of s = RN(x + y) in terms of the distances of numbers to the powers of two around.

For |v| = 2**top + r, r is the distance to the power of two below and 2**top - r that to the next
one. A sum or difference of two numbers of different size is, to the next power of two, a sum or
difference of such distances and the smaller number, rounded to a multiple of the sum's last place.

`Logic` as in `tests.helpers.float_facts`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple


class Part(NamedTuple):
    """A distance or a number without its sign: 2**top <= m < 2**(top + 1), or `none` for zero.

    `power` says whether it is 2**top; `gap` is the exponent of 2**(top + 1) - m where known.
    """

    none: Any
    top: Any
    power: Any
    gap: Any = None


def below(v: Any) -> Part:
    """|v| - 2**top."""
    return Part(v.low == v.top, v.rest, v.low == v.rest)


def above(v: Any) -> Part:
    """2**(top + 1) - |v|."""
    return Part(False, v.gap, v.low == v.gap)


def whole(v: Any) -> Part:
    """|v|."""
    return Part(False, v.top, v.low == v.top, v.gap)


class Rounding:
    """Facts about m + n and m - n, rounded to a multiple of 2**unit."""

    def __init__(self, unit: Any, inexact: Any, logic: Any) -> None:
        self.unit, self.inexact, self.logic = unit, inexact, logic

    def settles(self, top: Any, r: Part, gap: Any = None) -> Any:
        """A distance of exponent `top`, and below the next power by `gap`, is rounded to r."""
        logic, unit, inexact = self.logic, self.unit, self.inexact
        near = True if gap is None else gap <= unit - 1
        carried = logic.all(r.top == top + 1, r.power, inexact, near)
        kept = logic.all(top >= unit, logic.no(r.none), logic.any(r.top == top, carried))
        half = logic.all(top == unit - 1, logic.any(r.none, logic.all(r.top == unit, r.power)))
        lost = logic.all(top < unit - 1, r.none)
        return logic.any(kept, logic.all(inexact, logic.any(half, lost)))

    def added(self, m: Part, n: Part, r: Part) -> Iterator[Any]:
        """r = RN(m + n)."""
        logic = self.logic
        most = logic.choose(m.top >= n.top, m.top, n.top)
        both = logic.all(logic.no(m.none), logic.no(n.none))
        carry = self.settles(most + 1, r)
        yield logic.implies(logic.all(m.none, logic.no(n.none)), self.settles(n.top, r, n.gap))
        yield logic.implies(logic.all(n.none, logic.no(m.none)), self.settles(m.top, r, m.gap))
        yield logic.implies(logic.all(both, m.top == n.top), carry)
        yield logic.implies(both, logic.any(self.settles(most, r), carry))

    def taken(self, m: Part, n: Part, r: Part) -> Iterator[Any]:
        """r = RN(m - n), of which it is known that it is not negative."""
        logic = self.logic
        both = logic.all(logic.no(m.none), logic.no(n.none))
        yield logic.implies(
            logic.all(m.none, logic.no(n.none)), logic.all(r.none, n.top <= self.unit - 1)
        )
        yield logic.implies(logic.all(n.none, logic.no(m.none)), self.settles(m.top, r, m.gap))
        within = logic.any(n.top == m.top + 1, n.top <= self.unit)
        yield logic.implies(logic.all(both, n.top > m.top), logic.all(r.none, within))
        less, next_below = self.settles(m.top - 1, r), n.top == m.top - 1
        for power, fact in ((m.power, less), (True, logic.any(self.settles(m.top, r), less))):
            yield logic.implies(logic.all(both, power, n.top <= m.top - 2), fact)
        small = logic.any(r.none, r.top <= self.unit, r.top <= m.top - 1)
        near = logic.any(small, logic.all(r.power, r.top == m.top))
        yield logic.implies(logic.all(both, n.top == m.top), near)
        smaller = logic.any(r.none, r.top <= self.unit, r.top <= m.top)
        yield logic.implies(logic.all(both, next_below), smaller)
        if n.gap is not None:
            gap = logic.all(both, next_below)
            yield logic.implies(logic.all(gap, m.power), self.settles(n.gap, r))
            yield logic.implies(gap, logic.any(n.gap < self.unit, r.top >= n.gap))


def of_distances(x: Any, y: Any, s: Any, e: Any, p: Any, logic: Any) -> Iterator[Any]:
    """True of x, y that are not zero."""
    rounding = Rounding(s.top - p + 1, logic.no(e.zero), logic)
    added, taken = rounding.added, rounding.taken
    alike = x.negative == y.negative
    unlike, equal = logic.no(alike), x.top == y.top
    parts: list[tuple[Any, Iterator[Any]]] = [
        (logic.all(alike, equal), added(below(x), below(y), below(s))),
        (logic.all(alike, equal), added(above(x), above(y), above(s))),
    ]
    for a, b in ((x, y), (y, x)):
        larger = logic.all(unlike, equal, logic.no(s.zero), s.negative == a.negative)
        parts += [
            (larger, taken(below(a), below(b), whole(s))),
            (larger, taken(above(b), above(a), whole(s))),
        ]
        more, less = logic.all(alike, a.top > b.top), logic.all(unlike, a.top > b.top)
        level = s.top == a.top
        parts += [
            (logic.all(more, level), added(below(a), whole(b), below(s))),
            (logic.all(more, level), taken(above(a), whole(b), above(s))),
            (logic.all(more, logic.no(level)), taken(whole(b), above(a), below(s))),
            (logic.all(less, level), taken(below(a), whole(b), below(s))),
            (logic.all(less, level), added(above(a), whole(b), above(s))),
            (
                logic.all(less, logic.no(level), b.top < a.top - 1),
                taken(whole(b), below(a), above(s)),
            ),
            (logic.all(less, b.top == a.top - 1), added(below(a), above(b), whole(s))),
            # What is missing of b to a power of two takes its place.
            (
                logic.all(less, logic.no(level), b.top == a.top - 2),
                added(below(a), above(b), below(s)),
            ),
            (logic.all(more, level, b.top == a.top - 1), taken(above(b), below(a), above(s))),
            (
                logic.all(more, logic.no(level), b.top == a.top - 1),
                taken(below(a), above(b), below(s)),
            ),
        ]
    for given, facts in parts:
        for fact in facts:
            yield logic.implies(given, fact)
