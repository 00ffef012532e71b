"""Buckets that are ready to launch, prepared before anything is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from mcf.kernels.tables import table_of
from mcf.optim.parameters import expansions, randomness
from mcf.optim.sharding.across import across
from mcf.optim.sharding.shards import is_sharded
from mcf.optim.step import rewritten
from mcf.optim.step.bucket import Bucket, Request, Row, counted_by_device, rows
from mcf.optim.step.direct import DirectBucket, fits
from mcf.optim.step.kernel import states
from mcf.optim.step.launch import Launcher, launcher
from mcf.optim.step.metrics import StepMetrics
from mcf.optim.step.rewritten import Marks, Repair
from mcf.optim.step.shared_memory import Use
from mcf.optim.step.stretched import Cut
from mcf.optim.step.table import At, ByDevice, Table, by_host, scaled


class OpaqueBucket:
    """A bucket with parameters of any layout, type, device or executor."""

    def __init__(
        self,
        bucket: Bucket,
        request: Request,
        rows: Sequence[Row],
        launcher: Launcher,
        live: bool | Tensor | None,
    ) -> None:
        """Prepare without changing anything; new states are in `rows` alone.

        `live` says whether the step is taken if a device counts it; it is None if the CPU counts.
        """
        self.bucket, self._request = bucket, request
        self._rows, self._launcher, self._live = rows, launcher, live
        self.params: Sequence[Tensor] = [row.p for row in rows]
        self._grads = range(1, 2 + bucket.form.paired)
        self._names = tuple(states(bucket.rule, bucket.arithmetic))
        self._launch: Callable[[], Tensor]
        self._finish: Callable[[], None]

    def uses(self) -> Iterator[Use]:
        """Yield the tensors that this bucket reads and writes."""
        for row in self._rows:
            after = len(row.tensors) - len(self._names)
            for k, t in enumerate(row.tensors):
                name = f"state {self._names[k - after]!r} of " if k >= after else ""
                yield Use(f"{name}{row.where}", t, k not in self._grads)

    def prepare(self, scale: float | Tensor, read: set[int]) -> None:
        """Build the launch's arguments; copy the gradients whose ids are in `read`."""
        for row in self._rows:
            for k in self._grads:
                if id(row.tensors[k]) in read:
                    row.tensors[k] = row.tensors[k].clone()
        kernels = self._launcher
        if self._live is not None:
            entries = [row.entry for row in self._rows]
            device = ByDevice(self.bucket, self._request, entries, scale, self._live)
            made, self._finish = device.table(kernels.names, kernels.random), device.finish
        else:
            made = self._by_host(scale)
        self._launch = kernels.opaque([row.tensors for row in self._rows], made)

    def _by_host(self, scale: float | Tensor) -> Table:
        bucket, kernels = self.bucket, self._launcher
        numbers = [name for name, _ in bucket.rule.numbers]
        shaped = bucket.rule.shaped
        before: list[At] = [
            (
                int(row.entry["step"]),
                *(float(row.entry[name]) for name in numbers),
                tuple(row.p.shape) if shaped else (),
            )
            for row in self._rows
        ]
        scalars, after = by_host(bucket, kernels.names, before)

        def finish() -> None:
            for row, at in zip(self._rows, after, strict=True):
                for name, x in zip(("step", *numbers), at[:-1], strict=True):
                    row.entry[name].fill_(x)

        self._finish = finish
        found = torch.from_numpy(scalars)
        if kernels.random:
            seed, steps = bucket.hyper.options["seed"], [at[0] + 1 for at in before]
            keys = randomness.columns(seed, self._request.streams, self.params, steps)
            found = torch.cat([found, table_of(keys)], 1)
        return Table(scaled(found, kernels.names, scale), params=self.params)

    def repairs(self, request: Request, marks: Marks) -> list[tuple[str, list[Repair]]]:
        """Return the repairs of the state next to weights that other code wrote."""
        if not rewritten.beside(self.bucket.arithmetic):
            return []
        known = [(row.where, row.p) for row in self._rows if row.known and marks.perhaps(row.p)]
        return rewritten.repairs_of(self.bucket, known, request.state)

    def commit(self, request: Request, marks: Marks, metrics: StepMetrics | None) -> None:
        """Launch the step and count it."""
        sums = self._launch()
        self._finish()
        for row in self._rows:
            if not row.known:
                # Keep entries that other software has there.
                request.state[row.p].update(row.entry)
            expansions.stepped(row.p)
        if rewritten.beside(self.bucket.arithmetic):
            marks.leave(self.params)
        if metrics is not None:
            size = sum(p.numel() for p in self.params)
            metrics.add(self.bucket.index, sums, size, across(self.params[0]))


# A bucket of a step before it is launched; both classes have the same methods.
Prepared = DirectBucket | OpaqueBucket


def prepared(
    bucket: Bucket, request: Request, live: bool | Tensor, direct: bool = True
) -> list[Prepared]:
    """Return a prepared bucket, or two if kernels can be prepared for some of its rows only.

    Args:
        bucket: the checked bucket.
        request: the step.
        live: whether the step is taken at all.
        direct: whether kernels may be called other than as opaque operators.
    """
    found = rows(bucket, request)
    kernels = launcher(bucket, request.terms is not None)
    device = counted_by_device(bucket, request, live)
    # Modes of PyTorch's dispatcher observe operators only.
    apart = kernels.whole and is_sharded(found[0].p)
    if device or not direct or apart or torch._C._len_torch_dispatch_stack():
        return [OpaqueBucket(bucket, request, found, kernels, live if device else None)]
    numbers = ("step", *(name for name, _ in bucket.rule.numbers))
    mine = [row for row in found if fits(row, numbers, kernels.random)]
    cut = Cut.of([row.p for row in mine]) if kernels.random else None
    tensors = [row.tensors for row in mine]
    if cut is not None:
        tensors = cut.rows(tensors)
    launch = kernels.direct(tensors) if tensors else None
    if launch is None:
        return [OpaqueBucket(bucket, request, found, kernels, None)]
    some = bucket.of([(row.where, row.p) for row in mine])
    made: list[Prepared] = [DirectBucket(some, request, mine, kernels, launch, cut)]
    ids = {id(row) for row in mine}
    rest = [row for row in found if id(row) not in ids]
    if rest:
        others = bucket.of([(row.where, row.p) for row in rest])
        made.append(OpaqueBucket(others, request, rest, kernels, None))
    return made
