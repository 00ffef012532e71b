"""Buckets that are ready to launch, prepared before anything is changed."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import add, attrgetter, is_
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

from mcf.kernels import registry
from mcf.kernels.tables import as_tensor, table_of
from mcf.optim.parameters import expansions, randomness
from mcf.optim.parameters.randomness import Streams
from mcf.optim.rule.metrics import StepMetrics
from mcf.optim.sharding.processes import across
from mcf.optim.sharding.shards import is_sharded, local, same_place
from mcf.optim.step import rewritten, table
from mcf.optim.step.bucket import Bucket, Group, Named, Request, Row, counted_by_device, rows
from mcf.optim.step.kernel import states
from mcf.optim.step.launch import Direct, Launcher, launcher
from mcf.optim.step.opaque_operator import Cut
from mcf.optim.step.rewritten import Marks, Repair
from mcf.optim.step.shared_memory import Use
from mcf.optim.step.table import At, ByDevice, Table, by_host, scaled

# A guard: whether tensors still have the types, dtypes, shapes and strides that were checked.
Fit = Callable[..., bool]


def watched(tensors: Sequence[Tensor]) -> Fit:
    """Return a guard that compares objects with `tensors` in all that a kernel depends on.

    It compares class, dtype, device, layout, shape, strides and lazy negation, but not addresses,
    and keeps no reference to the tensors. It is also False if an object is no tensor, or if a
    property differs that changes no step, such as `requires_grad`.
    """
    try:
        # Tensor guards of torch.compile: one call for thousands of tensors. They are not public.
        from torch._C._dynamo.guards import TensorGuards
    except ImportError:
        # Without them every step is checked in full.
        return lambda *found: False
    sizes = [list(t.shape) for t in tensors]
    strides = [list(t.stride()) for t in tensors]
    guards: Any = TensorGuards
    check: Fit = guards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
    return check


class Cells:
    """Step counts and other scalars of parameters in their states' memory; holds no tensor."""

    def __init__(
        self, numbers: Sequence[Sequence[Tensor]], shapes: Sequence[tuple[int, ...]]
    ) -> None:
        """Take `numbers`: the `step` of all parameters, then each of the rule's numbers."""
        self._shapes = shapes
        self._places = [list(map(Tensor.data_ptr, column)) for column in numbers]
        kinds = [ctypes.c_int64, *[ctypes.c_double] * (len(numbers) - 1)]
        self._cells: list[list[Any]] = [
            [kind.from_address(a) for a in column]
            for kind, column in zip(kinds, self._places, strict=True)
        ]

    def hold(self, numbers: Sequence[Sequence[Tensor]]) -> bool:
        """Return whether these tensors still have that memory."""
        return [list(map(Tensor.data_ptr, column)) for column in numbers] == self._places

    def read(self) -> list[At]:
        """Return the counts and numbers of each parameter."""
        columns = [[cell.value for cell in cells] for cells in self._cells]
        return list(zip(*columns, self._shapes, strict=True))

    def write(self, places: Sequence[At]) -> None:
        """Write the counts and numbers of each parameter."""
        for k, cells in enumerate(self._cells):
            for at, cell in zip(places, cells, strict=True):
                cell.value = at[k]


_PLAIN = {Tensor, Parameter}

_grad, _version = attrgetter("grad"), attrgetter("_version")
_local, _spec = attrgetter("_local_tensor"), attrgetter("_spec")


def fits(row: Row, rule_numbers: Sequence[str], random: bool) -> bool:
    """Return whether a kernel can be prepared for a row: plain dense tensors, standard scalars."""
    p, tensors = row.p, row.tensors
    own = type(p) in _PLAIN or is_sharded(p)
    plain = type(tensors[0]) in _PLAIN and all(type(t) is Tensor for t in tensors[1:])
    if not own or not plain or row.negated or not registry.same_layout(tensors):
        return False
    if random and not Streams.fit(p):
        return False
    # Without a version counter, a rewritten weight can be detected only by comparing elements.
    if not rewritten.is_counted(p):
        return False
    numbers = [row.entry[name] for name in rule_numbers]
    dtypes = [torch.int64, *[torch.float64] * (len(numbers) - 1)]
    return all(
        type(n) is Tensor and n.device.type == "cpu" and n.numel() == 1 and n.dtype is dtype
        for n, dtype in zip(numbers, dtypes, strict=True)
    )


class DirectBucket:
    """A bucket all of whose rows `fit`, and the guards under which its step can be repeated.

    It belongs to one step until `commit`; after `watch` the next step may repeat it if it `holds`.
    """

    def __init__(
        self,
        bucket: Bucket,
        request: Request,
        rows: Sequence[Row],
        launcher: Launcher,
        launch: Direct,
        cut: Cut | None,
    ) -> None:
        """Prepare without changing anything; new states are in `rows` alone.

        `launch` is for the stretches of all rows if `cut` splits them.
        """
        rule = bucket.rule
        self.bucket = bucket
        self._launcher, self._launch = launcher, launch
        self.params = [p for _, p in bucket.named]
        self.size = sum(p.numel() for p in self.params)
        self._stored = tuple(states(rule, bucket.arithmetic))
        self._numbers = ("step", *(name for name, _ in rule.numbers))
        self._paired = bucket.form.paired
        self._grads = range(1, 2 + self._paired)
        self._new = [row for row in rows if not row.known]
        # All of a bucket's parameters are DTensors, or none.
        self._sharded = is_sharded(self.params[0])
        self._specs: list[Any] = []
        self._cut = cut
        self._streams = None
        if launcher.random:
            rows_of = () if cut is None else (cut.owners, cut.first)
            self._streams = Streams(request.counted, self.params, *rows_of)
        self._beside = rewritten.beside(bucket.arithmetic)
        # Tensors of this step and their addresses, one list over all parameters per operand.
        self._tensors = [list(column) for column in zip(*(r.tensors for r in rows), strict=True)]
        self._addresses = _addresses(self._tensors)
        # Bytes per element of the parameter in each tensor.
        self._sizes: list[float] = [column[0].element_size() for column in self._tensors]
        formats = states(rule, bucket.arithmetic).values()
        self._sizes[2 + self._paired :] = [fmt.itemsize for fmt in formats]
        numbers = [[row.entry[name] for row in rows] for name in self._numbers]
        shapes = [tuple(p.shape) if rule.shaped else () for p in self.params]
        self._cells = Cells(numbers, shapes)
        # Weights that other code may have written, if state is stored next to them.
        known = [(row.where, row.p) for row in rows if row.known]
        self._suspects: list[Named] | None = known if self._beside else []
        # While watched: versions and addresses as the last step left them.
        self._fit: Callable[..., bool] | None = None
        self._lengths: list[int] = []
        self._versions: list[int] = []
        self._places = array("Q")
        self._now: list[int] = []

    # -- guards of a repeated step ------------------------------------------------------------

    def watch(self, request: Request) -> None:
        """Record, after a step, what must be unchanged in the next."""
        entries = [request.state[p] for p in self.params]
        self._new, self._lengths = [], list(map(len, entries))
        if self._sharded:
            self._specs = [*map(_spec, self.params), *(p.grad._spec for p in self.params)]  # type: ignore[union-attr]
        tensors, numbers = self._gather(request, entries)
        self._fit = watched(list(chain(*tensors, *numbers)))
        if self._beside:
            self._versions, self._places = self._counts(), self._addresses[0]

    def holds(self, request: Request) -> bool:
        """Return whether the last step can be repeated, after `watch`; keep what the step needs.

        It may raise the errors of the full checks, or errors for missing or non-tensor states.
        """
        if not self.bucket.hyper.ask_the_same():
            return False
        low = request.lows
        if low and not self._paired and any(p in low for p in self.params):
            return False
        if self._streams is not None and not self._streams.hold(request.counted):
            return False
        if self._sharded and not self._placed():
            return False
        entries = list(map(request.state.__getitem__, self.params))
        if list(map(len, entries)) != self._lengths:
            return False
        tensors, numbers = self._gather(request, entries)
        assert self._fit is not None
        if not self._fit(*chain(*tensors, *numbers)) or not self._cells.hold(numbers):
            return False
        self._tensors, self._addresses = tensors, _addresses(tensors)
        if self._beside:
            self._suspect()
        return True

    def _gather(
        self, request: Request, entries: Sequence[Group]
    ) -> tuple[list[list[Any]], list[list[Any]]]:
        """Return parameters, gradients, states and scalars, as one list over parameters each."""
        own: list[list[Any]] = [self.params, list(map(_grad, self.params))]
        if self._paired:
            own.append(list(map(request.lows.get, self.params)))
        own += [[entry[name] for entry in entries] for name in self._stored]
        numbers = [[entry[name] for entry in entries] for name in self._numbers]
        if self._sharded:
            # AttributeError if a tensor is not a DTensor any more.
            own = [list(map(_local, column)) for column in own]
            for k in self._grads:
                if any(type(t) is not Tensor for t in own[k]):
                    own[k] = [local(p.grad) for p in self.params if p.grad is not None]
        return own, numbers

    def _placed(self) -> bool:
        """Return whether parameters and gradients are distributed as before."""
        now = [*map(_spec, self.params), *(p.grad._spec for p in self.params)]  # type: ignore[union-attr]
        if all(map(is_, now, self._specs)):
            return True
        if not all(same_place(p, p.grad) for p in self.params if p.grad is not None):
            return False
        same = all(map(is_, now[: len(self.params)], self._specs))
        self._specs = now
        return same

    def _suspect(self) -> None:
        """Find the weights that other code wrote since the last step."""
        now, places = self._counts(), self._addresses[0]
        self._suspects, self._now = [], now
        if now != self._versions or places != self._places:
            before = zip(self._versions, self._places, strict=True)
            marks = zip(self.bucket.named, now, places, before, strict=True)
            self._suspects = [named for named, v, a, old in marks if (v, a) != old]

    def _counts(self) -> list[int]:
        """Return `rewritten.version` of all parameters."""
        found = list(map(_version, self.params))
        if self._sharded:
            found = list(map(add, found, map(_version, map(_local, self.params))))
        return found

    def tell(self, marks: Marks) -> None:
        """Record in `marks` how the last step left the weights."""
        if self._beside and self._fit is not None:
            found = zip(self._versions, self._places, strict=True)
            marks.left.update(zip(map(id, self.params), found, strict=True))

    def release(self) -> None:
        """Release the tensors: the next step may have other ones."""
        self._tensors, self._addresses = [], []

    # -- memory ------------------------------------------------------------------------------

    def uses(self) -> Iterator[Use]:
        """Yield the tensors of the step."""
        names = ("", *("" for _ in self._grads), *self._stored)
        for k, (name, column) in enumerate(zip(names, self._tensors, strict=True)):
            for (where, _), t in zip(self.bucket.named, column, strict=True):
                yield Use(f"state {name!r} of {where}" if name else where, t, k not in self._grads)

    def stretches(self) -> list[list[tuple[int, int]]]:
        """Return addresses and bytes of the written tensors."""
        return [[(t.data_ptr(), t.nbytes) for t in column] for column in self._own(self._tensors)]

    def read_bytes(self) -> list[int]:
        """Return the sizes of gradients in bytes."""
        return [t.nbytes for k in self._grads for t in self._tensors[k]]

    def written(self) -> list[array[int]]:
        """Return the addresses of the written tensors."""
        return self._own(self._addresses)

    def read(self) -> list[array[int]]:
        """Return the addresses of gradients."""
        return self._addresses[1 : 2 + self._paired]

    def _own(self, columns: list[Any]) -> list[Any]:
        """Return the columns of parameters and states, which are written."""
        return [columns[0], *columns[2 + self._paired :]]

    # -- the step ----------------------------------------------------------------------------

    def prepare(self, scale: float | Tensor, read: set[int]) -> None:
        """Do all that might raise; copy the gradients whose ids are in `read`."""
        if read:
            for k in self._grads:
                column = self._tensors[k]
                self._tensors[k] = [t.clone() if id(t) in read else t for t in column]
            self._addresses = _addresses(self._tensors)
        self._before = self._cells.read()
        names = self._launcher.names
        scalars, self._after = table.by_host(self.bucket, names, self._before)
        if self._streams is not None:
            seed = self.bucket.hyper.options["seed"]
            drawn = self._streams.scalars(seed, [at[0] + 1 for at in self._before])
            if self._cut is not None:
                scalars = scalars[self._cut.owners]
            scalars = np.concatenate((scalars, drawn), axis=1)
        self._table = table.scaled(torch.from_numpy(scalars), names, scale)
        self._rows = self._addresses
        if self._cut is not None:
            self._rows = list(map(self._cut.addresses, self._addresses, self._sizes))

    def repairs(self, request: Request, marks: Marks) -> list[Repair]:
        """Return the repairs of the state next to weights that other code wrote."""
        if not self._suspects:
            return []
        found = self._suspects
        if self._fit is None:
            found = [(where, p) for where, p in found if marks.perhaps(p)]
        return rewritten.repairs_of(self.bucket, found, request.state)

    def commit(self, request: Request, marks: Marks, metrics: StepMetrics | None) -> None:
        """Launch the step and count it."""
        try:
            # Counting comes first: the launch evicts the tensors' metadata from the CPU's caches.
            self._cells.write(self._after)
            written = [*self._own(self._tensors), *([self.params] if self._sharded else ())]
            torch.autograd.graph.increment_version(list(chain(*written)))
            sums = self._launch.run(self._rows, self._table)
        except BaseException:
            # For example, the device has no memory for the sums.
            self._cells.write(self._before)
            raise
        for row in self._new:
            # Keep entries that other software has there.
            request.state[row.p].update(row.entry)
        if self._fit is not None and self._beside:
            # For a DTensor, the local tensor's version rises as well.
            more = 1 + self._sharded
            self._versions, self._places = [v + more for v in self._now], self._addresses[0]
        elif self._beside:
            marks.leave(self.params)
        if metrics is not None:
            metrics.add(self.bucket.index, as_tensor(sums), self.size, across(self.params[0]))


def _addresses(columns: Sequence[Sequence[Tensor]]) -> list[array[int]]:
    return [array("Q", list(map(Tensor.data_ptr, column))) for column in columns]


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

    def repairs(self, request: Request, marks: Marks) -> list[Repair]:
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
