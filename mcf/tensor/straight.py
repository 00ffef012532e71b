"""Operations by plan straight from the function of torch, before anything else is asked.

Of what `shortcuts` do with a function of torch, most takes longer than a kernel of one element: to
look at all arguments, to count them, to find the operator's implementation and that its plan. Here
is the plan alone. Where there is none, the longer way finds out why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from mcf.elementary.fused import Formula
from mcf.kernels.operators import Operation
from mcf.kernels.register_choice import get_registers
from mcf.kernels.registry import get_executor
from mcf.tensor.launches import Plan
from mcf.tensor.plans import found_above, known
from mcf.tensor.recorded import functorch, modes
from mcf.tensor.registry import NAMED, STRAIGHT
from mcf.tensor.tensor import COMPONENTS, Components, MCFTensor, fresh

_duals = torch.autograd.forward_ad
_grad = torch.is_grad_enabled
_unasked = torch._C.DisableTorchFunctionSubclass

Call = Callable[[tuple[Any, ...]], Any]
# What types arguments may have, one beside the other.
Kinds = frozenset[tuple[type, ...]]


def _result(plan: Plan, groups: Sequence[Components], truth: bool) -> Any:
    out = plan.compute(groups)
    if out is None:
        return NotImplemented
    return out[0] if truth else fresh(out, plan.size, plan.dtypes[0], plan.device)


def _of_any(operation: Operation | Formula, kinds: Kinds, truth: bool) -> Call:
    """What computes an operation of expansions, plain tensors and numbers."""

    def call(args: tuple[Any, ...]) -> Any:
        if (*map(type, args),) not in kinds:
            return NotImplemented
        if torch.compiler.is_compiling() or _duals._current_level >= 0:
            return NotImplemented
        with _unasked():
            found = found_above(operation, args)
            return NotImplemented if found is None else _result(*found, truth)

    return call


def _of_one(operation: Operation | Formula, kinds: Kinds, truth: bool) -> Call:
    """The same of one expansion."""
    name = operation.name

    def call(args: tuple[Any, ...]) -> Any:
        if len(args) != 1 or torch.compiler.is_compiling() or _duals._current_level >= 0:
            return NotImplemented
        [x] = args
        if type(x) is not MCFTensor or modes() or functorch() is not None:
            return NotImplemented
        with _unasked():
            if x.requires_grad and _grad():
                return NotImplemented
            own = x.__dict__
            c, terms = own["_c0"], own["_terms"]
            if type(c) is not Tensor or not c.is_contiguous():
                return longer(args)
            kind = (terms, c.dtype, c.shape, c.device)
            plan = known((name, get_executor(), get_registers(), *kind))
            if plan is None:
                return longer(args)
            return _result(plan, (COMPONENTS[terms](own),), truth)

    longer = _of_any(operation, kinds, truth)
    return call


def _of_two(operation: Operation | Formula, kinds: Kinds, truth: bool) -> Call:
    """The same of two."""
    name = operation.name

    def call(args: tuple[Any, ...]) -> Any:
        if len(args) != 2 or torch.compiler.is_compiling() or _duals._current_level >= 0:
            return NotImplemented
        x, y = args
        if type(x) is not MCFTensor or type(y) is not MCFTensor:
            return longer(args)
        if modes() or functorch() is not None:
            return NotImplemented
        with _unasked():
            if _grad() and (x.requires_grad or y.requires_grad):
                return NotImplemented
            a, b = x.__dict__, y.__dict__
            c, d, m, n = a["_c0"], b["_c0"], a["_terms"], b["_terms"]
            if type(c) is not Tensor or type(d) is not Tensor:
                return NotImplemented
            if not (c.is_contiguous() and d.is_contiguous()):
                return longer(args)
            kind = (m, c.dtype, c.shape, c.device, n, d.dtype, d.shape, d.device)
            plan = known((name, get_executor(), get_registers(), *kind))
            if plan is None:
                return longer(args)
            return _result(plan, (COMPONENTS[m](a), COMPONENTS[n](b)), truth)

    longer = _of_any(operation, kinds, truth)
    return call


_OF: dict[int, Callable[[Operation | Formula, Kinds, bool], Call]] = {1: _of_one, 2: _of_two}


def straight(
    operation: Operation | Formula,
    functions: Sequence[Any],
    *kinds: frozenset[type],
    order: Sequence[int] | None = None,
    truth: bool = False,
    behind: Sequence[Any] = (),
) -> None:
    """Register an operation for functions of torch.

    Args:
        operation: what they compute.
        functions: of the same number of arguments; one with names of its last ones is a tuple.
        *kinds: what types each argument of the operation may have.
        order: of the functions' arguments for the operation; None for the same.
        truth: whether the result is a plain bool tensor.
        behind: what stands behind the functions' arguments.
    """
    allowed = frozenset(product(*kinds))
    call = _OF.get(len(kinds), _of_any)(operation, allowed, truth)
    if behind:
        call = _filled(call, tuple(behind))
    for function in functions:
        table: Any = NAMED if type(function) is tuple else STRAIGHT
        table[function] = call if order is None else _ordered(call, order)


def _ordered(call: Call, order: Sequence[int]) -> Call:
    places, count = itemgetter(*order), max(order) + 1
    return lambda args: call(places(args)) if len(args) == count else NotImplemented


def _filled(call: Call, behind: tuple[Any, ...]) -> Call:
    return lambda args: call((*args, *behind))
