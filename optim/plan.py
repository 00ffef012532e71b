"""A step that is like the one before: what need not be found out again, and what is checked again.

Between two steps of training little changes but the values of tensors and the addresses of
gradients. A plan keeps the rest: kernels, the work list, the addresses of parameters and states.
`holds` compares all that could have changed with what was checked in full; where anything differs
the step takes the general path, which also finds the words for what is wrong.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, eq, is_, itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

from mcf.kernels import registry
from mcf.kernels.elementwise import Elementwise
from mcf.optim import gradients
from mcf.optim.strategies import Arithmetic
from mcf.optim.update import GradientForm, Rule, kernel, states

if TYPE_CHECKING:
    from mcf.optim.metrics import StepMetrics
    from mcf.optim.step import FusedOptimizer

Group = dict[str, Any]
# A parameter, after the words that name it in messages.
Named = tuple[str, Tensor]
# Group index, group, rule, arithmetic, the form of gradients, and the parameters.
Work = tuple[int, Group, Rule, Arithmetic, GradientForm, list[Named]]

_PLAIN = {Tensor, Parameter}


_dtype = attrgetter("dtype")


class _Layouts:
    """What a kernel depends on beside addresses, of some tensors."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.dtypes = [t.dtype for t in tensors]
        self.sizes = [t.size() for t in tensors]
        self.dense = [t.is_contiguous() for t in tensors]
        self.strides = [t.stride() for t in tensors] if not all(self.dense) else None

    def fit(self, tensors: Sequence[Tensor]) -> bool:
        """Whether these tensors have the same; lazily, as thousands of tuples are garbage."""
        return (
            all(map(is_, map(_dtype, tensors), self.dtypes))
            and all(map(eq, map(Tensor.size, tensors), self.sizes))
            and all(map(is_, map(Tensor.is_contiguous, tensors), self.dense))
            and (self.strides is None or list(map(Tensor.stride, tensors)) == self.strides)
        )


def _getter(names: Sequence[str]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """Takes some values out of a dict, quickly."""
    if len(names) == 1:
        return lambda entry: (entry[names[0]],)
    return itemgetter(*names)


@dataclasses.dataclass(eq=False)
class _Batch:
    """Parameters of one group that one kernel steps, with what was found about them.

    Args:
        work: what the full checks returned, with the parameters of this batch only.
        scalars: names of the kernel's scalars.
        prepared: the kernel with its work list.
        params: the parameters.
        stored: takes a parameter's states out of its dict: `step`, then those of the kernel.
        entry_lengths: how many states each has.
        layouts: of all parameters and states, one row after the other.
        pointers: their addresses.
        gradient_layouts: of the gradients.
        counters: the memory of all `step`.
        size: the number of elements.
        tensors: parameters and states of the step that `holds` has checked.
        gradients: the gradients of that step.
    """

    work: Work
    scalars: tuple[str, ...]
    prepared: Any
    params: list[Tensor]
    stored: Any
    entry_lengths: list[int]
    layouts: _Layouts
    pointers: list[int]
    gradient_layouts: _Layouts
    counters: list[Any]
    size: int
    tensors: list[Tensor] = dataclasses.field(default_factory=list)
    gradients: list[Tensor] = dataclasses.field(default_factory=list)


class Plan:
    """The repeatable part of a step; see the module."""

    def __init__(self, optimizer: FusedOptimizer, work: Sequence[Work]) -> None:
        """Made after a step on `work`, when all states are there."""
        self._executor = registry.get_executor()
        self._groups = [(group, list(group["params"])) for group in optimizer.param_groups]
        self._track = optimizer._track_metrics
        self._clipped = optimizer.max_grad_value is not None
        live = {id(p) for *_, found in work for _, p in found}
        self._idle = [p for _, params in self._groups for p in params if id(p) not in live]
        self._batches = []
        # Whether it steps all that has gradients: else layouts differ, or types are others.
        self.whole = True
        for index, group, rule, arith, form, found in work:
            spec = kernel(rule, arith, self._track, form)
            if form.paired or spec.random or arith.strategy.eight_bits:
                self.whole = False
                continue
            stored = _getter(("step", *states(rule, arith)))
            rows, fit = [], []
            for where, p in found:
                assert p.grad is not None
                row = [p, p.grad, *stored(optimizer.state[p])[1:]]
                plain = type(p) in _PLAIN and all(type(t) is Tensor for t in row[1:])
                fits = plain and not row[1].is_neg() and registry.same_layout(row)
                if fits:
                    fit.append((where, p))
                    rows.append(row)
            prepared = registry.prepare(spec, rows) if rows else None
            self.whole &= len(fit) == len(found) and prepared is not None
            if prepared is not None:
                mine = (index, group, rule, arith, form, fit)
                self._batches.append(_batch(optimizer, mine, spec, stored, prepared, rows))

        self.stepped = {id(p) for b in self._batches for p in b.params}

    @property
    def useful(self) -> bool:
        """Whether any of the step was prepared."""
        return bool(self._batches)

    def holds(self, optimizer: FusedOptimizer) -> bool:
        """Whether a step now is as the one that the plan was made from; keeps what `run` needs."""
        if (
            registry.get_executor() != self._executor
            or optimizer._track_metrics != self._track
            or (optimizer.max_grad_value is not None) != self._clipped
            or optimizer._grad_low
            or len(optimizer.param_groups) != len(self._groups)
            or torch._C._len_torch_dispatch_stack()
        ):
            return False
        for group, (before, params) in zip(optimizer.param_groups, self._groups, strict=True):
            now = group["params"]
            if group is not before or len(now) != len(params) or not all(map(is_, now, params)):
                return False
        if any(p.grad is not None for p in self._idle):
            return False
        try:
            return all(_unchanged(optimizer, b) for b in self._batches)
        except (KeyError, AttributeError, TypeError, ValueError):
            # A state that is not there or not a tensor, or an error that the general path raises.
            return False

    def live(self) -> list[Named]:
        """The parameters that `run` steps, with the words that name them."""
        return [pair for b in self._batches for pair in b.work[-1]]

    def run(
        self,
        optimizer: FusedOptimizer,
        scale: float | Tensor,
        metrics: StepMetrics | None,
    ) -> list[Work]:
        """Step what was prepared, after `holds`.

        Args:
            optimizer: the optimizer.
            scale: what multiplies every gradient.
            metrics: takes the sums, or None.

        Returns:
            What was left undone, because the scale is on another device.
        """
        undone, ready = [], []
        # All scalars before the first change, as a hyperparameter may turn out to be none.
        for b in self._batches:
            if isinstance(scale, Tensor) and scale.device != b.params[0].device:
                undone.append(b.work)
                optimizer._try_scalars(b.work)
            else:
                ready.append((b, _scalars(optimizer, b, scale)))
        for b, table in ready:
            for counter in b.counters:
                counter.value += 1
            sums = b.prepared.run(_addresses(b), table)
            torch.autograd.graph.increment_version(b.tensors)
            if metrics is not None:
                metrics.add(b.work[0], torch.as_tensor(sums), b.size)
        return undone

    def release(self) -> None:
        """Let go of what `holds` kept for `run`."""
        for b in self._batches:
            b.tensors, b.gradients = [], []


def _scalars(optimizer: FusedOptimizer, b: _Batch, scale: float | Tensor) -> Any:
    """The table of scalars, [rows, scalars], of the step after that which the counters say."""
    _, group, _, arith, _, _ = b.work
    steps = [counter.value + 1 for counter in b.counters]
    columns = {s: optimizer._columns(group, arith, s) for s in set(steps)}
    values = {s: [c[name] for name in b.scalars] for s, c in columns.items()}
    if len(values) == 1:
        table = np.array([values[steps[0]]]).repeat(len(steps), 0)
    else:
        table = np.array([values[s] for s in steps])
    column = b.scalars.index("grad_scale")
    if isinstance(scale, Tensor):
        return gradients.scaled(torch.from_numpy(table), column, scale)
    if scale != 1:
        table[:, column] *= scale
    return table


def _batch(
    optimizer: FusedOptimizer,
    work: Work,
    spec: Elementwise,
    stored: Any,
    prepared: Any,
    rows: Sequence[Sequence[Tensor]],
) -> _Batch:
    params = [p for _, p in work[-1]]
    entries = [optimizer.state[p] for p in params]
    tensors = [t for p, e in zip(params, entries, strict=True) for t in (p, *stored(e))]
    return _Batch(
        work=work,
        scalars=spec.scalars,
        prepared=prepared,
        params=params,
        stored=stored,
        entry_lengths=[len(e) for e in entries],
        layouts=_Layouts(tensors),
        pointers=[t.data_ptr() for t in tensors],
        gradient_layouts=_Layouts([row[1] for row in rows]),
        counters=[ctypes.c_int64.from_address(e["step"].data_ptr()) for e in entries],
        size=sum(p.numel() for p in params),
    )


def _unchanged(optimizer: FusedOptimizer, b: _Batch) -> bool:
    _, group, rule, arith, _, live = b.work
    optimizer._check_precision(group)
    if optimizer._rule(group) is not rule:
        return False
    where, p = live[0]
    if optimizer._arithmetic(group, p, where) != arith:
        return False
    entries = list(map(optimizer.state.__getitem__, b.params))
    if list(map(len, entries)) != b.entry_lengths:
        return False
    b.tensors = [t for p, e in zip(b.params, entries, strict=True) for t in (p, *b.stored(e))]
    if not all(map(eq, map(Tensor.data_ptr, b.tensors), b.pointers)) or not b.layouts.fit(
        b.tensors
    ):
        return False
    gradients = [p.grad for p in b.params]
    if set(map(type, gradients)) != {Tensor}:
        return False
    b.gradients = gradients  # type: ignore[assignment]
    device = b.params[0].device
    return (
        all(g.layout is torch.strided and g.device == device for g in b.gradients)
        and not any(map(Tensor.is_neg, b.gradients))
        and b.gradient_layouts.fit(b.gradients)
    )


def _addresses(b: _Batch) -> list[int]:
    """Of each row's tensors in the kernel's order: parameter, gradient, states."""
    addresses = list(b.pointers)
    stride = len(addresses) // len(b.params)
    # The gradient's takes the place of the counter's.
    addresses[1::stride] = map(Tensor.data_ptr, b.gradients)
    return addresses
