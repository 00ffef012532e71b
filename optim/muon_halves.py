"""The kernels of a Muon step, before and after the orthogonalisation, and their order."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.kernels import streams
from mcf.kernels.elementwise import Elementwise, Field
from mcf.kernels.formats import BF16, FP64, Format
from mcf.kernels.tables import as_tensor
from mcf.optim.batch import Group, Work
from mcf.optim.rules import muon as _rules
from mcf.optim.strategies import Arithmetic
from mcf.optim.update import GradientForm, Rule, given_scalars, kernel, registered


def momentum_kernel(arith: Arithmetic, form: GradientForm, nesterov: bool) -> Elementwise:
    """The first half of a step: the buffer, and the matrix to orthogonalise in a tensor."""
    return _momentum_kernel(arith.format, arith.stored(arith.strategy.first), form, nesterov)


@functools.cache
def _momentum_kernel(
    arithmetic: Format, stored: Format, form: GradientForm, nesterov: bool
) -> Elementwise:
    words = ["muon_nesterov" if nesterov else "muon_momentum", arithmetic.name, stored.name]
    return registered(
        Elementwise(
            name="_".join(words) + form.suffix(stored),
            function=_rules.muon_momentum,
            results=("momentum_buffer", "direction"),
            fields=(
                Field("grad", form.format),
                *([Field("grad_lo", form.format)] if form.paired else []),
                Field("momentum_buffer", stored, written=True),
                Field("direction", arithmetic, read=False, written=True),
            ),
            stores=(("momentum_buffer", "momentum_buffer"), ("direction", "direction")),
            arithmetic=arithmetic,
            scalars=("grad_scale", "momentum", "one_minus_momentum")
            + (("grad_limit",) if form.clipped else ()),
            absent=(() if form.paired else ("grad_lo",))
            + (() if form.clipped else ("grad_limit",)),
            rounded=("momentum_buffer", "direction") if stored == arithmetic else ("direction",),
            slots=(
                ("scaled_gradient", form.slot),
                ("ahead", _rules.nesterov_ahead if nesterov else _rules.plain_ahead),
            ),
        )
    )


def orthogonal_format(component: Format) -> Format:
    """What the orthogonalised matrix is read from: bf16, or float64 for float64 parameters."""
    return FP64 if component == FP64 else BF16


# Some of the parameters, and a matrix for each.
Half = Callable[[slice, list[Tensor]], Any]


class Halves:
    """The two kernels of parameters that step together.

    Attributes:
        first: makes the matrices to orthogonalise.
        second: updates the parameters.
        direction: the dtype of what the first kernel writes.
        orthogonal: the dtype of what the second one reads.
        nesterov: what the first kernel was made for.
    """

    def __init__(self, rule: Rule, work: Work, track_metrics: bool) -> None:
        """The kernels of `work`; `rule` is the second half."""
        _, group, _, arith, form, _ = work
        read = orthogonal_format(arith.component)
        self.nesterov = group["nesterov"]
        self.first = momentum_kernel(arith, form, self.nesterov)
        self.second = kernel(rule, arith, track_metrics, GradientForm(read))
        self.direction = arith.format.dtype
        self.orthogonal = read.dtype

    def run(
        self,
        params: Sequence[Tensor],
        first: Half,
        orthogonalise: Callable[[Tensor], Tensor],
        second: Half,
    ) -> list[Any]:
        """Step; what `second` returned of each part.

        As many parameters at a time as need no more memory than the largest alone.
        """
        found = []
        for part in parts([p.numel() for p in params]):
            own = params[part]
            made = [torch.empty_like(p, dtype=self.direction) for p in own]
            first(part, made)
            turned = [self._like(p, orthogonalise(x)) for p, x in zip(own, made, strict=True)]
            found.append(second(part, turned))
        return found

    def _like(self, p: Tensor, x: Tensor) -> Tensor:
        """A matrix in its parameter's layout: torch's iteration transposes tall ones."""
        if x.stride() == p.stride():
            return x.to(self.orthogonal)
        return torch.empty_like(p, dtype=self.orthogonal).copy_(x)


def parts(sizes: Sequence[int]) -> Iterator[slice]:
    """Stretches of a list of sizes, none of which has a larger sum than the largest."""
    limit, start, total = max(sizes), 0, 0
    for k, size in enumerate(sizes):
        if total + size > limit:
            yield slice(start, k)
            start, total = k, 0
        total += size
    yield slice(start, len(sizes))


class Launch:
    """A `mcf.optim.batch.Launch` of both halves."""

    def __init__(
        self,
        halves: Halves,
        sizes: Sequence[int],
        prepared: Callable[[Elementwise, slice], Any],
        orthogonalise: Callable[[Tensor], Tensor],
    ) -> None:
        """For parameters of some sizes; `prepared` makes a kernel's launch for a part of them."""
        self._halves = halves
        self._orthogonalise = orthogonalise
        kernels = (halves.first, halves.second)
        self._prepared = {
            (spec, part.start): prepared(spec, part) for part in parts(sizes) for spec in kernels
        }
        names = [given_scalars(spec) for spec in kernels]
        self.scalars = tuple(dict.fromkeys([*names[0], *names[1]]))
        self.random = halves.second.random
        self._columns = [[self.scalars.index(name) for name in found] for found in names]
        if self.random:
            count = len(self.scalars)
            self._columns[1] += range(count, count + len(streams.SCALARS))

    def fits(self, group: Group) -> bool:
        """See `mcf.optim.batch.Launch`."""
        return bool(group["nesterov"] == self._halves.nesterov)

    def run(self, params: Sequence[Tensor], addresses: Sequence[Sequence[int]], table: Any) -> Any:
        """See `mcf.optim.batch.Launch`."""
        grads = sum(f.name in ("grad", "grad_lo") for f in self._halves.first.fields)
        # The buffer comes last among the states.
        p, g, *states, buffer = addresses[0], addresses[1 : 1 + grads], *addresses[1 + grads :]
        tables = [table[:, chosen] for chosen in self._columns]

        def half(k: int, part: slice, columns: list[Sequence[int]]) -> Any:
            spec = (self._halves.first, self._halves.second)[k]
            return self._prepared[spec, part.start].run(columns, tables[k][part])

        def first(part: slice, made: list[Tensor]) -> None:
            half(0, part, [*(x[part] for x in g), buffer[part], [t.data_ptr() for t in made]])

        def second(part: slice, made: list[Tensor]) -> Any:
            rest = (x[part] for x in states)
            return half(1, part, [p[part], [t.data_ptr() for t in made], *rest])

        sums = self._halves.run(params, first, self._orthogonalise, second)
        if not self._halves.second.sum_count:
            return None
        return torch.cat([as_tensor(s) for s in sums])
