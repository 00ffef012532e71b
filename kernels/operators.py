"""Declare the operations on component tuples: the algorithm and the kernel of each.

`mcf.kernels.operations` has the functions that check arguments and run them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mcf.kernels import algorithms
from mcf.kernels.algorithms import (
    complex_numbers,
    complex_quotients,
    distillation,
    ieee,
    products,
    quotients,
    selection,
    short_products,
    sums,
)
from mcf.kernels.algorithms.order import SHORT
from mcf.kernels.bind import Algorithm
from mcf.kernels.elementwise import Elementwise, Field, parameters
from mcf.kernels.formats import BF16, FP16, FP32, FP64, INT8, Format
from mcf.kernels.statements import Family

# Algorithms by numbers of components.
Algorithms = Mapping[Any, Algorithm]
# The longest tuple that `renormalize` accepts: its cost grows with the square of the length.
MAX_FLOATS = 16


# Instances are compared and hashed by identity: caches look them up at every call.
@dataclasses.dataclass(frozen=True, eq=False)
class Operation:
    """A function on component tuples.

    Args:
        name: the name of the function; the operator is `name` or `expansion_name`, see `operator`.
        arguments: the names of its arguments.
        algorithms: by the largest number of components among the arguments; a function with a fixed
            number of components has one, under 1.
        special: algorithms by particular numbers of components of the arguments.
        results: the number of components of the result if it differs from the arguments'.
        components: the number of components of each argument if it is fixed: the algorithm then
            takes components one by one instead of tuples.
        result: the format of the result if it differs from the arguments': INT8 for 0 and 1, the
            bytes of a bool tensor.
        truths: names of mask arguments, the bytes of a bool tensor.
        floats: names of arguments of which an algorithm in `special` uses one component.
        parts: the number of expansions in the result.
        narrow: the algorithms in float32 registers, by number of components, if they differ.
        short: the algorithms of 16-bit formats, by number of components, if they differ.
    """

    name: str
    arguments: tuple[str, ...]
    algorithms: Algorithms
    special: Algorithms = dataclasses.field(default_factory=dict)
    results: int | None = None
    components: tuple[int, ...] | None = None
    result: Format | None = None
    truths: tuple[str, ...] = ()
    floats: tuple[str, ...] = ("y",)
    parts: int = 1
    narrow: Algorithms = dataclasses.field(default_factory=dict)
    short: Algorithms = dataclasses.field(default_factory=dict)

    @property
    def operator(self) -> str:
        """The name of the operator under `torch.ops.mcf`."""
        return self.name if self.components is not None else f"expansion_{self.name}"

    def terms(self, given: Sequence[int]) -> int:
        """Return how many components the result has."""
        return (self.results or max(given)) * self.parts

    def algorithm(self, terms: int, fmt: Format) -> Algorithm:
        """Return the algorithm for a number of components in the registers of a format."""
        if terms in self.short and fmt in (BF16, FP16):
            return self.short[terms]
        return (self.narrow if self.narrow and fmt.register == FP32 else self.algorithms)[terms]


def _transform(algorithm: Algorithm, **components: int) -> Operation:
    return Operation(
        algorithm.__name__,
        tuple(components),
        {1: algorithm},
        results=2,
        components=tuple(components.values()),
    )


TWO_SUM = _transform(algorithms.two_sum, a=1, b=1)
FAST_TWO_SUM = _transform(algorithms.fast_two_sum, a=1, b=1)
SPLIT = _transform(algorithms.split, a=1)
TWO_PROD = _transform(algorithms.two_prod, a=1, b=1)

# Networks of pairs that do not treat infinities and NaN specially.
GROW = _transform(algorithms.grow, x=2, a=1)
SCALE = _transform(algorithms.scale, x=2, a=1)
ADD_PAIRS = _transform(algorithms.add, x=2, y=2)
MUL_PAIRS = _transform(algorithms.mul, x=2, y=2)
RENORMALIZE = _transform(algorithms.renormalize, x=2)

TRANSFORMS = (
    *(TWO_SUM, FAST_TWO_SUM, SPLIT, TWO_PROD),
    *(GROW, SCALE, ADD_PAIRS, MUL_PAIRS, RENORMALIZE),
)


def _by_float(family: Algorithms) -> Algorithms:
    """Return the algorithms for a float as second argument."""
    return Family(lambda given: family[given[0]], [(terms, 1) for terms in family])


_FMA_FLOAT = Family(
    lambda given: ieee.FMA_FLOAT[given[0]],
    [(n, 1, m) for n in ieee.FMA_FLOAT for m in range(1, n + 1)],
)

ADD = Operation("add", ("x", "y"), ieee.ADD, _by_float(ieee.ADD_FLOAT))
SUB = Operation("sub", ("x", "y"), ieee.SUB, _by_float(ieee.SUB_FLOAT))
MUL = Operation("mul", ("x", "y"), ieee.MUL, _by_float(ieee.MUL_FLOAT))
DIV = Operation("div", ("x", "y"), ieee.DIV, _by_float(ieee.DIV_FLOAT))
FMA = Operation("fma", ("x", "y", "z"), ieee.FMA, _FMA_FLOAT)
SQUARE = Operation("square", ("x",), ieee.SQUARE)
SQRT = Operation("sqrt", ("x",), ieee.SQRT)
RECIPROCAL = Operation("reciprocal", ("x",), ieee.RECIPROCAL)
RSQRT = Operation("rsqrt", ("x",), ieee.RSQRT)
COMPARE = Operation("compare", ("x", "y"), ieee.compare, results=1)


def _comparison(name: str, family: Algorithms) -> Operation:
    short = Family(lambda terms: SHORT[name], (2,))
    return Operation(name, ("x", "y"), family, results=1, result=INT8, short=short)


def _bare(name: str, network: Algorithms, by_float: Algorithms | None = None) -> Operation:
    return Operation(name, ("x", "y"), network, _by_float(by_float or {}))


# Networks that do not correct special values, for `mcf.elementary.working`.
BARE_ADD = _bare("bare_add", sums.SUM, sums.PLUS_FLOAT)
BARE_MUL = _bare("bare_mul", products.PRODUCT, short_products.TIMES_FLOAT)
BARE_DIV = _bare("bare_div", quotients.QUOTIENT, quotients.OVER_FLOAT)
ABSORB = _bare("absorb", sums.ABSORBED)
BARE = (BARE_ADD, BARE_MUL, BARE_DIV, ABSORB)


# There is no kernel for > and >=: x > y is y < x, and x >= y is y <= x.
LT = _comparison("lt", ieee.LT)
LE = _comparison("le", ieee.LE)
EQ = _comparison("eq", ieee.EQ)
NE = _comparison("ne", ieee.NE)

OPERATIONS = (ADD, SUB, MUL, DIV, FMA, SQUARE, SQRT, RECIPROCAL, RSQRT, COMPARE)
COMPARISONS = (LT, LE, EQ, NE)


def _selection(name: str, arguments: str, family: Algorithms, *truths: str) -> Operation:
    return Operation(name, tuple(arguments.split()), family, truths=truths)


WHERE = _selection("where", "c x y", selection.where_, "c")
MAXIMUM = _selection("maximum", "x y", selection.maximum)
MINIMUM = _selection("minimum", "x y", selection.minimum)
FMAX = _selection("fmax", "x y", selection.fmax)
FMIN = _selection("fmin", "x y", selection.fmin)
CLAMP = _selection("clamp", "x low high", selection.clamp)
ABS = _selection("abs", "x", selection.abs_)
COPYSIGN = _selection("copysign", "x y", selection.copysign)

# Operations whose results are operands or their negatives, bit for bit. They are not operators of
# torch.ops.mcf: under tracing and dispatch modes PyTorch's selections run instead.
SELECTIONS = (WHERE, MAXIMUM, MINIMUM, FMAX, FMIN, CLAMP, ABS, COPYSIGN)
# Operations in which x and y may be exchanged.
COMMUTATIVE = (ADD, MUL, FMA)


# Operators on the parts of complex expansions: three or four operands, two results, one kernel.
PARTS = ("a", "b", "c", "d")


def _complex(name: str, formulas: complex_numbers.Formulas) -> Operation:
    """Return an operation whose second operand may have single floats as parts."""
    parts = PARTS[: len(formulas.parameters)]
    return Operation(
        f"complex_{name}", parts, formulas.usual, formulas.special, floats=parts[2:], parts=2
    )


COMPLEX_ADD = _complex("add", complex_numbers.ADD)
COMPLEX_SUB = _complex("sub", complex_numbers.SUB)
COMPLEX_MUL = _complex("mul", complex_numbers.MUL)
# Products and quotients by a real number.
COMPLEX_SCALE = _complex("scale", complex_numbers.SCALE)
COMPLEX_UNSCALE = _complex("unscale", complex_numbers.UNSCALE)
COMPLEX_DIV = Operation(
    "complex_div", PARTS, complex_quotients.DIV, parts=2, narrow=complex_quotients.DIV_NARROW
)
COMPLEX = (COMPLEX_ADD, COMPLEX_SUB, COMPLEX_MUL, COMPLEX_SCALE, COMPLEX_UNSCALE, COMPLEX_DIV)


def _kernel(
    name: str,
    function: Algorithm,
    fmt: Format,
    arguments: Sequence[tuple[str, int, int]],
    terms: int,
    uniform: frozenset[str] = frozenset(),
    rounded: bool = True,
    result: Format | None = None,
    truths: tuple[str, ...] = (),
) -> Elementwise:
    """Return a kernel of an algorithm on components.

    Args:
        name: the name of the kernel.
        function: the algorithm.
        fmt: the format of components and arithmetic.
        arguments: per parameter its name, its components in memory and those the algorithm takes;
            components that memory lacks are zero. None for a parameter that is no tuple.
        terms: the number of components of the result.
        uniform: names of parameters with one value for all elements.
        rounded: whether results are sums that end in `rc`, or selections among those.
        result: the format of the results if it is not `fmt`.
        truths: names of mask parameters.
    """
    results = tuple(f"r{k}" for k in range(terms))
    stored = [
        Field(n, INT8 if a in truths else fmt, uniform=a in uniform)
        for a, given, taken in arguments
        for n in ([f"{a}{k}" for k in range(given)] if taken else [a])
    ]
    groups = [(a, tuple(f"{a}{k}" for k in range(taken))) for a, _, taken in arguments if taken]
    return Elementwise(
        name=name,
        function=function,
        results=results,
        fields=(*(Field(r, result or fmt, read=False, written=True) for r in results), *stored),
        stores=tuple((r, r) for r in results),
        arithmetic=fmt,
        roundings=(("rc", fmt),),
        groups=tuple(groups),
        absent=tuple(f"{a}{k}" for a, given, taken in arguments for k in range(given, taken)),
        rounded=results if rounded else (),
    )


@functools.cache
def kernel(
    operation: Operation, fmt: Format, *given: int, uniform: frozenset[str] = frozenset()
) -> Elementwise:
    """Return the kernel of an operation for the number of components of each argument.

    `uniform` names the arguments that are one number for all elements.
    """
    if operation.components is not None:
        function = operation.algorithms[1]
        singles = [(p, 1, 0) for p in parameters(function)]
        name = f"{operation.name}_{fmt.name}"
        return _kernel(name, function, fmt, singles, operation.terms(given), rounded=False)
    name = f"expansion_{operation.name}_{''.join(map(str, given))}_{fmt.name}"
    name += "".join(f"_one_{a}" for a in sorted(uniform))
    special = operation.special.get(given)
    widest = max(given)
    arguments = []
    for argument, count in zip(operation.arguments, given, strict=True):
        # An algorithm for a float takes one component of it, and all components of the other
        # arguments.
        single = special and argument in operation.floats and count == 1
        taken = 1 if single else widest
        taken = 0 if argument in operation.truths else taken
        arguments.append((argument, count, taken))
    return _kernel(
        name,
        special or operation.algorithm(widest, fmt),
        fmt,
        arguments,
        operation.terms(given),
        uniform,
        result=operation.result,
        truths=operation.truths,
    )


def composite_kernel(
    name: str,
    function: Algorithm,
    fmt: Format,
    arguments: Mapping[str, int],
    terms: int,
    uniform: frozenset[str],
    truth: bool,
) -> Elementwise:
    """Return the kernel of an algorithm composed from several operations.

    Args:
        name: a prefix of the kernel's name.
        function: the algorithm.
        fmt: the format of components and arithmetic.
        arguments: the number of components of each parameter, 0 for masks.
        terms: the number of components of the result.
        uniform: names of parameters with one value for all elements.
        truth: whether the result is a mask.
    """
    return _kernel(
        f"{name}_{''.join(str(n or 1) for n in arguments.values())}_{fmt.name}",
        function,
        fmt,
        [(a, n or 1, n) for a, n in arguments.items()],
        terms,
        uniform=uniform,
        result=INT8 if truth else None,
        truths=tuple(a for a, n in arguments.items() if not n),
    )


@functools.cache
def result_dtypes(spec: Elementwise) -> tuple[torch.dtype, ...]:
    """Return the dtypes of the tensors that a kernel of components writes, in field order."""
    written = (f.format for f in spec.fields if f.written)
    return tuple(torch.bool if fmt == INT8 else fmt.dtype or torch.float64 for fmt in written)


@functools.cache
def renormalize_kernel(fmt: Format, count: int, terms: int, uniform: bool = False) -> Elementwise:
    """Return the kernel of `renormalize` for a number of floats and of components."""
    name = f"expansion_renormalize_{count}to{terms}_{fmt.name}{'_one_x' * uniform}"
    function = distillation.distill(count, terms)
    names = frozenset("x" if uniform else "")
    return _kernel(name, function, fmt, [("x", count, count)], terms, uniform=names)


@functools.cache
def settle_kernel(count: int, uniform: bool = False, register: Format = FP64) -> Elementwise:
    """Return the kernel that turns the partial sum of a fold into an expansion."""
    name = f"expansion_settle_{count}{'_one_x' * uniform}"
    name += f"_{register.name}" * (register != FP64)
    function = distillation.distill(count, count, partial=True)
    names = frozenset("x" if uniform else "")
    return _kernel(name, function, register, [("x", count, count)], count, uniform=names)
