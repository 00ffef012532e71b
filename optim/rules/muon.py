"""Muon (Jordan et al. 2024): the two halves of a step, before and after the orthogonalisation."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT
from typing_extensions import Unpack

from mcf.kernels import registry, streams
from mcf.kernels.algorithms.primitives import ONE, neg, rn
from mcf.kernels.formats import BF16, FP64, Format
from mcf.kernels.tables import as_tensor
from mcf.optim import validation
from mcf.optim.optimizer import LowPrecisionOptimizer
from mcf.optim.options import Options, hyperparameters
from mcf.optim.rule.rule import FIRST, Coefficients, Rule, by_flags
from mcf.optim.sharding.owners import Owners
from mcf.optim.sharding.processes import Replicas
from mcf.optim.sharding.shards import is_sharded
from mcf.optim.step import opaque_operator
from mcf.optim.step.bucket import Bucket
from mcf.optim.step.kernel import GradientForm, given_scalars, kernel
from mcf.optim.step.launch import Launcher
from mcf.optim.step.table import Table
from mcf.optim.storage.slots import accumulate, ahead, param_value, scaled_gradient
from mcf.optim.storage.strategies import WITHOUT_SECOND, Arithmetic


def muon_momentum(grads, momentum_buffer, momentum, one_minus_momentum):
    """Compute the new buffer and the matrix to orthogonalise.

    b <- momentum b + (1 - momentum) g;  the matrix is b, or (1 - momentum) g + momentum b
    (Nesterov), as in torch.
    """
    gradient = scaled_gradient(grads)
    fresh = rn(one_minus_momentum * gradient)
    momentum_buffer = rn(rn(momentum * momentum_buffer) + fresh)
    return momentum_buffer, ahead(fresh, momentum_buffer, momentum)


def plain_ahead(fresh, buffer, momentum):
    """Return b, the step without Nesterov's momentum."""
    return buffer


def nesterov_ahead(fresh, buffer, momentum):
    """(1 - momentum) g + momentum b, where fresh is (1 - momentum) g."""
    return rn(fresh + rn(momentum * buffer))


def muon(param, param_lo, grad, lr, adjustment, weight_decay):
    """Compute the new parameter and its update; `grad` is the orthogonalised matrix O.

    p <- p - lr (adjustment O + weight_decay p).
    """
    decay = rn(weight_decay * param_value(param, param_lo))
    update = neg(rn(lr * rn(rn(adjustment * grad) + decay)))
    param, param_lo = accumulate(param, param_lo, update)
    return param, param_lo, update


def complement(momentum):
    """1 - mu."""
    return (rn(ONE - momentum),)


# The first half of a step, with Nesterov momentum and without: the buffer, and the matrix to
# orthogonalise.
MOMENTUM = {
    nesterov: Rule(
        name="muon_nesterov" if nesterov else "muon_momentum",
        function=muon_momentum,
        results=("momentum_buffer", "direction"),
        made=("direction",),
        states=(("momentum_buffer", FIRST),),
        slots=(("ahead", nesterov_ahead if nesterov else plain_ahead),),
    )
    for nesterov in (False, True)
}

# The second half of a step, which neither reads nor writes the buffer.
UPDATE = Rule(
    name="muon",
    function=muon,
    results=("param", "param_lo", "update"),
    decoupled=True,
    shaped=True,
)


def orthogonal_format(component: Format) -> Format:
    """Return the format of the orthogonalised matrix: bf16, or float64 for float64 parameters."""
    return FP64 if component == FP64 else BF16


def newton_schulz() -> Callable[..., Tensor]:
    """Return the Newton-Schulz iteration of torch's Muon, which is no public function.

    Raises:
        ImportError: if torch has no Muon (before 2.9).
    """
    try:
        from torch.optim._muon import _zeropower_via_newtonschulz
    except ImportError as error:
        raise ImportError(f"Muon needs torch.optim.Muon, of torch 2.9: {error}") from error
    return _zeropower_via_newtonschulz


def parts(sizes: Sequence[int]) -> Iterator[slice]:
    """Yield slices of a list of sizes, none of which has a larger sum than the largest size."""
    limit, start, total = max(sizes), 0, 0
    for k, size in enumerate(sizes):
        if total + size > limit:
            yield slice(start, k)
            start, total = k, 0
        total += size
    yield slice(start, len(sizes))


# A half step of a slice of the parameters, with one matrix for each.
Half = Callable[[slice, list[Tensor]], Any]


class Halves(Launcher):
    """A launcher of two kernels with torch's iteration between them.

    Attributes:
        first: the kernel that computes the matrices to orthogonalise.
        second: the kernel that updates the parameters.
    """

    # The iteration needs all of a matrix.
    whole = True

    def __init__(
        self,
        bucket: Bucket,
        track_metrics: bool,
        *,
        nesterov: bool,
        replicas: Replicas | None = None,
    ) -> None:
        """Create the kernels of a bucket; `replicas` divide the iteration of plain matrices."""
        self._replicas = replicas
        arith, self._options = bucket.arithmetic, bucket.hyper.options
        read = orthogonal_format(arith.component)
        self.first = kernel(MOMENTUM[nesterov], arith, False, bucket.form)
        self.second = kernel(UPDATE, arith, track_metrics, GradientForm(read))
        self._direction, self._orthogonal = arith.format.dtype, read.dtype
        self.grads = 1 + bucket.form.paired
        kernels = (self.first, self.second)
        names = [given_scalars(spec) for spec in kernels]
        self.names = tuple(dict.fromkeys([*names[0], *names[1]]))
        self.random = any(spec.random for spec in kernels)
        self._columns = [[self.names.index(name) for name in found] for found in names]

    def tables(self, table: Tensor, random: Sequence[str]) -> list[Tensor]:
        """Return the scalars of each kernel; `random` are the names of random numbers' scalars."""
        count = len(self.names)
        last = range(count, count + len(random))
        # Column by column: an index list would have to be copied to the table's device.
        columns = table.unbind(1)
        found = []
        for spec, mine in zip((self.first, self.second), self._columns, strict=True):
            some = [*mine, *(last if spec.random else ())]
            found.append(torch.stack([columns[k] for k in some], 1))
        return found

    def direct(self, rows: Sequence[Sequence[Tensor]]) -> DirectHalves | None:
        if self._replicas is not None and self._replicas.size > 1:
            return None
        return DirectHalves(self, rows) if registry.prepare(self.first, rows[:1]) else None

    def opaque(self, rows: Sequence[Sequence[Tensor]], table: Table) -> Callable[[], Tensor]:
        before, after = self.tables(table.values, streams.COLUMNS)
        grads = self.grads

        def first(part: slice, made: list[Tensor]) -> None:
            # The buffer comes last among the states.
            own = [
                [*rest[:grads], rest[-1], t] for (_, *rest), t in zip(rows[part], made, strict=True)
            ]
            some = table.params[part], own, _lines(before, part), table.live, table.first[part]
            opaque_operator.update(self.first, *some)

        def second(part: slice, made: list[Tensor]) -> Tensor:
            own = [[p, t, *rest[grads:-1]] for (p, *rest), t in zip(rows[part], made, strict=True)]
            some = table.params[part], own, _lines(after, part), table.live, table.first[part]
            return opaque_operator.update(self.second, *some)

        params = [row[0] for row in rows]
        owners = Owners.of(table.params[0], self._replicas)
        if self._replicas is not None and not is_sharded(table.params[0]):
            self._replicas.agree(table.params)
        if owners is None:
            return lambda: torch.cat(self.run(params, first, second))
        return lambda: torch.cat(self._run_shared(owners, table.params, params, first, second))

    def run(self, params: Sequence[Tensor], first: Half, second: Half) -> list[Any]:
        """Run the step and return the results of `second` for each part.

        Each part has as many parameters as need no more memory than the largest one alone.
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
        """Run the step for parameters that processes share or replicate."""
        found = []
        for start in range(0, len(params), owners.count):
            part = slice(start, min(start + owners.count, len(params)))
            own = here[part]
            made = [torch.empty_like(p, dtype=self._direction) for p in own]
            first(part, made)
            # The iteration begins with this rounding, so sending bf16 changes no bit.
            small = [x.to(torch.bfloat16) for x in made]
            turned = owners.turned(params[part], small, self._turned)
            found.append(second(part, [self._laid(p, x) for p, x in zip(own, turned, strict=True)]))
        return found

    def _turned(self, x: Tensor) -> Tensor:
        """Return a matrix orthogonalised by torch's Newton-Schulz iteration, in bf16."""
        if not x.numel():
            return x.to(torch.bfloat16)
        options = self._options
        coefficients = tuple(float(c) for c in options["ns_coefficients"])
        return newton_schulz()(x, coefficients, options["ns_steps"], float(options["eps"]))

    def _laid(self, p: Tensor, found: Tensor) -> Tensor:
        """Return an orthogonalised matrix in its parameter's layout."""
        if found.stride() == p.stride():
            return found.to(self._orthogonal)
        return torch.empty_like(p, dtype=self._orthogonal).copy_(found)


def _lines(table: Tensor, part: slice) -> Tensor:
    # Not `table[part]`, which needs the device where a fake tensor only names one.
    return table.narrow(0, part.start, part.stop - part.start)


class DirectHalves:
    """A `mcf.optim.step.launch.Direct` of both halves."""

    def __init__(self, halves: Halves, rows: Sequence[Sequence[Tensor]]) -> None:
        """Prepare both kernels for rows of parameters, gradients and states."""
        self._halves = halves
        self._params = [row[0] for row in rows]
        sizes = [p.numel() for p in self._params]
        # `Halves.direct` has checked that the executor can prepare launches.
        self._prepared: dict[tuple[Any, int], Any] = {
            (spec, part.start): registry.prepare(spec, rows[part])
            for part in parts(sizes)
            for spec in (halves.first, halves.second)
        }

    def run(self, addresses: Sequence[Sequence[int]], table: Any) -> Any:
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


# Factors of the learning rate as functions of rows and columns, by torch's names.
_ADJUSTMENTS: dict[str | None, Callable[[int, int], float]] = {
    "original": lambda rows, columns: math.sqrt(max(1, rows / columns)),
    "match_rms_adamw": lambda rows, columns: 0.2 * math.sqrt(max(rows, columns)),
    "spectral_unclamped": lambda rows, columns: math.sqrt(rows / columns),
}
_ADJUSTMENTS[None] = _ADJUSTMENTS["original"]


def whole_rules(replicas: Replicas | None) -> dict[tuple[bool, ...], Rule]:
    """Return the rules of a whole step, its states and scalars, with Nesterov momentum and without.

    `replicas` are processes that divide the matrices of a step among them.
    """
    return by_flags(
        lambda nesterov: dataclasses.replace(
            UPDATE,
            name="muon_nesterov" if nesterov else "muon_plain",
            states=(("momentum_buffer", FIRST),),
            coefficients=(Coefficients(complement, ("one_minus_momentum",)),),
            launcher=functools.partial(Halves, nesterov=nesterov, replicas=replicas),
        )
    )


class Muon(LowPrecisionOptimizer):
    r"""Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon) with a storage precision.

    B <- mu B + (1 - mu) G; O = NS(B), or NS((1 - mu) G + mu B) (Nesterov);
    P <- P - lr (a O + weight_decay P).

    NS is torch's Newton-Schulz iteration, in bf16 matrix products; a adjusts the rate to the shape,
    as in torch. This package's kernels read and write buffer and parameter, as many matrices at a
    time as need no more temporary memory than the largest one alone.

    Args:
        params: matrices, as in torch; other parameters need another optimizer.
        momentum: the momentum mu, in [0, 1].
        nesterov: Nesterov momentum.
        ns_coefficients: three coefficients of the iteration.
        eps: the smallest norm that the iteration divides by.
        ns_steps: iterations, below 100.
        adjust_lr_fn: `"original"` (the default): a = sqrt(max(1, rows / columns));
            `"match_rms_adamw"`: a = 0.2 sqrt(max(rows, columns)) (arXiv:2502.16982);
            `"spectral_unclamped"`: a = sqrt(rows / columns), of torch 2.14 on.
        precision: any without a second moment and without feedback; see `mcf.optim.AdamW`.
        compute_dtype: see `mcf.optim.AdamW`; it does not affect NS.
        process_group: processes that have the same plain parameters and gradients, as under
            DistributedDataParallel (`model.process_group`): each matrix is orthogonalised by one of
            them, in round robin (Dion, arXiv:2504.05295), and they exchange results, with the same
            bits. All of them must step together. With None each process works on all matrices.
            DTensors need no group: their mesh defines the processes. Not saved in checkpoints.

    Guarantees: as `mcf.optim.AdamW` for the buffer, and for the parameter as a function of O. O
    itself has the bits of torch's matrix product on the device and number of threads. NaN or
    infinity in a gradient reach the whole matrix.

    Raises:
        ValueError, TypeError: as `mcf.optim.AdamW`; for parameters that are not matrices; for a
            `process_group` that is none or lacks this process; in a step, before anything is
            changed, if its processes do not step the same matrices.
        RuntimeError: for a `process_group` if torch.distributed is not initialized.
        ImportError: if torch has no Muon (before 2.9).
    """

    precisions = WITHOUT_SECOND
    takes_expansions = False
    variants = ("nesterov",)
    rules = whole_rules(None)

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
        *,
        process_group: Any = None,
        **options: Unpack[Options],
    ) -> None:
        if process_group is not None:
            self.rules = whole_rules(Replicas(process_group))
        newton_schulz()
        super().__init__(params, hyperparameters(locals()), **options)

    def _check_group(self, group: dict[str, Any]) -> None:
        validation.number("momentum value", group["momentum"], high=1.0)
        super()._check_group(group)
        validation.flag("nesterov", group["nesterov"])
        coefficients = group["ns_coefficients"]
        if not isinstance(coefficients, (tuple, list)) or len(coefficients) != 3:
            raise ValueError(
                f"Invalid ns_coefficients: {coefficients!r}; allowed are three numbers"
            )
        for k, x in enumerate(coefficients):
            validation.number(f"ns_coefficients[{k}]", x, low=float("-inf"))
        count = group["ns_steps"]
        if isinstance(count, bool) or not isinstance(count, int):
            raise TypeError(f"ns_steps must be an int, got {type(count).__name__}")
        if not 0 <= count < 100:
            raise ValueError(f"Invalid ns_steps: {count}; allowed is [0, 100)")
        if group["adjust_lr_fn"] not in _ADJUSTMENTS:
            raise ValueError(
                f"Adjust learning rate function {group['adjust_lr_fn']} is not supported; allowed "
                "are 'original', 'match_rms_adamw', 'spectral_unclamped' and None"
            )

    def _arithmetic(self, group: dict[str, Any], p: Tensor, where: str) -> Arithmetic:
        if p.ndim != 2:
            raise ValueError(
                f"Muon only supports 2D parameters whereas we found a parameter with size: "
                f"{tuple(p.shape)}, {where}"
            )
        return super()._arithmetic(group, p, where)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return a copy with copied parameters, for the same processes."""
        made = super().__deepcopy__(memo)
        # Process groups are copied and not pickled.
        made.rules = self.rules
        return made

    def _given(
        self, group: dict[str, Any], arith: Arithmetic, read: Callable[[Any], Any]
    ) -> dict[str, Any]:
        return {"momentum": read(group["momentum"])}

    def _of_shape(self, group: dict[str, Any], shape: tuple[int, ...]) -> dict[str, float]:
        adjusted = _ADJUSTMENTS[group["adjust_lr_fn"]]
        return {"adjustment": adjusted(*shape) if 0 not in shape else 1.0}
