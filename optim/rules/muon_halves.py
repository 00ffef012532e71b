"""A Muon step (Jordan et al. 2024) in two halves, before and after the orthogonalisation."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.kernels import registry, streams
from mcf.kernels.algorithms.primitives import ONE, neg, rn
from mcf.kernels.elementwise import Elementwise, Field
from mcf.kernels.formats import BF16, FP64, Format
from mcf.kernels.tables import as_tensor
from mcf.optim.operator import registered, update_
from mcf.optim.rules.rule import Rule
from mcf.optim.rules.slots import accumulate, ahead, param_value, scaled_gradient
from mcf.optim.rules.terms import param_terms
from mcf.optim.step.bucket import Bucket
from mcf.optim.step.kernel import GradientForm, given_scalars, kernel
from mcf.optim.step.table import Table
from mcf.optim.storage.arithmetic import Arithmetic


def muon_momentum(
    grad, grad_lo, momentum_buffer, grad_scale, grad_limit, momentum, one_minus_momentum
):
    """The new buffer and the matrix to orthogonalise.

    b <- momentum b + (1 - momentum) g;  the matrix is b, or (1 - momentum) g + momentum b
    (Nesterov), as torch has it.
    """
    gradient = scaled_gradient(grad, grad_lo, grad_scale, grad_limit)
    fresh = rn(one_minus_momentum * gradient)
    momentum_buffer = rn(rn(momentum * momentum_buffer) + fresh)
    return momentum_buffer, ahead(fresh, momentum_buffer, momentum)


def plain_ahead(fresh, buffer, momentum):
    """b."""
    return buffer


def nesterov_ahead(fresh, buffer, momentum):
    """(1 - momentum) g + momentum b, where fresh is (1 - momentum) g."""
    return rn(fresh + rn(momentum * buffer))


def muon(param, param_lo, grad, lr, adjustment, weight_decay):
    """The new parameter and its update; `grad` is the orthogonalised matrix O.

    p <- p - lr (adjustment O + weight_decay p).
    """
    decay = rn(weight_decay * param_value(param, param_lo))
    update = neg(rn(lr * rn(rn(adjustment * grad) + decay)))
    param, param_lo = accumulate(param, param_lo, update)
    return param, param_lo, update


def complement(momentum):
    """1 - mu."""
    return (rn(ONE - momentum),)


# The second half of a step, which neither reads nor writes the buffer.
UPDATE = Rule(
    name="muon",
    function=muon,
    results=("param", "param_lo", "update"),
    metrics=param_terms,
    metric_count=3,
    decoupled=True,
    shaped=True,
)


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


def momentum_kernel(arith: Arithmetic, form: GradientForm, nesterov: bool) -> Elementwise:
    """The first half of a step: the buffer, and the matrix to orthogonalise in a tensor."""
    return _momentum_kernel(arith.format, arith.first_moment, form, nesterov)


@functools.cache
def _momentum_kernel(
    arithmetic: Format, stored: Format, form: GradientForm, nesterov: bool
) -> Elementwise:
    words = ["muon_nesterov" if nesterov else "muon_momentum", arithmetic.name, stored.name]
    return registered(
        Elementwise(
            name="_".join(words) + form.suffix(stored),
            function=muon_momentum,
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
                ("ahead", nesterov_ahead if nesterov else plain_ahead),
            ),
        )
    )


def orthogonal_format(component: Format) -> Format:
    """What the orthogonalised matrix is read from: bf16, or float64 for float64 parameters."""
    return FP64 if component == FP64 else BF16


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
        random: whether the second one draws random numbers.
    """

    def __init__(self, bucket: Bucket, track_metrics: bool, *, nesterov: bool) -> None:
        """The kernels of a bucket."""
        arith, self._options = bucket.arithmetic, bucket.hyper.options
        read = orthogonal_format(arith.component)
        self.first = momentum_kernel(arith, bucket.form, nesterov)
        self.second = kernel(UPDATE, arith, track_metrics, GradientForm(read))
        self._direction, self._orthogonal = arith.format.dtype, read.dtype
        self.grads = 1 + bucket.form.paired
        kernels = (self.first, self.second)
        names = [given_scalars(spec) for spec in kernels]
        self.names = tuple(dict.fromkeys([*names[0], *names[1]]))
        self.random = self.second.random
        self._columns = [[self.names.index(name) for name in found] for found in names]

    def tables(self, table: Tensor, random: Sequence[str]) -> list[Tensor]:
        """The scalars of each kernel; `random` are the names of those of random numbers."""
        count = len(self.names)
        last = range(count, count + len(random)) if self.random else ()
        # Column by column: a list of indices would have to travel to the table's device.
        columns = table.unbind(1)
        chosen = (self._columns[0], [*self._columns[1], *last])
        return [torch.stack([columns[k] for k in some], 1) for some in chosen]

    def direct(self, rows: Sequence[Sequence[Tensor]]) -> DirectHalves | None:
        """See `mcf.optim.step.launch.Launcher`."""
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
            update_(self.first, own, _lines(before, part), table.live)

        def second(part: slice, made: list[Tensor]) -> Tensor:
            own = [[p, t, *rest[grads:-1]] for (p, *rest), t in zip(rows[part], made, strict=True)]
            return update_(self.second, own, _lines(after, part), table.live, table.first[part])

        params = [row[0] for row in rows]
        return lambda: torch.cat(self.run(params, first, second))

    def run(self, params: Sequence[Tensor], first: Half, second: Half) -> list[Any]:
        """Step; what `second` returned of each part.

        As many parameters at a time as need no more memory than the largest alone.
        """
        found = []
        for part in parts([p.numel() for p in params]):
            own = params[part]
            made = [torch.empty_like(p, dtype=self._direction) for p in own]
            first(part, made)
            turned = [self._turned(p, x) for p, x in zip(own, made, strict=True)]
            found.append(second(part, turned))
        return found

    def _turned(self, p: Tensor, x: Tensor) -> Tensor:
        """A matrix by torch's Newton-Schulz iteration, in its parameter's layout.

        The iteration is in bf16, and transposes tall matrices.
        """
        if x.numel():
            options = self._options
            coefficients = tuple(float(c) for c in options["ns_coefficients"])
            newton_schulz: Callable[..., Tensor] = torchs("_zeropower_via_newtonschulz")
            found = newton_schulz(x, coefficients, options["ns_steps"], float(options["eps"]))
        else:
            found = x.to(torch.bfloat16)
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
