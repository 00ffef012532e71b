"""Evaluate formulas of a few operations, on large tensors as one kernel in one pass over memory.

To be fused a formula runs once on names in place of tensors, and each operation that it applies is
recorded as a call of its algorithm (`mcf.kernels.statements`). The recorded calls form one
algorithm, which has the same bits as the operations one by one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mcf.elementary.fused import NO_SCALARS, Formula
from mcf.expansions.dispatch.recorded import watched
from mcf.expansions.dispatch.registry import OPERATORS
from mcf.expansions.launch.calls import looked_up
from mcf.expansions.launch.elementwise import Plan, fits
from mcf.expansions.launch.operations import (
    addressed,
    compared,
    held_number,
    into,
    number_of,
    planned,
    rounded_number,
)
from mcf.expansions.tensor import COMPONENTS, Components, MCFTensor, fresh
from mcf.kernels import registry
from mcf.kernels.elementwise import Elementwise
from mcf.kernels.formats import FORMATS, INT8, Format
from mcf.kernels.operators import (
    COMMUTATIVE,
    COMPARISONS,
    SELECTIONS,
    Operation,
    composite_kernel,
    kernel,
    result_dtypes,
)
from mcf.kernels.register_choice import get_registers
from mcf.kernels.statements import Recording, operands_of, printed

_address = Tensor.data_ptr
# Kernels by all that defines them; operands of another shape use the same kernel.
_specs: dict[tuple[Any, ...], Elementwise] = {}
_MOST_SPECS = 256

# Applies an operation to its operands and returns the result.
Apply = Callable[..., Any]
# A formula: a function of `Apply` and the operands, which computes by `Apply` alone.
Written = Callable[..., Any]

# Least number of elements to fuse: compiling a kernel takes tenths of a second, once per machine.
MANY = 2048
# GPU compilers take 15 s for some formulas of more components.
_MOST_TERMS = 3


class NotFusedError(Exception):
    """A formula contains an operation that fused kernels do not support."""


def fused(formula: Written, *values: Any, out: Components | None = None) -> Any:
    """Return the result of a formula, or None where its operations must run one by one.

    Args:
        formula: a function of `Apply` and the operands.
        *values: expansion tensors, plain float tensors and numbers.
        out: components to write to, which may be operands. The result is True if they are
            contiguous and have the result's format and shape; else nothing is written and it is
            None.
    """
    if watched():
        return None
    like: dict[str, Any] = {}
    for x in values:
        if type(x) is MCFTensor:
            like = x.__dict__
            break
    if not like or like["_c0"].numel() < MANY:
        return None
    groups: list[Components] = []
    signature: list[Any] = [formula, registry.get_executor(), get_registers()]
    # The components of a number depend on the terms of the operand next to it, unless it has one.
    terms: set[int] = set()
    several, rounded = False, []
    for k, x in enumerate(values):
        if type(x) is MCFTensor:
            own = x.__dict__
            terms.add(own["_terms"])
            parts = COMPONENTS[own["_terms"]](own)
        elif type(x) is Tensor:
            if not addressed(x):
                return None
            parts = (x,)
            terms.add(1)
        elif isinstance(x, Tensor):
            return None
        else:
            first, sign = like["_c0"], 0.0 if x else math.copysign(1.0, x)
            given = x, sign, first.dtype, like["_terms"], first.device
            found = held_number(*given)
            if found is None:
                found = rounded_number(*given)
                rounded.append(k)
            if found is None:
                return None
            several |= len(found) > 1 or k in rounded
            parts = found
        first = parts[0]
        if type(first) is not Tensor or not first.is_contiguous():
            return None
        groups.append(parts)
        signature += (len(parts), first.dtype, first.shape, first.device)
    if len(terms) > 1 and several:
        return None
    plan = looked_up((*signature, *rounded), _plan, formula, rounded, groups)
    if plan is None:
        return None
    if out is not None:
        written = fits(plan, out) and plan.over_operands(groups, out) is not None
        return True if written else None
    made = plan.run(groups)
    if made[0].dtype is torch.bool:
        return made[0]
    return fresh(made, plan.size, made[0].dtype, plan.device)


def _checked(formula: Written, rounded: Sequence[int]) -> Written:
    """Return the formula with a check that only arithmetic uses rounded numbers.

    Comparisons and selections need exact numbers.
    """
    if not rounded:
        return formula

    @functools.wraps(formula)
    def checked(apply: Apply, *operands: Any) -> Any:
        numbers = {id(operands[k]) for k in rounded}

        def checking(operation: Operation | Formula, *given: Any) -> Any:
            if number_of(operation) is not rounded_number and numbers & {*map(id, given)}:
                raise NotFusedError
            return apply(operation, *given)

        return formula(checking, *operands)

    return checked


class _Name(NamedTuple):
    """A value of the kernel: its registers, and whether it is a mask."""

    registers: tuple[str, ...]
    truth: bool = False


def _named(name: str, terms: int, truth: bool = False) -> _Name:
    """Return the value of a parameter, which is a tuple unless it is a mask."""
    return _Name((name,) if truth else tuple(f"{name}_{k}" for k in range(terms)), truth)


class _Writer:
    """Records the operations that a formula applies to names."""

    def __init__(self, fmt: Format, device: torch.device) -> None:
        self._fmt, self._device = fmt, device
        self.recording = Recording()
        # Components of the constants in the formula.
        self.constants: list[Components] = []

    def apply(self, operation: Any, *operands: Any) -> _Name:
        """Record an operation on names and numbers."""
        if type(operation) is not Operation or operation.parts > 1 or operation.components:
            raise NotFusedError
        names = [x for x in operands if type(x) is _Name and not x.truth]
        most = max((len(x.registers) for x in names), default=0)
        if not most:
            raise NotFusedError
        given = [x if type(x) is _Name else self._constant(operation, x, most) for x in operands]
        if operation in COMMUTATIVE and len(given[0].registers) < len(given[1].registers):
            given[:2] = given[1], given[0]
        if [a in operation.truths for a in operation.arguments] != [x.truth for x in given]:
            raise NotFusedError
        spec = kernel(operation, self._fmt, *(len(x.registers) for x in given))
        registers = [r for x in given for r in x.registers]
        arguments = operands_of(spec, registers, "ZERO")
        found = self.recording.calls(spec.function, len(spec.results), *arguments)
        return _Name(found, operation.result is INT8)

    def _constant(self, operation: Operation, value: Any, terms: int) -> _Name:
        if type(value) not in (int, float):
            raise NotFusedError
        sign = 0.0 if value else math.copysign(1.0, value)
        dtype = self._fmt.dtype
        assert dtype is not None
        found = number_of(operation)(value, sign, dtype, terms, self._device)
        if found is None:
            raise NotFusedError
        self.constants.append(found)
        return _named(f"constant{len(self.constants) - 1}", len(found))


class _OnTensors:
    """A kernel of an executor that takes tensors; used like a `Plan`."""

    def __init__(self, spec: Elementwise, like: Tensor, constants: Sequence[Tensor]) -> None:
        """Hold a kernel whose result has the shape of `like`; constants follow its operands."""
        self.size, self.device, self.dtypes = like.shape, like.device, result_dtypes(spec)
        self._spec, self._constants = spec, constants

    def run(self, groups: Sequence[Components]) -> list[Tensor]:
        """Compute the components of the result for operands of the signature."""
        out = [torch.empty(self.size, dtype=d, device=self.device) for d in self.dtypes]
        self._write(groups, out)
        return out

    def over_operands(self, groups: Sequence[Components], targets: Components) -> Any:
        """Write the result into components; return None if they overlap an operand."""
        size = targets[0].nbytes
        written = [*map(_address, targets)]
        for c in (c for group in groups for c in group):
            start, end = c.data_ptr(), c.data_ptr() + c.nbytes
            if any(start < place + size and place < end for place in written):
                return None
        self._write(groups, targets)
        return ()

    def _write(self, groups: Sequence[Components], out: Sequence[Tensor]) -> None:
        read = [c for group in groups for c in group]
        registry.run(self._spec, [[*out, *read, *self._constants]], NO_SCALARS)


def _plan(
    formula: Written, rounded: Sequence[int], groups: Sequence[Components]
) -> Plan | _OnTensors | None:
    """Create the plan of a signature, or return None if the formula cannot be fused."""
    first = max((c for group in groups for c in group), key=Tensor.dim)
    fmt = next((FORMATS[g[0].dtype] for g in groups if g[0].dtype in FORMATS), None)
    executor = registry.on(first.device)
    if fmt is None or not executor.longest:
        return None
    if not executor.native and max(map(len, groups)) > _MOST_TERMS:
        return None
    writer = _Writer(fmt, first.device)
    values: dict[str, _Name] = {}
    uniform: set[str] = set()
    for k, group in enumerate(groups):
        truth, c = group[0].dtype is torch.bool, group[0]
        if c.device != first.device or (c.dtype is not fmt.dtype and not truth):
            return None
        if c.shape != first.shape and (c.ndim or truth):
            return None
        values[f"operand{k}"] = _named(f"operand{k}", len(group), truth)
        uniform |= {f"operand{k}"} if c.shape != first.shape else set()
    try:
        result = _checked(formula, rounded)(writer.apply, *values.values())
    except NotFusedError:
        return None
    recording = writer.recording
    if type(result) is not _Name or not recording.statements:
        return None
    for k, group in enumerate(writer.constants):
        values[f"constant{k}"] = _named(f"constant{k}", len(group))
        uniform.add(f"constant{k}")
    name = formula.__name__.strip("_")
    key = (
        *(name, fmt, result, frozenset(uniform), *values.items()),
        *(*recording.statements, *recording.functions.items()),
    )
    # A single lookup, since another thread may clear the cache at any time.
    spec = _specs.get(key)
    if spec is None:
        if len(_specs) >= _MOST_SPECS:
            _specs.clear()
        spec = _specs[key] = composite_kernel(
            name,
            printed(
                name,
                [n if x.truth else (n, x.registers) for n, x in values.items()],
                recording.statements,
                result.registers,
                recording.functions,
                f"The formula `{name}`.",
            ),
            fmt,
            {n: 0 if x.truth else len(x.registers) for n, x in values.items()},
            len(result.registers),
            frozenset(uniform),
            result.truth,
        )
    constants = [c for group in writer.constants for c in group]
    if not executor.native:
        return _OnTensors(spec, first, constants)
    launch = registry.prepare(spec, [[first] * len(spec.fields)])
    return None if launch is None else Plan(spec, range(len(groups)), first, launch, constants)


_aten = torch.ops.aten


def composed(formula: Written, *values: Any) -> Any:
    """Evaluate `formula(apply, *values)`, where `apply(operation, *operands)` is one operation.

    A formula may contain comparisons, selections, arithmetic and elementary functions.
    """
    found = fused(formula, *values)
    return formula(_apply, *values) if found is None else found


def by_torch(operation: Operation, *values: Any) -> Any:
    """Apply an operation as a PyTorch function; pass this to a formula that autograd records.

    The first operand must be a tensor.
    """
    return getattr(torch, operation.name)(*values)


def composed_into(formula: Written, values: Sequence[Any], out: MCFTensor) -> bool:
    """Write a formula's value into `out`, which may be an operand; return False if unsupported.

    For large tensors the last operation writes to `out`. Nothing is written if `out` has another
    format, shape or layout than the result.
    """
    own = out.__dict__
    if fused(formula, *values, out=COMPONENTS[own["_terms"]](own)):
        return True
    left = _length(formula, len(values))

    def apply(operation: Operation | Formula, *operands: Any) -> Any:
        nonlocal left
        left -= 1
        return _apply(operation, *operands) if left else into(operation, operands, out)

    return formula(apply, *values) is True


@functools.lru_cache(256)
def _length(formula: Written, count: int) -> int:
    """Return the number of operations in a formula of `count` operands."""
    found: list[Any] = []
    formula(lambda *given: found.append(given), *[None] * count)
    return len(found)


def _apply(operation: Operation | Formula, *values: Any) -> Any:
    """Apply a single operation."""
    return _function(operation)(*values)


@functools.cache
def _function(operation: Operation | Formula) -> Callable[..., Any]:
    """Return the function that applies an operation to its operands."""
    if isinstance(operation, Formula) or operation in SELECTIONS:
        packet = getattr(_aten, operation.name)
        form = "self" if operation.name == "where" else packet.overloads()[0]
        return OPERATORS[getattr(packet, form)]
    return functools.partial(compared if operation in COMPARISONS else planned, operation)
