"""The tables of scalars that a step's kernels read, made by the host or on a device."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mcf.kernels import streams
from mcf.kernels.elementwise import Elementwise
from mcf.kernels.tables import table_of, to_device
from mcf.optim import coefficients, gradients, randomness
from mcf.optim.base import Progress
from mcf.optim.batch import Work
from mcf.optim.update import Rule, given_scalars

if TYPE_CHECKING:
    from mcf.optim.step import FusedOptimizer


class Scalars:
    """The scalars of one batch of parameters, which each of its kernels takes some of."""

    # One number on the parameters' device that is 0 for a step to be skipped, or None.
    live: Tensor | None = None

    def table(self, spec: Elementwise) -> Tensor:
        """A kernel's scalars, float64, one line for each parameter."""
        raise NotImplementedError

    def first(self, spec: Elementwise) -> list[int]:
        """The index of each parameter's first element, where it is not in the table."""
        return []

    def finish(self) -> None:
        """After the kernels: count the step, and keep the rule's numbers."""


@dataclasses.dataclass
class HostScalars(Scalars):
    """Of counts that the host knows.

    Args:
        optimizer: the optimizer.
        work: the batch.
        entries: the states of its parameters, before this step.
        scale: what multiplies every gradient.
    """

    optimizer: FusedOptimizer
    work: Work
    entries: Sequence[dict[str, Any]]
    scale: float | Tensor

    def __post_init__(self) -> None:
        """The number of each parameter's step, and its scalars by name."""
        _, group, rule, arith, _, live = self.work
        known: dict[Progress, dict[str, float]] = {}
        places = [progress(rule, p, e) for (_, p), e in zip(live, self.entries, strict=True)]
        for now in places:
            if now not in known:
                known[now] = self.optimizer._scalars(group, arith, now)
        self._counts = [now.step for now in places]
        self._columns = [known[now] for now in places]

    def table(self, spec: Elementwise) -> Tensor:
        """See `Scalars`."""
        _, group, _, _, _, live = self.work
        table = [[column[name] for name in given_scalars(spec)] for column in self._columns]
        if spec.random:
            known = randomness.numbers(self.optimizer._counted())
            params = [p for _, p in live]
            keys = randomness.columns(group["seed"], known, params, self._counts)
            table = [row + stream for row, stream in zip(table, keys, strict=True)]
        scalars = table_of(table).reshape(len(table), -1)
        if "grad_scale" in spec.scalars:
            column = spec.scalars.index("grad_scale")
            scalars = gradients.scaled(scalars, column, self.scale)
        return scalars

    def finish(self) -> None:
        """See `Scalars`; the step is counted."""
        _, _, rule, *_ = self.work
        for entry, count, column in zip(self.entries, self._counts, self._columns, strict=True):
            entry["step"].fill_(count)
            for name, _ in rule.numbers:
                entry[name].fill_(column[f"new_{name}"])


def progress(rule: Rule, p: Tensor, state: Mapping[str, Any]) -> Progress:
    """The step after that which a state is at."""
    numbers = tuple(float(state[name]) for name, _ in rule.numbers)
    return Progress(int(state["step"]) + 1, numbers, tuple(p.shape) if rule.shaped else ())


class DeviceScalars(Scalars):
    """Of counts that a device has; nothing is read from it."""

    def __init__(
        self,
        optimizer: FusedOptimizer,
        work: Work,
        entries: Sequence[dict[str, Any]],
        scale: float | Tensor,
        live: bool | Tensor,
    ) -> None:
        """See `HostScalars`; `live` says whether the step is taken at all."""
        _, group, rule, arith, _, found = work
        self._optimizer, self._work = optimizer, work
        self._params = [p for _, p in found]
        self._entries = entries
        device = self._params[0].device
        one: int | Tensor = 1
        if isinstance(live, Tensor):
            one = self.live = live.to(device, torch.int64).reshape(())
        self._counts = _gathered(self._entries, "step", torch.int64, device) + one
        before = {n: _gathered(self._entries, n, torch.float64, device) for n, _ in rule.numbers}
        given = optimizer._all_given(group, arith, reader(device))
        known = _on_device(given, device)
        if isinstance(scale, Tensor) or scale != 1:
            known["grad_scale"] = known["grad_scale"] * _tensor(scale, device)
        rows = [optimizer._of_shape(group, tuple(p.shape)) for p in self._params]
        for name in rows[0]:
            known[name] = _tensor([row[name] for row in rows], device)
        counts = self._counts.clamp(max=coefficients.MOST).double()
        made = coefficients.on_device(rule.computed(arith), {**known, **before}, counts)
        self._columns = {**known, **made}
        self._after = {
            n: made[f"new_{n}"]
            if self.live is None
            else torch.where(self.live != 0, made[f"new_{n}"], before[n])
            for n, _ in rule.numbers
        }

    def table(self, spec: Elementwise) -> Tensor:
        """See `Scalars`."""
        shape = self._counts.shape
        columns = [self._columns[name].expand(shape) for name in given_scalars(spec)]
        if spec.random:
            _, group, *_ = self._work
            known = randomness.numbers(self._optimizer._counted())
            mine = table_of([known[p] for p in self._params], torch.int64)
            here = to_device(mine, self._counts.device)
            columns.append(streams.key(group["seed"], self._counts, here).double())
            # The index of the first element is given apart.
            columns.append(torch.zeros_like(columns[-1]))
        return torch.stack(columns, 1)

    def first(self, spec: Elementwise) -> list[int]:
        """See `Scalars`."""
        return [randomness.index_offset(p) for p in self._params] if spec.random else []

    def finish(self) -> None:
        """See `Scalars`."""
        for name, after in (("step", self._counts), *self._after.items()):
            for entry in self._entries:
                if entry[name].device != after.device:
                    # Counted by the host until now.
                    entry[name] = torch.empty_like(entry[name], device=after.device)
            torch._foreach_copy_([e[name] for e in self._entries], list(after.unbind()))


def reader(device: torch.device) -> Any:
    """Takes hyperparameters as they are where a device has them; else as numbers."""

    def read(value: Any) -> Any:
        there = isinstance(value, Tensor) and value.device.type == device.type
        return value if there else float(value)

    return read


def _on_device(known: dict[str, Any], device: torch.device) -> dict[str, Tensor]:
    """Numbers, brought together, and tensors of one element, as float64 on a device."""
    numbers = {name: x for name, x in known.items() if not isinstance(x, Tensor)}
    there = _tensor(list(numbers.values()), device)
    found = dict(zip(numbers, there.unbind(), strict=True))
    rest = {name: _tensor(x, device) for name, x in known.items() if name not in found}
    return {**found, **rest}


def _tensor(x: Any, device: torch.device) -> Tensor:
    if isinstance(x, Tensor):
        return x.detach().reshape(()).to(device, torch.float64)
    return to_device(table_of(x), device)


def _gathered(
    entries: Sequence[dict[str, Any]], name: str, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """One number of each state, on the device."""
    return torch.stack([to_device(e[name].reshape(1), device).reshape(()) for e in entries])
