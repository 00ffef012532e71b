"""A Muon step (Jordan et al. 2024) in two halves, before and after the orthogonalisation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.kernels import registry, streams
from mcf.kernels.tables import as_tensor
from mcf.optim.rules import muon_formulas
from mcf.optim.sharding.lines import Replicas
from mcf.optim.sharding.owners import Owners
from mcf.optim.sharding.shards import is_sharded
from mcf.optim.step import stretched
from mcf.optim.step.bucket import Bucket
from mcf.optim.step.kernel import GradientForm, given_scalars, kernel
from mcf.optim.step.table import Table


def torchs(name: str) -> Callable[..., Any]:
    """A function of torch's Muon.

    Raises:
        ImportError: where torch has none (before 2.9).
    """
    try:
        # The function is not public; torch has no public one.
        from torch.optim import _muon
    except ImportError as error:
        raise ImportError(f"Muon needs torch.optim.Muon, of torch 2.9: {error}") from error
    found: Callable[..., Any] = getattr(_muon, name)
    return found


def parts(sizes: Sequence[int]) -> Iterator[slice]:
    """Stretches of a list of sizes, none of which has a larger sum than the largest."""
    limit, start, total = max(sizes), 0, 0
    for k, size in enumerate(sizes):
        if total + size > limit:
            yield slice(start, k)
            start, total = k, 0
        total += size
    yield slice(start, len(sizes))


# Some of the parameters, and a matrix for each.
Half = Callable[[slice, list[Tensor]], Any]


class Halves:
    """A `mcf.optim.step.launch.Launcher` of two kernels and torch's iteration between them.

    Attributes:
        first: the kernel that makes the matrices to orthogonalise.
        second: the one that updates the parameters.
        names: the scalars of both.
        random: whether either draws random numbers.
    """

    def __init__(
        self,
        bucket: Bucket,
        track_metrics: bool,
        *,
        nesterov: bool,
        replicas: Replicas | None = None,
    ) -> None:
        """The kernels of a bucket; `replicas` divide what is orthogonalised of plain matrices."""
        self._replicas = replicas
        arith, self._options = bucket.arithmetic, bucket.hyper.options
        read = muon_formulas.orthogonal_format(arith.component)
        self.first = muon_formulas.momentum_kernel(arith, bucket.form, nesterov)
        self.second = kernel(muon_formulas.UPDATE, arith, track_metrics, GradientForm(read))
        self._direction, self._orthogonal = arith.format.dtype, read.dtype
        self.grads = 1 + bucket.form.paired
        kernels = (self.first, self.second)
        names = [given_scalars(spec) for spec in kernels]
        self.names = tuple(dict.fromkeys([*names[0], *names[1]]))
        self.random = any(spec.random for spec in kernels)
        self._columns = [[self.names.index(name) for name in found] for found in names]

    def tables(self, table: Tensor, random: Sequence[str]) -> list[Tensor]:
        """The scalars of each kernel; `random` are the names of those of random numbers."""
        count = len(self.names)
        last = range(count, count + len(random))
        # Column by column: a list of indices would have to travel to the table's device.
        columns = table.unbind(1)
        found = []
        for spec, mine in zip((self.first, self.second), self._columns, strict=True):
            some = [*mine, *(last if spec.random else ())]
            found.append(torch.stack([columns[k] for k in some], 1))
        return found

    # What is orthogonalised is all of a matrix.
    whole = True

    def direct(self, rows: Sequence[Sequence[Tensor]]) -> DirectHalves | None:
        """See `mcf.optim.step.launch.Launcher`; what travels goes by the operator."""
        if self._replicas is not None and self._replicas.size > 1:
            return None
        return DirectHalves(self, rows) if registry.prepare(self.first, rows[:1]) else None

    def opaque(self, rows: Sequence[Sequence[Tensor]], table: Table) -> Callable[[], Tensor]:
        """See `mcf.optim.step.launch.Launcher`."""
        before, after = self.tables(table.values, streams.COLUMNS)
        grads = self.grads

        def first(part: slice, made: list[Tensor]) -> None:
            # The buffer comes last among the states.
            own = [
                [*rest[:grads], rest[-1], t] for (_, *rest), t in zip(rows[part], made, strict=True)
            ]
            some, lines = table.params[part], _lines(before, part)
            stretched.update(self.first, some, own, lines, table.live, table.first[part])

        def second(part: slice, made: list[Tensor]) -> Tensor:
            own = [[p, t, *rest[grads:-1]] for (p, *rest), t in zip(rows[part], made, strict=True)]
            some, lines = table.params[part], _lines(after, part)
            return stretched.update(self.second, some, own, lines, table.live, table.first[part])

        params = [row[0] for row in rows]
        owners = Owners.of(table.params[0], self._replicas)
        if self._replicas is not None and not is_sharded(table.params[0]):
            self._replicas.agree(table.params)
        if owners is None:
            return lambda: torch.cat(self.run(params, first, second))
        return lambda: torch.cat(self._run_shared(owners, table.params, params, first, second))

    def run(self, params: Sequence[Tensor], first: Half, second: Half) -> list[Any]:
        """Step; what `second` returned of each part.

        As many parameters at a time as need no more memory than the largest alone.
        """
        found = []
        for part in parts([p.numel() for p in params]):
            own = params[part]
            made = [torch.empty_like(p, dtype=self._direction) for p in own]
            first(part, made)
            turned = [self._laid(p, self._turned(x)) for p, x in zip(own, made, strict=True)]
            found.append(second(part, turned))
        return found

    def _run_shared(
        self,
        owners: Owners,
        params: Sequence[Tensor],
        here: Sequence[Tensor],
        first: Half,
        second: Half,
    ) -> list[Any]:
        """The same for parameters of which each process has a part, or of which all have all."""
        found = []
        for start in range(0, len(params), owners.count):
            part = slice(start, min(start + owners.count, len(params)))
            own = here[part]
            made = [torch.empty_like(p, dtype=self._direction) for p in own]
            first(part, made)
            # The iteration begins with this rounding.
            small = [x.to(torch.bfloat16) for x in made]
            turned = owners.turned(params[part], small, self._turned)
            found.append(second(part, [self._laid(p, x) for p, x in zip(own, turned, strict=True)]))
        return found

    def _turned(self, x: Tensor) -> Tensor:
        """A matrix by torch's Newton-Schulz iteration, which is in bf16."""
        if not x.numel():
            return x.to(torch.bfloat16)
        options = self._options
        coefficients = tuple(float(c) for c in options["ns_coefficients"])
        newton_schulz: Callable[..., Tensor] = torchs("_zeropower_via_newtonschulz")
        return newton_schulz(x, coefficients, options["ns_steps"], float(options["eps"]))

    def _laid(self, p: Tensor, found: Tensor) -> Tensor:
        """An orthogonalised matrix in its parameter's layout; the iteration turns tall ones."""
        if found.stride() == p.stride():
            return found.to(self._orthogonal)
        return torch.empty_like(p, dtype=self._orthogonal).copy_(found)


def _lines(table: Tensor, part: slice) -> Tensor:
    return table.narrow(0, part.start, part.stop - part.start)


class DirectHalves:
    """A `mcf.optim.step.launch.Direct` of both halves."""

    def __init__(self, halves: Halves, rows: Sequence[Sequence[Tensor]]) -> None:
        """For rows of parameters, gradients and states, of which the parameters are held."""
        self._halves = halves
        self._params = [row[0] for row in rows]
        sizes = [p.numel() for p in self._params]
        # `Halves.direct` has asked whether there are launches.
        self._prepared: dict[tuple[Any, int], Any] = {
            (spec, part.start): registry.prepare(spec, rows[part])
            for part in parts(sizes)
            for spec in (halves.first, halves.second)
        }

    def run(self, addresses: Sequence[Sequence[int]], table: Any) -> Any:
        """See `mcf.optim.step.launch.Direct`."""
        halves = self._halves
        # The buffer comes last among the states.
        p, *rest, buffer = addresses
        grads, states = rest[: halves.grads], rest[halves.grads :]
        before, after = halves.tables(table, streams.SCALARS)

        def first(part: slice, made: list[Tensor]) -> None:
            columns = [*(x[part] for x in grads), buffer[part], [t.data_ptr() for t in made]]
            self._prepared[halves.first, part.start].run(columns, before[part])

        def second(part: slice, made: list[Tensor]) -> Any:
            columns = [p[part], [t.data_ptr() for t in made], *(x[part] for x in states)]
            return self._prepared[halves.second, part.start].run(columns, after[part])

        sums = halves.run(self._params, first, second)
        if not halves.second.sum_count:
            return None
        return torch.cat([as_tensor(s) for s in sums])
