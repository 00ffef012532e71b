"""The steps of a function of expansions: launches of kernels, and calls of operators."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mcf.elementary.fused import Formula
from mcf.kernels.bit_functions import spread
from mcf.kernels.operators import COMPARISONS, OPERATIONS
from mcf.tensor.launches import Plan
from mcf.tensor.moment_plans import MomentPlan
from mcf.tensor.tape_native import Native, look, native
from mcf.tensor.tape_tensors import RefusedError, run_operator, tensors
from mcf.tensor.tape_watching import launched

aten = torch.ops.aten


class Launched(NamedTuple):
    """The launch of a kernel.

    Args:
        launch: of addresses, see `launches.Plan`.
        tensors: those that it writes and reads.
        behind: further addresses.
        plan: what keeps them.
    """

    launch: Callable[[Any], Any]
    tensors: list[Tensor]
    behind: list[int]
    plan: Plan


class Called(NamedTuple):
    """A call of an operator.

    Args:
        call: makes it, on the tensors that there were.
        tensors: those that it reads and writes.
        of_expansions: whether it is an operator of expansion tensors.
        parts: the launches and their addresses that it is, one after the other.
        keep: what these need.
        native: makes the calls of native code that do the same, if there are such.
    """

    call: Callable[[], Any]
    tensors: list[Tensor]
    of_expansions: bool
    parts: Sequence[tuple[Any, tuple[Any, ...]]] = ()
    keep: Any = None
    native: Native | None = None


class ChangedError(Exception):
    """A number that decides what is done next is another than it was."""


def is_slow(step: Launched | Called) -> bool:
    """Whether a step is called as it is, and takes as long as torch's way does."""
    return isinstance(step, Called) and getattr(step.call, "slow", False)


def of_expansions_alone(step: Launched | Called) -> bool:
    """Whether a step is one of an operator of expansions."""
    return isinstance(step, Launched) or step.of_expansions


def is_own(step: Launched | Called) -> bool:
    """Whether a step is a kernel by torch's way, which takes as long as many other steps."""
    return isinstance(step, Called) and getattr(step.call, "own", False)


_READING = frozenset({aten._local_scalar_dense.default, aten.is_nonzero.default})


def guard(func: Any, args: Any, kwargs: Any, value: Any, given: list[Tensor]) -> Called:
    """A look at a number, which has to be what it was."""
    read: Any = functools.partial(run_operator, func, args, kwargs)
    if func in _READING:
        if type(args[0]) is Tensor and args[0].dtype in _DTYPES:
            read = args[0].detach().numpy().item

    # What follows from a number may have its sign of zero.
    zero = math.copysign(1.0, value) if type(value) is float and value == 0 else 0.0

    def call() -> None:
        found = read()
        if found != value or (zero and math.copysign(1.0, found) != zero):
            raise ChangedError

    return Called(call, given, False, native=look(args[0], value) if func in _READING else None)


def called(
    func: Any, args: Any, kwargs: Any, out: Any, used: list[Tensor], of_expansions: bool
) -> Called:
    """A call whose results go to where they went."""
    made = [*tensors(out)]
    form = None if of_expansions else _into(func)
    ready = None if of_expansions else on_arrays(func, args, kwargs, made)
    if ready is not None:
        return ready._replace(tensors=used)
    made_one = not of_expansions and len(made) == 1
    step = native(func, args, kwargs, made[0]) if made_one else None
    if form is not None and len(made) == 1:
        operator, [target] = form._op, made

        def call() -> None:
            operator(*args, **kwargs, out=target)

    else:

        def call() -> None:
            for t, c in zip(made, tensors(run_operator(func, args, kwargs)), strict=True):
                t.copy_(c)

    try:
        call()
    except RuntimeError as error:
        raise RefusedError(f"{func}: {error}") from None
    call.own = func.namespace == "mcf"  # type: ignore[attr-defined]
    call.slow = of_expansions or call.own  # type: ignore[attr-defined]
    return Called(call, used, of_expansions, native=step)


# Functions of elements that NumPy computes with the same bits, in a fourth of the time.
_ARRAYS: dict[str, Any] = {
    "neg": np.negative,
    "isnan": np.isnan,
    "isfinite": np.isfinite,
    "isinf": np.isinf,
    "signbit": np.signbit,
    "clone": np.positive,
    "copy_": np.positive,
    "bitwise_not": np.invert,
    **dict.fromkeys(("bitwise_and", "__and__"), np.bitwise_and),
    **dict.fromkeys(("bitwise_or", "__or__"), np.bitwise_or),
    **dict.fromkeys(("bitwise_xor", "__xor__"), np.bitwise_xor),
}
_DTYPES = frozenset({torch.float64, torch.float32, torch.bool, torch.int64})


def on_arrays(func: Any, args: Any, kwargs: Any, made: list[Tensor]) -> Called | None:
    """A call on the arrays that tensors are, or None."""
    name = func._schema.name.removeprefix("aten::")
    function = _ARRAYS.get(name)
    if function is None or len(made) != 1 or (kwargs and kwargs.keys() != {"memory_format"}):
        return None
    used = [*args, *made]
    if not all(type(t) is Tensor and t.dtype in _DTYPES for t in used):
        return None
    arrays = [t.detach().numpy() for t in used]
    if function is np.positive:
        function = np.copyto
        arrays.reverse()
    step = functools.partial(spread, name, [*args], made[0])
    return Called(functools.partial(function, *arrays), used, False, native=step)


_OPERATIONS = {f"mcf::{o.operator}": o for o in (*OPERATIONS, *COMPARISONS)}


def own_launch(
    func: Any, args: Any, out: Any
) -> tuple[list[Called], Launched, list[Tensor]] | None:
    """The launch of an operator on components, copies that it needs, and its results."""
    name = func._schema.name
    operation: Any = _OPERATIONS.get(name)
    if name == "mcf::elementary":
        function, flat, terms = args
        operation = Formula(function)
        ends = [sum(terms[: k + 1]) for k in range(len(terms))]
        given = [flat[end - n : end] for n, end in zip(terms, ends, strict=True)]
    elif operation is not None:
        given = [[*map(_once, group)] for group in args]
    else:
        return None
    copies: list[Called] = []
    groups = [tuple(_dense(c, copies) for c in group) for group in given]
    if isinstance(operation, Formula):
        plan = Plan.of_formula(operation, groups)
    else:
        plan = Plan.of(operation, groups)
    if plan is None or plan.broadcasts:
        return None
    results = plan.run(groups)
    if results is None or [r.shape for r in results] != [t.shape for t in tensors(out)]:
        return None
    ordered = [t for k in plan.order for t in groups[k]]
    return copies, Launched(plan.launch, [*results, *ordered], plan.behind, plan), results


def _dense(t: Tensor, copies: list[Called]) -> Tensor:
    """A tensor as a kernel takes it; where it is a copy, what makes that again is added."""
    if t.is_contiguous():
        return t
    dense = t.contiguous()
    copy = on_arrays(aten.copy_.default, [t], {}, [dense])
    copies.append(copy or Called(functools.partial(dense.copy_, t), [dense, t], False))
    return dense


def _once(t: Tensor) -> Tensor:
    """One number that stands for all as it is."""
    return t.as_strided((), ()) if t.numel() > 1 and not any(t.stride()) else t


def _into(func: Any) -> Any:
    """The form of an operator that writes into `out`, or None."""
    known = [(a.name, str(a.type)) for a in func._schema.arguments]
    for overload in func.overloadpacket.overloads():
        form = getattr(func.overloadpacket, overload)
        *first, last = [(a.name, str(a.type)) for a in form._schema.arguments] or [("", "")]
        if first == known and last[0] == "out":
            return form
    return None


def launch_of(
    func: Any, args: Any, kwargs: Any, out: Any, given: list[Tensor], launches: list[Any]
) -> Launched | Called | None:
    """The one launch that an operator is, if it is one of its operands and of constants."""
    found = _one(out, launches)
    if found is None:
        return None
    plan, groups, results = found
    read = [t for group in groups for t in group]
    known = {*map(id, given)}
    if not known <= {*map(id, read)}:
        return None
    others = [t for t in read if id(t) not in known]
    if others:
        # What is made anew each time depends on the operands, as far as can be seen from here.
        with launched() as again:
            other = _one(run_operator(func, args, kwargs), again)
        if other is None or not {*map(id, others)} <= {id(t) for g in other[1] for t in g}:
            return None
    if type(plan) is not Plan:
        found = plan.bound(groups if type(plan) is MomentPlan else groups[0], results)
        if found is None:
            return None
        return Called(_one_by_one(found[0]), [*results, *read], True, *found)
    ordered = [t for k in plan.order for t in groups[k]]
    return Launched(plan.launch, [*results, *ordered], plan.behind, plan)


def _one_by_one(parts: Sequence[tuple[Any, tuple[Any, ...]]]) -> Callable[[], None]:
    def call() -> None:
        for launch, arguments in parts:
            checked(launch(*arguments))

    return call


def checked(found: Any) -> None:
    """Raise where a launch counted elements whose results are of no use, or a program says so."""
    failed = not found if isinstance(found, bool) else found is not None and found[0]
    if failed:
        raise ChangedError


def _one(out: Any, launches: list[Any]) -> Any:
    if len(launches) != 1 or launches[0][2] is None:
        return None
    made = [*tensors(out)]
    results = launches[0][2]
    same = len(made) == len(results) and all(a is b for a, b in zip(made, results, strict=True))
    return launches[0] if same else None
