"""What a function of expansions does to tensors, written down: launches, calls and their order.

A function made of others is run once on copies of its operands, below a mode that sees every
operator. What is written there stays in its place, so that the same steps compute the function of
other numbers in the copies: views are made once, constants once, and a kernel is launched by its
addresses. Nothing of torch's and nobody's Python is between the steps.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mcf.tensor.tape_steps import (
    Called,
    Launched,
    called,
    guard,
    is_own,
    launch_of,
    of_expansions_alone,
    on_arrays,
    own_launch,
)
from mcf.tensor.tape_tensors import RefusedError, leaves, memory_of, run_operator, targets, tensors
from mcf.tensor.tape_watching import launched
from mcf.tensor.tensor import MCFTensor

aten = torch.ops.aten

# Results that depend on no element of the operands.
_MADE = frozenset(
    f"aten::{name}"
    for name in (
        "zeros_like ones_like empty_like full_like new_empty new_zeros new_ones new_full "
        "new_empty_strided"
    ).split()
)
_TAGS = {torch.Tag.dynamic_output_shape, torch.Tag.nondeterministic_seeded}


def _is_taking(func: Any, args: Any) -> bool:
    """Whether an operator takes elements by their numbers; of masks the size would depend on."""
    if func is not aten.index.Tensor:
        return False
    return all(t.dtype is torch.int64 for t in args[1] if t is not None)


# An implementation of at most so many operators on components is written down as these.
_SHORT = 4


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down what is done with tensors.

    An implementation of an operator that launches one kernel is that launch; one in terms of other
    operators of expansions is looked into; any other is called as it is.
    """

    def __init__(self, operands: Sequence[Tensor]) -> None:
        """The components of the operands, whose memory the steps will find other numbers in."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.steps: list[Launched | Called] = []
        self._alive: list[Any] = [*operands]
        self.operands = {*map(memory_of, operands)}
        # Memory that depends on the operands; what of it steps have only copied to; what they read.
        self._varying = {*self.operands}
        self._filled: set[int] = set()
        self._read: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """One operator, on expansions or on plain tensors."""
        kwargs = kwargs or {}
        given = [*tensors((args, kwargs))]
        self._alive += given
        if func._schema.is_mutable:
            return self._written(func, args, kwargs, given)
        varying = any(memory_of(t) in self._varying for t in given)
        if not varying or func._schema.name in _MADE:
            out = run_operator(func, args, kwargs)
            self._alive.append(out)
            return out
        if not _TAGS.isdisjoint(func.tags) and not _is_taking(func, args):
            raise RefusedError(f"{func}")
        with launched() as launches:
            out = run_operator(func, args, kwargs)
        made = [*tensors(out)]
        self._alive.append(out)
        if not made:
            self._add(guard(func, args, kwargs, out, given))
            return out
        places = {*map(memory_of, given)}
        old = [memory_of(t) in places for t in made if t.numel()]
        if all(old):
            return out
        if any(old):
            raise RefusedError(f"{func}: some of its results share memory with operands")
        of_expansions = MCFTensor in map(type, leaves((args, kwargs, out)))
        if func.namespace == "mcf":
            found = own_launch(func, args, out)
            if found is not None:
                copies, launch, out = found
                self._alive += [*out, *launch.tensors]
                for copy in copies:
                    self._add(copy, copy.tensors[:1])
                self._add(launch, out)
                return out
        if of_expansions:
            step = launch_of(func, args, kwargs, out, given, launches)
            if step is not None:
                self._add(step, made)
                return out
            inside = self._inside(func, args, kwargs)
            if inside is not None:
                return inside[0]
        self._add(called(func, args, kwargs, out, [*given, *made], of_expansions), made)
        return out

    def _add(self, step: Launched | Called, written: Sequence[Tensor] = ()) -> None:
        self.steps.append(step)
        memory = {*map(memory_of, written)}
        self._varying |= memory
        self._read |= {*map(memory_of, step.tensors)} - memory

    def _inside(self, func: Any, args: Any, kwargs: Any) -> tuple[Any] | None:
        """The result of an operator of expansions that is made of others; else None."""
        mark = len(self.steps)
        before = {*self._varying}, {*self._filled}, {*self._read}
        try:
            with self:
                out = run_operator(func, args, kwargs)
        except RefusedError:
            out = None
        new = self.steps[mark:]
        short = len(new) <= _SHORT and not any(map(is_own, new))
        if out is not None and (short or any(map(of_expansions_alone, new))):
            return (out,)
        del self.steps[mark:]
        self._varying, self._filled, self._read = before
        return None

    def _written(self, func: Any, args: Any, kwargs: Any, given: list[Tensor]) -> Any:
        """An operator that writes to some of its arguments."""
        written = [*targets(func, args, kwargs)]
        memory = {*map(memory_of, written)}
        if memory & self.operands:
            raise RefusedError(f"{func} writes to an operand")
        name = func._schema.name
        of_expansions = MCFTensor in map(type, leaves((args, kwargs)))
        if of_expansions and any(memory_of(t) in self._varying for t in given):
            return self._in_place(func, args, kwargs)
        out = run_operator(func, args, kwargs)
        if name == "aten::detach_" or not any(memory_of(t) in self._varying for t in given):
            return out
        constant = memory - self._varying
        # What is copied anew each time is what it was, unless somebody has read it before.
        copied = name == "aten::copy_" or name.startswith("mcf::")
        if constant & self._read or (not copied and (constant or memory & self._filled)):
            raise RefusedError(f"{func} writes to a constant")
        self._filled |= constant
        step = Called(functools.partial(run_operator, func, args, kwargs), given, False)
        if name == "aten::copy_":
            step = on_arrays(func, args[1:2], {}, [args[0]]) or step
        self._add(step, written)
        return out

    def _in_place(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An operator that writes to an expansion: its other form, and copies of the components."""
        target, name = args[0], func._schema.name.removeprefix("aten::")
        packet = None if name == "copy_" else getattr(aten, name[:-1], None)
        form = getattr(packet, func._overloadname, None)
        if form is None and name != "copy_":
            raise RefusedError(f"{func}")
        out = args[1] if form is None else self.__torch_dispatch__(form, (), args, kwargs)
        if form is None and type(out) is not MCFTensor:
            raise RefusedError(f"{func} of a {type(out).__name__}")
        for t, c in zip(tensors(target), tensors(out), strict=True):
            self.__torch_dispatch__(aten.copy_.default, (), (t, c))
        return target
