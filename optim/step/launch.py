"""The kernels of a bucket: straight to the executor, or as an opaque operator on tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor

from mcf.kernels import registry
from mcf.optim.step import stretched
from mcf.optim.step.bucket import Bucket
from mcf.optim.step.kernel import columns, given_scalars, kernel
from mcf.optim.step.table import Table


class Direct(Protocol):
    """Kernels ready for tensors of known sizes and layouts."""

    def run(self, addresses: Sequence[Sequence[int]], table: Any) -> Any:
        """Step; the metrics' sums [rows, terms], or None.

        Args:
            addresses: of the parameters, of their gradients, and of each of their states.
            table: scalars, a float64 NumPy array or tensor [rows, scalars].
        """


class Launcher(Protocol):
    """The kernels of a bucket.

    Attributes:
        names: the columns of a step's table of scalars; those of random numbers follow.
        random: whether it draws random numbers.
        whole: whether it needs all of a parameter, which is then sent for.
    """

    names: tuple[str, ...]
    random: bool
    whole: bool

    def direct(self, rows: Sequence[Sequence[Tensor]]) -> Direct | None:
        """The kernels ready for rows like these, where the executor can prepare them."""

    def opaque(self, rows: Sequence[Sequence[Tensor]], table: Table) -> Callable[[], Tensor]:
        """What steps rows of parameters, gradients and states, and returns the metrics' sums."""


class Fused:
    """One kernel that does it all."""

    whole = False

    def __init__(self, bucket: Bucket, track_metrics: bool) -> None:
        """See `launcher`."""
        self._spec = kernel(bucket.rule, bucket.arithmetic, track_metrics, bucket.form)
        self.names = given_scalars(self._spec)
        self.random = self._spec.random

    def direct(self, rows: Sequence[Sequence[Tensor]]) -> Direct | None:
        """See `Launcher`."""
        found: Direct | None = registry.prepare(self._spec, rows)
        return found

    def opaque(self, rows: Sequence[Sequence[Tensor]], table: Table) -> Callable[[], Tensor]:
        """See `Launcher`."""
        return lambda: stretched.update(
            self._spec, table.params, rows, table.values, table.live, table.first
        )


class Partial(Fused):
    """One kernel that needs some of the tensors of a row alone."""

    def __init__(self, bucket: Bucket, track_metrics: bool) -> None:
        """See `launcher`."""
        super().__init__(bucket, track_metrics)
        names = columns(bucket.rule, bucket.arithmetic, bucket.form)
        self._columns = [names.index(f.name) for f in self._spec.fields]

    def direct(self, rows: Sequence[Sequence[Tensor]]) -> None:
        """None: what a kernel does not write must not count as written."""

    def opaque(self, rows: Sequence[Sequence[Tensor]], table: Table) -> Callable[[], Tensor]:
        """See `Launcher`."""
        return super().opaque([[row[k] for k in self._columns] for row in rows], table)


def launcher(bucket: Bucket, track_metrics: bool) -> Launcher:
    """The kernels of a bucket, with the sums of metrics or without."""
    if bucket.rule.launcher is not None:
        found: Launcher = bucket.rule.launcher(bucket, track_metrics)
        return found
    return Fused(bucket, track_metrics)
