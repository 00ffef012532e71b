"""The registry of executors: which one runs a kernel, chosen by device or by the user."""

from __future__ import annotations

import contextlib
import functools
import importlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from mcf.kernels.choices import check_choice
from mcf.kernels.elementwise import Elementwise
from mcf.kernels.executor import Executor, Launch
from mcf.kernels.fold import Fold
from mcf.kernels.layouts import launch
from mcf.kernels.layouts import same_layout as same_layout
from mcf.kernels.row_tasks import RowTask

ExecutorName = Literal["auto", "torch", "numba", "triton"]
# The module of each executor. It defines EXECUTOR and is imported when first needed.
EXECUTORS: dict[ExecutorName, str] = {
    "torch": "mcf.kernels.torch.reference",
    "numba": "mcf.kernels.numba.cpu",
    "triton": "mcf.kernels.triton.gpu",
}
NAMES = ("auto", *EXECUTORS)

_chosen: ExecutorName = "auto"


class ExecutorWarning(UserWarning):
    """A slow executor runs: no faster one is installed, or Triton interprets without a GPU."""


def set_executor(name: ExecutorName) -> None:
    """Choose the executor of every kernel from now on.

    Args:
        name: "auto" (Numba for CPU tensors, Triton for GPU tensors, torch where those are not
            installed), "torch", "numba" (CPU tensors only) or "triton" (CPU tensors run in its
            interpreter, slowly).

    All executors give the same bits, so this changes speed only.

    Raises:
        ValueError: for another name.
        ImportError: when the package that the executor needs is not installed.

    Warns:
        ExecutorWarning: for "triton" on a machine without a GPU.
    """
    _choose(name)
    if name == "triton" and not torch.cuda.is_available():
        warnings.warn(
            "executor 'triton' without a GPU runs kernels in Triton's interpreter, thousands of "
            "times slower; 'auto' takes the CPU's kernels, with the same bits",
            ExecutorWarning,
            stacklevel=2,
        )


def _choose(name: ExecutorName) -> None:
    """Choose the executor, without a warning."""
    global _chosen
    check_choice("executor", name, NAMES)
    if name != "auto":
        try:
            named(name)
        except ImportError as error:
            raise ImportError(
                f"executor {name!r} needs a package that is not installed: {error}", name=error.name
            ) from error
    _chosen = name


def get_executor() -> ExecutorName:
    """Return the name given to `set_executor`, "auto" at first."""
    return _chosen


@contextlib.contextmanager
def executor(name: ExecutorName) -> Iterator[None]:
    """Choose the executor inside a `with` block; see `set_executor`."""
    before = _chosen
    _choose(name)
    try:
        yield
    finally:
        _choose(before)


@functools.cache
def named(name: ExecutorName) -> Executor:
    """Return the executor of this name; raise ImportError if a package that it needs is missing."""
    executor: Executor = importlib.import_module(EXECUTORS[name]).EXECUTOR
    return executor


@functools.cache
def _automatic(device_type: str) -> str:
    """Return the fastest installed executor for a device type; warn once when falling back."""
    wanted = {"cpu": "numba", "cuda": "triton"}.get(device_type)
    if wanted is None:
        return "torch"
    try:
        named(wanted)
    except ImportError as error:
        warnings.warn(
            f"{wanted} is not installed ({error}); kernels on {device_type} run as plain torch "
            "operations, with the same bits but slower",
            ExecutorWarning,
            stacklevel=3,
        )
        return "torch"
    return wanted


def on(device: torch.device) -> Executor:
    """Return the executor that runs kernels on a device."""
    found = named(_automatic(device.type) if _chosen == "auto" else _chosen)
    if found.devices and device.type not in found.devices:
        raise ValueError(f"executor {found.name!r} runs on {found.tensors}, got one on {device}")
    return found if _observer is None else _observer(found)


# Wraps the executor that `on` returns; see `observed`.
_observer: Callable[[Executor], Any] | None = None


@contextlib.contextmanager
def observed(wrapper: Callable[[Executor], Any]) -> Iterator[None]:
    """Run kernels by a wrapped executor inside a `with` block, for `mcf.explain`."""
    global _observer
    before, _observer = _observer, wrapper
    try:
        yield
    finally:
        _observer = before


def executor_for(device: torch.device) -> str:
    """Return the name of the executor that runs kernels on a device."""
    return on(device).name


def run(
    spec: Elementwise,
    rows: Sequence[Sequence[Tensor]],
    scalars: Tensor,
    live: Tensor | None = None,
    first: Sequence[int] = (),
) -> Tensor | None:
    """Run a kernel over rows of tensors, all on one device.

    Args:
        spec: the kernel.
        rows: per row one tensor for each of `spec.fields`, all of one shape and of the field's
            dtype, none overlapping another that is written.
        scalars: float64 on the CPU or the rows' device, [len(rows), len(spec.scalars)]; for a
            kernel that draws random numbers the last columns are `streams.COLUMNS` instead of
            `streams.SCALARS`.
        live: one number on the rows' device; where it is 0 the kernel writes nothing, and its sums
            are 0. None for 1. A GPU decides by itself.
        first: for a kernel that draws random numbers, what stands in the last column of scalars,
            where those are on a device.

    Returns:
        float64 sums [len(rows), spec.sum_count] on the rows' device, or None where the kernel has
        none.
    """
    if not rows:
        if spec.sums is None:
            return None
        return torch.zeros(0, spec.sum_count, dtype=torch.float64, device="cpu")
    run_rows = on(rows[0][0].device).run
    if (
        len(rows) == 1
        and (spec.sums is None or spec.long)
        and not spec.random
        and all(map(Tensor.is_contiguous, rows[0]))
    ):
        # Fast path: one small tensor costs little more than this function.
        return run_rows(spec, rows, scalars, live)
    return launch(run_rows, spec, rows, scalars, live, first)


def prepare(spec: Elementwise, rows: Sequence[Sequence[Tensor]]) -> Launch | None:
    """Prepare a launch of a kernel, to be repeated on tensors of these sizes and layouts.

    Args:
        spec: the kernel.
        rows: as in `run`, with at least one row and one layout in each (`same_layout`).

    Returns:
        The launch, or None where the executor prepares nothing.
    """
    device = rows[0][0].device
    return on(device).prepare(spec, [row[0].numel() for row in rows], device)


def fold(spec: Fold, operands: list[list[Tensor]]) -> Tensor:
    """Fold each row into a partial sum; the executor may have faster folds of special layouts.

    Args:
        spec: the fold.
        operands: the components of each operand, contiguous tensors [M, K] with K > 0.

    Returns:
        The partial sums, float64 [spec.state, M].
    """
    return on(operands[0][0].device).fold(spec, operands)


def product(spec: Fold, left: list[Tensor], right: list[Tensor]) -> Tensor:
    """Fold the inner dimension of matrix products.

    Args:
        spec: a fold of products.
        left: components, contiguous [B, M, K] with K > 0.
        right: components, contiguous [B, K, N].

    Returns:
        The partial sums, float64 [spec.state, B, M, N].
    """
    return on(left[0].device).product(spec, left, right)


def rows(task: RowTask, shape: tuple[int, int], tensors: Sequence[Tensor]) -> bool:
    """Run a task on each row, if the executor has a loop for it.

    Args:
        task: the task, see `mcf.kernels.row_tasks`.
        shape: rows and count, both positive.
        tensors: the tensors of the task, in its order.

    Returns:
        False where there is none, and nothing has been done.
    """
    return on(tensors[0].device).rows(task, shape, tensors)
