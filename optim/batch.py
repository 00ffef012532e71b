"""The parameters of a group that one launch steps: what a plan keeps of them between steps."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

from mcf.kernels import registry
from mcf.kernels.elementwise import Elementwise
from mcf.optim import counters, gradients, layouts, rewritten
from mcf.optim.base import Progress
from mcf.optim.memory import Use
from mcf.optim.randomness import Streams
from mcf.optim.strategies import Arithmetic
from mcf.optim.update import GradientForm, Rule, given_scalars, states

if TYPE_CHECKING:
    from mcf.optim.step import FusedOptimizer

Group = dict[str, Any]
# A parameter, after the words that name it in messages.
Named = tuple[str, Tensor]
# Group index, group, rule, arithmetic, the form of gradients, and the parameters.
Work = tuple[int, Group, Rule, Arithmetic, GradientForm, list[Named]]

_PLAIN = {Tensor, Parameter}

_grad, _version = attrgetter("grad"), attrgetter("_version")


class Launch(Protocol):
    """The kernels of a batch, ready for tensors of its sizes and layouts."""

    # The columns of a step's table that the optimizer fills; those of random numbers follow.
    scalars: tuple[str, ...]
    random: bool

    def fits(self, group: Group) -> bool:
        """Whether the hyperparameters still ask for these kernels."""

    def run(self, params: Sequence[Tensor], addresses: Sequence[Sequence[int]], table: Any) -> Any:
        """Step; the metrics' sums [rows, terms], or None.

        Args:
            params: the parameters.
            addresses: of the parameters, of their gradients, and of each of their states.
            table: scalars, a float64 NumPy array or tensor [rows, scalars].
        """


class Fused:
    """One kernel that does it all."""

    def __init__(self, spec: Elementwise, prepared: Any) -> None:
        """See `of`."""
        self.scalars = given_scalars(spec)
        self.random = spec.random
        self._prepared = prepared

    @classmethod
    def of(cls, spec: Elementwise, rows: Sequence[Sequence[Tensor]]) -> Fused | None:
        """A kernel for rows of these sizes and layouts, where the executor can prepare it."""
        prepared = registry.prepare(spec, rows)
        return None if prepared is None else cls(spec, prepared)

    def fits(self, group: Group) -> bool:
        """As the kernel follows from rule, arithmetic and gradients."""
        return True

    def run(self, params: Sequence[Tensor], addresses: Sequence[Sequence[int]], table: Any) -> Any:
        """See `Launch`."""
        return self._prepared.run(addresses, table)


class Batch:
    """Parameters, their launch, and what must still be true when it is repeated."""

    def __init__(self, optimizer: FusedOptimizer, work: Work, launch: Launch) -> None:
        """Made after a step on `work`, all rows of which are `regular`."""
        _, _, rule, arith, form, found = work
        self.work = work
        self._launch = launch
        self.params = [p for _, p in found]
        self.size = sum(p.numel() for p in self.params)
        self._paired = form.paired
        self._stored = tuple(states(rule, arith))
        self._numbers = ("step", *(name for name, _ in rule.numbers))
        entries = [optimizer.state[p] for p in self.params]
        self._lengths = list(map(len, entries))
        tensors, numbers = self._gather(optimizer, entries)
        self._fit = layouts.watched(list(chain(*tensors, *numbers)))
        shapes = [tuple(p.shape) if rule.shaped else () for p in self.params]
        self._counters = counters.Counters(numbers, shapes)
        self._streams = Streams(optimizer._counted(), self.params) if launch.random else None
        # Weights as the last step left them, where something is stored beside them.
        self._beside = rewritten.beside(arith)
        self._versions = list(map(_version, self.params)) if self._beside else []
        self._places = array("Q", map(Tensor.data_ptr, self.params))
        self._now = self._versions
        self._changed: list[Named] = []
        own = self._own(tensors)
        # What is written, and the sizes of gradients in bytes.
        self.stretches = [[(t.data_ptr(), t.nbytes) for t in column] for column in own]
        self.read_bytes = [t.nbytes for column in tensors[1 : 2 + self._paired] for t in column]
        # From `holds` to `run`: tensors and their addresses.
        self._tensors: list[list[Tensor]] = []
        self._addresses: list[array[int]] = []

    def _gather(
        self, optimizer: FusedOptimizer, entries: Sequence[Group]
    ) -> tuple[list[list[Any]], list[list[Any]]]:
        """Parameters, gradients and states, and numbers, each a list of those of all parameters."""
        own: list[list[Any]] = [self.params, list(map(_grad, self.params))]
        if self._paired:
            own.append(list(map(optimizer._grad_low.get, self.params)))
        states, numbers = (
            [[entry[name] for entry in entries] for name in names]
            for names in (self._stored, self._numbers)
        )
        return own + states, numbers

    def holds(self, optimizer: FusedOptimizer) -> bool:
        """Whether a step now is as the one before; keeps what `run` needs.

        May raise what the full checks raise, or for states that are not there or no tensors.
        """
        _, group, rule, arith, _, live = self.work
        optimizer._check_precision(group)
        where, p = live[0]
        if optimizer._rule(group) is not rule or optimizer._arithmetic(group, p, where) != arith:
            return False
        if not self._launch.fits(group):
            return False
        low = optimizer._grad_low
        if low and not self._paired and any(p in low for p in self.params):
            return False
        if self._streams is not None and not self._streams.hold(optimizer._counted()):
            return False
        entries = list(map(optimizer.state.__getitem__, self.params))
        if list(map(len, entries)) != self._lengths:
            return False
        tensors, numbers = self._gather(optimizer, entries)
        if not self._fit(chain(*tensors, *numbers)) or not self._counters.hold(numbers):
            return False
        self._tensors = tensors
        self._addresses = [array("Q", list(map(Tensor.data_ptr, column))) for column in tensors]
        if self._beside:
            self._compare(live)
        return True

    def _compare(self, live: Sequence[Named]) -> None:
        """Find the weights that others wrote."""
        now, places = list(map(_version, self.params)), self._addresses[0]
        self._changed = []
        if now != self._versions or places != self._places:
            before = zip(self._versions, self._places, strict=True)
            marks = zip(live, now, places, before, strict=True)
            self._changed = [named for named, v, a, old in marks if (v, a) != old]
        self._now = now

    def uses(self) -> Iterator[Use]:
        """The tensors that are written, after `holds`."""
        for name, column in zip(("", *self._stored), self._own(self._tensors), strict=True):
            for (where, _), t in zip(self.work[-1], column, strict=True):
                yield Use(f"state {name!r} of {where}" if name else where, t, True)

    def _own(self, columns: list[Any]) -> list[Any]:
        """Of parameters, gradients and states what is written."""
        return [columns[0], *columns[2 + self._paired :]]

    def written(self) -> list[array[int]]:
        """The addresses of what is written, after `holds`."""
        return self._own(self._addresses)

    def read(self) -> list[array[int]]:
        """The addresses of gradients, after `holds`."""
        return self._addresses[1 : 2 + self._paired]

    def prepare(self, optimizer: FusedOptimizer, scale: float | Tensor) -> Callable[[], Any]:
        """Do all that might raise, after `holds`; returns the step, which returns sums."""
        _, group, rule, arith, _, _ = self.work
        before = self._counters.read()
        lines, after = {}, {}
        for at in set(before):
            columns = optimizer._scalars(group, arith, Progress(at[0] + 1, at[1:-1], at[-1]))
            lines[at] = [columns[name] for name in self._launch.scalars]
            after[at] = tuple(columns[f"new_{name}"] for name, _ in rule.numbers)
        if len(lines) == 1:
            table = np.array(list(lines.values())).repeat(len(before), 0)
        else:
            table = np.array([lines[at] for at in before])
        if self._streams is not None:
            drawn = self._streams.scalars(group["seed"], [at[0] + 1 for at in before])
            table = np.concatenate((table, drawn), axis=1)
        column = self._launch.scalars.index("grad_scale")
        scaled = gradients.scaled(torch.from_numpy(table), column, scale)

        def run() -> Any:
            try:
                # Before the launch, which drives the tensors' descriptions out of the caches.
                self._counters.write(before, after.__getitem__)
                torch.autograd.graph.increment_version(list(chain(*self._own(self._tensors))))
                sums = self._launch.run(self.params, self._addresses, scaled)
            except BaseException:
                # A device without memory for the sums, say.
                self._counters.restore(before)
                raise
            if self._beside:
                self._versions, self._places = [v + 1 for v in self._now], self._addresses[0]
            return sums

        return run

    def repairs(self, optimizer: FusedOptimizer) -> list[tuple[str, list[rewritten.Repair]]]:
        """What has to be written beside weights that others wrote, after `holds`."""
        _, group, _, arith, _, _ = self.work
        return [
            rewritten.repairs(where, p, optimizer.state[p], arith, group["capturable"])
            for where, p in self._changed
        ]

    def tell(self, optimizer: FusedOptimizer) -> None:
        """Say which weights the last step left."""
        if self._beside:
            marks = zip(self._versions, self._places, strict=True)
            optimizer._seen.update(zip(map(id, self.params), marks, strict=True))

    def release(self) -> None:
        """Let go of what `holds` kept."""
        self._tensors, self._addresses = [], []


def regular(optimizer: FusedOptimizer, work: Work, p: Tensor, random: bool) -> list[Tensor] | None:
    """A parameter, its gradient and its states, where a plan can step them."""
    _, _, rule, arith, _, _ = work
    entry = optimizer.state[p]
    row = [p, *gradients.components(optimizer, p), *(entry[n] for n in states(rule, arith))]
    plain = type(p) in _PLAIN and all(type(t) is Tensor for t in row[1:])
    if not plain or any(g.is_neg() for g in row) or not registry.same_layout(row):
        return None
    if random and not Streams.fit(p):
        return None
    # Without a version counter: whether others wrote the weight is asked of its elements.
    if p.is_inference():
        return None
    numbers = [entry["step"], *(entry[name] for name, _ in rule.numbers)]
    return row if counters.regular(numbers) else None
