"""Turn rarely needed steps of a formula into functions that an executor may skip.

A program tests `bool(condition.any())` before a step whose results are selected where the condition
holds. In its formula, statements needed only by those selections become an algorithm whose first
parameter is the condition (`mcf.kernels.bind.NEEDED`). An executor that computes blocks of elements
runs it only for blocks where the condition holds somewhere. The results are unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any, NamedTuple

from mcf.kernels.algorithms.families import written
from mcf.kernels.bind import NEEDED, weight

# Steps of fewer operations do not pay for a branch.
_FEWEST = 20


class Statement(NamedTuple):
    """A statement of a formula.

    Args:
        makes: the variables that it defines.
        text: the expression.
        reads: the variables that it needs.
        unpack: whether the expression is a tuple of the variables.
        condition: for a selection, the variable that it selects by.
        chosen: for a selection, the variable that it takes where the condition holds.
        others: for a selection, all other variables that it reads.
    """

    makes: tuple[str, ...]
    text: str
    reads: tuple[str, ...]
    unpack: bool = False
    condition: str = ""
    chosen: str = ""
    others: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """The statement as Python source."""
        return f"{', '.join(self.makes)}{',' * self.unpack} = {self.text}"


def live(
    statements: Sequence[Statement], results: Iterable[str], without: Iterable[int] = ()
) -> list[int]:
    """Return the needed statements if selections `without` ignore their chosen variable."""
    wanted, bare, found = set(results), frozenset(without), []
    for k in reversed(range(len(statements))):
        each = statements[k]
        if wanted.intersection(each.makes):
            wanted.update(each.others if k in bare else each.reads)
            found.append(k)
    return found[::-1]


def branched(
    statements: Sequence[Statement],
    results: Sequence[str],
    conditions: frozenset[str],
    called: Mapping[str, Any],
    label: str,
) -> tuple[list[str], dict[str, FunctionType]]:
    """Return the lines that the results need, with rare steps as functions, and these functions.

    Args:
        statements: of the formula, in order.
        results: names of variables.
        conditions: the variables that the program tests with `any` before steps.
        called: the functions that the statements call, by name.
        label: a prefix of the functions' names.
    """
    now = [statements[k] for k in live(statements, results)]
    functions: dict[str, FunctionType] = {}
    end = len(now)
    while True:
        run = _last_run(now[:end], conditions)
        if not run:
            return [s.line for s in now], functions
        needed = frozenset(live(now, results, run))
        step = [k for k in range(run[-1]) if k not in needed]
        end = run[0]
        inside = [now[k] for k in step]
        if sum(_operations(s, {**called, **functions}) for s in inside) < _FEWEST:
            continue
        made = {v for s in inside for v in s.makes}
        taken = dict.fromkeys(v for s in inside for v in s.reads if v not in made)
        chosen = tuple(dict.fromkeys(v for v in (now[k].chosen for k in run) if v in made))
        name = f"{label}_{len(functions)}"
        lines, more = branched(inside, chosen, conditions, called, name)
        functions |= more
        functions[name] = written(
            name,
            ", ".join([NEEDED, *taken]),
            [*lines, f"return ({', '.join(chosen)},)"],
            "A step of a formula.",
            f"<mcf elementary {name}>",
            **{**called, **more},
        )
        condition = now[run[0]].condition
        call = Statement(
            chosen,
            f"{name}({', '.join([condition, *taken])})",
            (condition, *taken),
            unpack=True,
        )
        apart = {*step, *run}
        before = [now[k] for k in range(run[-1]) if k not in apart]
        now = [*before, call, *(now[k] for k in run), *now[run[-1] + 1 :]]
        end = len(before)


def _operations(statement: Statement, called: Mapping[str, Any]) -> int:
    """Return the operations of a statement: those of the algorithm that it calls, else one."""
    function = called.get(statement.text.partition("(")[0])
    return 1 if function is None else max(1, weight(function))


def _last_run(statements: Sequence[Statement], conditions: frozenset[str]) -> list[int]:
    """Return the last group of selections by one condition that can be made together.

    Statements between two of them read nothing that the earlier one makes.
    """
    run: list[int] = []
    read: set[str] = set()
    for k in reversed(range(len(statements))):
        each = statements[k]
        if not run and each.condition not in conditions:
            continue
        joins = not run or each.condition == statements[run[0]].condition
        if joins and not read.intersection(each.makes):
            run.insert(0, k)
        elif run and joins:
            return run
        read.update(each.reads)
    return run
