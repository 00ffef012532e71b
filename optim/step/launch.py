"""The kernels of a bucket: called on addresses, or as an opaque operator on tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor

from mcf.kernels import registry
from mcf.optim.step import opaque_operator
from mcf.optim.step.bucket import Bucket
from mcf.optim.step.kernel import columns, given_scalars, kernel
from mcf.optim.step.table import Table


class Direct(Protocol):
    """Kernels prepared for tensors of known sizes and layouts."""

    def run(self, addresses: Sequence[Sequence[int]], table: Any) -> Any:
        """Step, and return the metrics' sums [rows, terms] or None.

        Args:
            addresses: addresses of the parameters, of their gradients, and of each of their states.
            table: scalars, a float64 NumPy array or tensor [rows, scalars].
        """


class Launcher:
    """The kernels of a bucket: one fused kernel, unless a subclass has several.

    Attributes:
        names: the columns of a step's table of scalars; columns of random numbers follow.
        random: whether it draws random numbers.
        whole: whether it needs all of a parameter, so that processes must exchange parts.
    """

    names: tuple[str, ...]
    random: bool
    whole = False

    def __init__(self, bucket: Bucket, track_metrics: bool) -> None:
        """Create the kernel of a bucket, with sums of metrics or without."""
        self.spec = kernel(bucket.rule, bucket.arithmetic, track_metrics, bucket.form)
        self.names = given_scalars(self.spec)
        self.random = self.spec.random

    def direct(self, rows: Sequence[Sequence[Tensor]]) -> Direct | None:
        """Return the kernels prepared for rows like these; None if the executor has none."""
        found: Direct | None = registry.prepare(self.spec, rows)
        return found

    def opaque(self, rows: Sequence[Sequence[Tensor]], table: Table) -> Callable[[], Tensor]:
        """Return a function that steps rows of tensors and returns the metrics' sums."""
        return lambda: opaque_operator.update(
            self.spec, table.params, rows, table.values, table.live, table.first
        )


class Partial(Launcher):
    """A launcher of one kernel that needs only some of the tensors of a row."""

    def __init__(self, bucket: Bucket, track_metrics: bool) -> None:
        super().__init__(bucket, track_metrics)
        names = columns(bucket.rule, bucket.arithmetic, bucket.form)
        self._columns = [names.index(f.name) for f in self.spec.fields]

    def direct(self, rows: Sequence[Sequence[Tensor]]) -> None:
        """Return None: tensors that a kernel does not write must not count as written."""

    def opaque(self, rows: Sequence[Sequence[Tensor]], table: Table) -> Callable[[], Tensor]:
        return super().opaque([[row[k] for k in self._columns] for row in rows], table)


def launcher(bucket: Bucket, track_metrics: bool) -> Launcher:
    """Return the launcher of a bucket, with sums of metrics or without."""
    kind: type[Launcher] = bucket.rule.launcher or Launcher
    return kind(bucket, track_metrics)
