"""A step in two parts: all that can fail before anything is changed, and then all changes at once.

First everything is made: states, scalars, tables, copies. Then each batch is launched and counted,
while signals wait. So an error or an interrupt finds the step not begun, or done. Between two
launches of one step lies only what the second itself can raise (a device out of memory): then the
parameters of the first have made the step, as their `step` says, and a step on the same gradients
takes the others alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from mcf.optim import expansions, gradients, interrupts, memory, rewritten
from mcf.optim.batch import Group, Work
from mcf.optim.memory import Use
from mcf.optim.metrics import StepMetrics
from mcf.optim.scalars import DeviceScalars, HostScalars, Scalars
from mcf.optim.update import states

if TYPE_CHECKING:
    from mcf.optim.step import FusedOptimizer

# Of each parameter that is a step ahead of others: the gradient of that step, and its version.
Ahead = dict[Tensor, tuple[Tensor, int]]


class Ready(Protocol):
    """A batch of a step before it is launched."""

    @property
    def params(self) -> Sequence[Tensor]:
        """Its parameters."""

    def commit(self, metrics: StepMetrics | None) -> None:
        """Launch and count."""


class General:
    """Parameters of any layout, type, device or executor."""

    def __init__(self, optimizer: FusedOptimizer, work: Work) -> None:
        """`work` was checked."""
        _, group, rule, arith, form, found = work
        self._optimizer, self._work = optimizer, work
        self.params: Sequence[Tensor] = [p for _, p in found]
        self._grads = 1 + form.paired
        self._names = tuple(states(rule, arith))
        self._entries: list[Group] = []
        self._rows: list[list[Tensor]] = []
        self._known = []
        for p in self.params:
            entry = optimizer._made(p)
            self._known.append(bool(entry))
            if not entry:
                entry = optimizer._new_state(group, rule, arith, p)
            # The kernel reads memory, where a lazily negated view has the other sign.
            grads = [g.resolve_neg() for g in gradients.components(optimizer, p)]
            self._rows.append(expansions.row(p, tuple(grads), [entry[n] for n in self._names]))
            self._entries.append(entry)

    def uses(self) -> Iterator[Use]:
        """Its tensors."""
        for (where, _), row in zip(self._work[-1], self._rows, strict=True):
            after = len(row) - len(self._names)
            for k, t in enumerate(row):
                words = f"state {self._names[k - after]!r} of {where}" if k >= after else where
                yield Use(words, t, not 0 < k <= self._grads)

    def prepare(self, read: set[int], scale: float | Tensor, live: bool | Tensor) -> None:
        """Make what the launch needs; gradients whose ids are in `read` are copied."""
        for row in self._rows:
            for k in range(1, 1 + self._grads):
                if id(row[k]) in read:
                    row[k] = row[k].clone()
        optimizer, work = self._optimizer, self._work
        self._scalars: Scalars
        if optimizer._counted_by_device(work, live):
            self._scalars = DeviceScalars(optimizer, work, self._entries, scale, live)
        else:
            self._scalars = HostScalars(optimizer, work, self._entries, scale)
        self._launch = optimizer._launch(work, self._rows, self._scalars)

    def repairs(self) -> list[tuple[str, list[rewritten.Repair]]]:
        """What has to be written beside weights that others wrote."""
        _, group, _, arith, _, found = self._work
        if not rewritten.beside(arith):
            return []
        seen = self._optimizer._seen
        return [
            rewritten.repairs(where, p, entry, arith, group["capturable"])
            for (where, p), entry, known in zip(found, self._entries, self._known, strict=True)
            if known and rewritten.perhaps(p, seen.get(id(p)))
        ]

    def commit(self, metrics: StepMetrics | None) -> None:
        """See `Ready`."""
        index, _, _, arith, _, _ = self._work
        sums = self._launch()
        self._scalars.finish()
        for p, entry, known in zip(self.params, self._entries, self._known, strict=True):
            if not known:
                # Beside what others keep there.
                self._optimizer.state[p].update(entry)
            expansions.stepped(p)
        if rewritten.beside(arith):
            self._optimizer._seen.update((id(p), rewritten.mark(p)) for p in self.params)
        if metrics is not None:
            metrics.add(index, sums, sum(p.numel() for p in self.params))


def general(
    optimizer: FusedOptimizer,
    work: Iterable[Work],
    scale: float | Tensor,
    live: bool | Tensor,
    others: Iterable[Use] = (),
) -> list[General]:
    """All that can fail of a step on `work`, beside other tensors of the same step.

    Raises:
        ValueError: for tensors that share memory, and for hyperparameters that are no numbers.
    """
    found = [General(optimizer, each) for each in work]
    if found:
        read = memory.check([*others, *(use for each in found for use in each.uses())])
        for each in found:
            each.prepare(read, scale, live)
    return found


def commit(
    optimizer: FusedOptimizer,
    ready: Sequence[Ready],
    metrics: StepMetrics | None,
    repairs: Sequence[tuple[str, list[rewritten.Repair]]],
    after: Callable[[], None] | None = None,
) -> None:
    """Do the step, and what comes `after` it, while signals wait."""
    done = 0
    try:
        with interrupts.deferred():
            rewritten.apply(repairs)
            for each in ready:
                each.commit(metrics)
                done += 1
            optimizer._metrics = metrics
            optimizer._ahead = {}
            if after is not None:
                after()
    except BaseException as error:
        optimizer._ahead |= ahead(ready[:done])
        if 0 < done < len(ready):
            _explain(error, ready, done)
        raise


def ahead(done: Iterable[Ready]) -> Ahead:
    """What says of parameters that they have made the step on their gradients."""
    params = (p for each in done for p in each.params)
    return {p: (p.grad, rewritten.version(p.grad)) for p in params if p.grad is not None}


def left(optimizer: FusedOptimizer, work: Iterable[Work]) -> list[Work]:
    """A step without those that have made it on the same gradients."""
    rest = []
    for *kind, found in work:
        mine = [(where, p) for where, p in found if not _is_ahead(optimizer._ahead, p)]
        if mine:
            rest.append((*kind, mine))
    return rest  # type: ignore[return-value]


def _is_ahead(known: Ahead, p: Tensor) -> bool:
    grad, version = known.get(p, (None, 0))
    return grad is not None and p.grad is grad and rewritten.version(grad) == version


def _explain(error: BaseException, ready: Sequence[Ready], done: int) -> None:
    """Say in a note (Python 3.11) which parameters have made the step."""
    add: Callable[[str], Any] | None = getattr(error, "add_note", None)
    if add is not None:
        made = sum(len(each.params) for each in ready[:done])
        rest = sum(len(each.params) for each in ready[done:])
        add(
            f"{made} parameters have made this step, as their state 'step' says, and {rest} have "
            "not; step() on the same gradients takes the others alone"
        )
