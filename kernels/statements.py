"""Record formulas as statements and print them as algorithms: the one intermediate form.

A statement applies an operation to operands and names its results. Recorded statements are printed
as a Python function over the primitives, an algorithm, which executors bind like any other. There
are three front ends: Python functions that run on names (`recorded`), PyTorch's dispatcher
(`mcf.elementary.formula_recording`), and graphs of `torch.compile` (`mcf.fusion`).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import linecache
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any, NamedTuple

from mcf.kernels.algorithms import primitives
from mcf.kernels.bind import NEEDED, PRIMITIVE_NAMES, Algorithm, weight
from mcf.kernels.elementwise import Elementwise, parameters

# A variable, a literal, or a tuple of these.
Operand = str | tuple[Any, ...]

# Python's operators by the names of their methods.
OPERATORS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//",
    "and": "&", "or": "|", "xor": "^", "rshift": ">>", "lshift": "<<",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
}  # fmt: skip
_INFIX = frozenset(OPERATORS.values())
# Steps of fewer operations do not pay for a branch.
_FEWEST = 20


class Symbolic:
    """A value on which Python's operators call `operate(name, x, y)` of its owner."""

    __slots__ = ("owner",)

    def __init__(self, owner: Any) -> None:
        self.owner = owner

    def __bool__(self) -> bool:
        raise TypeError("an algorithm cannot test a number: use `where`")


def _method(name: str, swapped: bool) -> Callable[[Symbolic, Any], Any]:
    def apply(x: Symbolic, y: Any) -> Any:
        return x.owner.operate(name, y, x) if swapped else x.owner.operate(name, x, y)

    return apply


for _name in OPERATORS:
    setattr(Symbolic, f"__{_name}__", _method(_name, False))
    setattr(Symbolic, f"__r{_name}__", _method(_name, True))


@dataclasses.dataclass(frozen=True)
class Statement:
    """An operation of a formula.

    Args:
        results: the variables that it defines.
        operation: one of Python's operators, or the name of a function.
        operands: its arguments.
        unpack: whether the function returns a tuple.
    """

    results: tuple[str, ...]
    operation: str
    operands: tuple[Operand, ...]
    unpack: bool = False

    @functools.cached_property
    def reads(self) -> tuple[str, ...]:
        """The variables that it needs, tables included."""
        return tuple(x for x in _leaves(self.operands) if x.isidentifier())

    @functools.cached_property
    def condition(self) -> str:
        """The condition of a selection that takes a variable where it holds, else ""."""
        selects = self.operation in ("where", "&") and self.operands[1] in self.reads
        return str(self.operands[0]) if selects and self.operands[0] in self.reads else ""

    @property
    def others(self) -> tuple[str, ...]:
        """The variables that a selection needs where its condition does not hold."""
        return self.reads[:1] + self.reads[2:]

    def source(self, patterns: Mapping[str, str]) -> str:
        """Return the statement in Python; `patterns` are the expressions of some operations."""
        given = [*map(_text, self.operands)]
        if self.operation in patterns:
            text = patterns[self.operation].format(*given)
        elif self.operation in _INFIX:
            text = f" {self.operation} ".join(given)
        else:
            text = f"{self.operation}({', '.join(given)})"
        return f"{', '.join(self.results)}{',' * self.unpack} = {text}"


def _leaves(operands: Iterable[Any]) -> Iterator[Any]:
    """Yield the members of nested tuples."""
    for x in operands:
        if isinstance(x, tuple):
            yield from _leaves(x)
        else:
            yield x


def _text(x: Operand) -> str:
    return f"({', '.join(map(_text, x))},)" if isinstance(x, tuple) else x


def operands_of(spec: Elementwise, given: Iterable[Any], zero: Any) -> list[Any]:
    """Return the arguments of a kernel's algorithm.

    Args:
        spec: the kernel.
        given: the values of the fields that it reads, except tables.
        zero: the value of components that the kernel lacks.
    """
    values: dict[str, Any] = {f.name: f.name for f in spec.fields if f.table}
    read = [f.name for f in spec.fields if f.read and not f.table]
    values |= {"ZERO": zero}
    values |= zip(read, given, strict=True)
    return [spec.argument(p, values) for p in parameters(spec.function)]


class Recording:
    """The statements of a formula, and the functions that they call, by name."""

    def __init__(self) -> None:
        self.statements: list[Statement] = []
        self.functions: dict[str, Any] = {}
        self._variables = 0

    def variable(self) -> str:
        """Return the name of a new variable."""
        self._variables += 1
        return f"v{self._variables}"

    def record(self, operation: str, *operands: Operand) -> str:
        """Record an operation and return its result."""
        result = self.variable()
        self.statements.append(Statement((result,), operation, operands))
        return result

    def tuple_of(self, operation: str, count: int, *operands: Operand) -> tuple[str, ...]:
        """Record a call of a function that returns a tuple, and return the results."""
        results = tuple(self.variable() for _ in range(count))
        self.statements.append(Statement(results, operation, operands, unpack=True))
        return results

    def name_of(self, function: Any) -> str:
        """Return the name by which statements call a primitive or an algorithm."""
        name: str = function.__name__
        own, number = name, 0
        while (
            own in PRIMITIVE_NAMES and getattr(primitives, own) is not function
        ) or self.functions.setdefault(own, function) is not function:
            own, number = f"{name}_{number}", number + 1
        return own

    def call(self, function: Any, *operands: Operand) -> str:
        """Record a call of a function that returns one register."""
        return self.record(self.name_of(function), *operands)

    def calls(self, function: Any, count: int, *operands: Operand) -> tuple[str, ...]:
        """Record a call of a function that returns a tuple of registers."""
        return self.tuple_of(self.name_of(function), count, *operands)

    def literal(self, number: float, *functions: Any) -> str:
        """Return a literal: functions of a number, the last one first, which are no statement."""
        text = repr(number)
        for function in reversed(functions):
            text = f"{self.name_of(function)}({text})"
        return text

    def operate(self, name: str, x: Any, y: Any) -> Value:
        """Record one of Python's operators on `Value`s and numbers."""
        return self.value(OPERATORS[name], x, y)

    def apply(self, name: str, *operands: Any) -> Value:
        """Record a primitive of `Value`s and numbers."""
        return self.value(self.name_of(getattr(primitives, name)), *operands)

    def value(self, operation: str, *operands: Any) -> Value:
        """Record an operation on `Value`s and numbers."""
        return Value(self, self.record(operation, *map(text_of, operands)))


class Value(Symbolic):
    """A variable of a recording."""

    __slots__ = ("text",)

    def __init__(self, owner: Recording, text: str) -> None:
        super().__init__(owner)
        self.text = text


class Complex(NamedTuple):
    """A complex number of registers, which a recording passes and returns as one flat tuple."""

    real: tuple[Any, ...]
    imag: tuple[Any, ...]


def text_of(x: Any) -> Any:
    """Return a `Value`, a number or a tuple of them as an operand."""
    if isinstance(x, Complex):
        return text_of((*x.real, *x.imag))
    if isinstance(x, tuple):
        return tuple(map(text_of, x))
    return repr(x) if isinstance(x, (int, float)) else x.text


def recorded(
    name: str, form: Callable[..., Any], arguments: Mapping[str, int], doc: str, filename: str = ""
) -> FunctionType:
    """Return a Python function of registers as an algorithm.

    It runs once on names, so that it may use loops, lists and closures. Algorithms that it calls
    are inlined, except those of `kept`.

    Args:
        name: the name of the algorithm.
        form: the function.
        arguments: its parameters: the number of registers of a tuple, 0 for one register.
        doc: the docstring of the algorithm.
        filename: as in `written`.
    """
    recording = Recording()
    members = {a: tuple(f"{a}_{k}" for k in range(n)) for a, n in arguments.items()}
    given = (
        tuple(Value(recording, m) for m in names) if names else Value(recording, a)
        for a, names in members.items()
    )
    results = text_of(form(*given))
    statements = in_order(recording.statements, _leaves((results,)))
    return printed(name, members.items(), statements, results, recording.functions, doc, filename)


def kept(function: Any, count: int) -> Callable[..., tuple[Value, ...]]:
    """Return an algorithm that `recorded` does not inline; its result is a tuple of registers."""

    def call(*given: Any) -> tuple[Value, ...]:
        owner = next(x.owner for x in _leaves(given) if isinstance(x, Value))
        return tuple(Value(owner, v) for v in owner.calls(function, count, *map(text_of, given)))

    return call


class Family(Mapping[Any, Algorithm]):
    """Algorithms by number of components, each of which is made when it is first needed."""

    def __init__(self, make: Callable[[Any], Algorithm], keys: Iterable[Any]) -> None:
        self._make, self._keys = functools.cache(make), dict.fromkeys(keys)

    def __getitem__(self, key: Any) -> Algorithm:
        if key not in self._keys:
            raise KeyError(key)
        return self._make(key)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __or__(self, others: Mapping[Any, Algorithm]) -> Family:
        """Return the family with members under other keys."""
        return Family(lambda key: (others if key in others else self)[key], (*others, *self))

    __ror__ = __or__


def family(
    arguments: str, counts: Iterable[int] = (1, 2, 3, 4), **calls: Any
) -> Callable[[Callable[..., Any]], Family]:
    """Return a decorator: from a form to its algorithms by number of components.

    The numbers are those of `counts` that all `calls` have. An algorithm has the form's docstring,
    and its name with the number.

    Args:
        arguments: the parameters of the form: `x` for a register, `x.` for a tuple of one register,
            `x*` for an expansion, a tuple of registers, `x**` for a `Complex` of two expansions.
        counts: the numbers of components.
        calls: algorithms by number of components, which the form takes by name and which are not
            inlined. Their results are an expansion, or a complex number if they begin with
            `complex_`.
    """
    kinds = {a.strip("*."): a.count("*") or -a.count(".") for a in arguments.split()}
    prefix = "complex_" * ("**" in arguments)

    def decorate(form: Callable[..., Any]) -> Family:
        def make(n: int) -> FunctionType:
            named = {k: kept(f[n], n << k.startswith("complex_")) for k, f in calls.items()}

            def formed(*given: Any) -> Any:
                numbers = (
                    Complex(x[:n], x[n:]) if kind == 2 else x
                    for x, kind in zip(given, kinds.values(), strict=True)
                )
                return form(*numbers, **named)

            sizes = {a: 1 if kind < 0 else n * kind for a, kind in kinds.items()}
            name = f"{prefix}{form.__name__.strip('_')}{n}"
            return recorded(name, formed, sizes, form.__doc__ or "")

        return Family(make, sorted({*counts}.intersection(*calls.values())))

    return decorate


def printed(
    name: str,
    arguments: Iterable[str | tuple[str, tuple[str, ...]]],
    statements: Iterable[Statement],
    results: Operand,
    functions: Mapping[str, Any],
    doc: str,
    filename: str = "",
    patterns: Mapping[str, str] | None = None,
) -> FunctionType:
    """Return statements as an algorithm.

    Args:
        name: the name of the algorithm.
        arguments: its parameters; one that is a tuple stands with the names of its members.
        statements: in order.
        results: the variables that it returns.
        functions: the functions that the statements call, by name.
        doc: the docstring of the algorithm.
        filename: as in `written`.
        patterns: as in `Statement.source`.
    """
    given = [(a, ()) if isinstance(a, str) else a for a in arguments]
    lines = [f"{_text(members)} = {a}" for a, members in given if members]
    lines += [s.source(patterns or {}) for s in statements]
    lines.append(f"return {_text(results)}")
    names = {**{n: getattr(primitives, n) for n in PRIMITIVE_NAMES}, **functions}
    return written(name, ", ".join(a for a, _ in given), lines, doc, filename, **names)


def written(
    name: str, parameters: str, body: list[str], doc: str, filename: str = "", **names: Any
) -> FunctionType:
    """Compile statements into a function, for formulas whose length is a parameter.

    Args:
        name: the name of the function.
        parameters: the parameter list of its definition.
        body: its statements.
        doc: its docstring.
        filename: the file name in tracebacks, if `name` is not enough.
        names: the globals that the statements use.
    """
    text = "\n".join([f"def {name}({parameters}):", *(f"    {line}" for line in body)]) + "\n"
    filename = listed(text, filename.strip("<>") or f"mcf {name}")
    namespace = {"__name__": __name__, **names}
    exec(compile(text, filename, "exec", dont_inherit=True), namespace)
    function = namespace[name]
    assert isinstance(function, FunctionType)
    function.__doc__ = doc
    return function


def listed(text: str, name: str) -> str:
    """Register a text under a file name and return that name.

    Triton reads the source of a function when it compiles it, perhaps long after the function was
    created. So a name that another text already has gets a number.
    """
    lines = text.splitlines(True)
    for number in itertools.count(1):
        filename = f"<{name}>" if number == 1 else f"<{name} ({number})>"
        known = linecache.cache.get(filename)
        if known is None:
            linecache.cache[filename] = (len(text), None, lines, filename)
        if known is None or (len(known) == 4 and known[2] == lines):
            return filename
    raise AssertionError("unreachable")


def needed(
    statements: Sequence[Statement], results: Iterable[str], without: Collection[int] = ()
) -> list[int]:
    """Return the indices of the statements that results depend on, in order.

    The selections `without` count as if they did not read the variable that they take.
    """
    wanted, found = set(results), []
    for k in reversed(range(len(statements))):
        each = statements[k]
        if not wanted.isdisjoint(each.results):
            wanted.update(each.others if k in without else each.reads)
            found.append(k)
    return found[::-1]


def in_order(statements: Sequence[Statement], results: Iterable[str]) -> list[Statement]:
    """Return the statements that results depend on, in the order of the recording."""
    return [statements[k] for k in needed(statements, results)]


def depth_first(statements: Sequence[Statement], results: Iterable[str]) -> list[Statement]:
    """Return the statements that results depend on, depth first, the longest chain first.

    So fewer numbers are alive at once than in the order of a recording, in which each operation
    on one element of a tensor is followed by the same operation on the others.
    """
    maker = {variable: k for k, s in enumerate(statements) for variable in s.results}
    before = [{maker[v] for v in s.reads if v in maker} for s in statements]
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


def branched(
    statements: Sequence[Statement],
    results: Iterable[str],
    conditions: Collection[str],
    functions: Mapping[str, Any],
    label: str,
) -> tuple[list[Statement], dict[str, Any]]:
    """Turn rarely needed steps of a formula into functions that an executor may skip.

    Statements that are needed only by selections where a condition holds become an algorithm, whose
    first parameter is the condition (`mcf.kernels.bind.NEEDED`). An executor that computes blocks
    of elements runs it only for blocks where the condition holds somewhere. The results of the
    formula are unchanged.

    Args:
        statements: of the formula, in order.
        results: its results.
        conditions: the variables that make steps: the program skips a step if its condition holds
            nowhere.
        functions: the functions that the statements call, by name.
        label: a prefix of the steps' names.

    Returns:
        the statements that the results need, calls of steps among them, and all functions.
    """
    results, functions = tuple(results), dict(functions)
    now = in_order(statements, results)
    end, count = len(now), 0
    while run := _last_run(now[:end], conditions):
        others = set(needed(now, results, run))
        step = [k for k in range(run[-1]) if k not in others]
        end = run[0]
        inside = [now[k] for k in step]
        if sum(_operations(s, functions) for s in inside) < _FEWEST:
            continue
        made = {v for s in inside for v in s.results}
        taken = tuple(dict.fromkeys(v for s in inside for v in s.reads if v not in made))
        chosen = tuple(dict.fromkeys(v for v in (now[k].reads[1] for k in run) if v in made))
        name, count = f"{label}_{count}", count + 1
        lines, own = branched(inside, chosen, conditions, functions, name)
        functions[name] = printed(
            name, (NEEDED, *taken), lines, chosen, own, "A step of a formula.", f"<mcf {name}>"
        )
        call = Statement(chosen, name, (now[run[0]].condition, *taken), unpack=True)
        before = [now[k] for k in range(run[-1]) if k in others and k not in run]
        now = [*before, call, *(now[k] for k in run), *now[run[-1] + 1 :]]
        end = len(before)
    return now, functions


def _operations(statement: Statement, functions: Mapping[str, Any]) -> int:
    """Return the operations of a statement: those of the function that it calls, else one."""
    function = functions.get(statement.operation)
    return 1 if function is None else max(1, weight(function))


def _last_run(statements: Sequence[Statement], conditions: Collection[str]) -> list[int]:
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
        if joins and not read.intersection(each.results):
            run.insert(0, k)
        elif run and joins:
            return run
        read.update(each.reads)
    return run
