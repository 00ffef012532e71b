"""The interface of executors: methods that each must implement, and optional faster ones."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from mcf.kernels.elementwise import Elementwise
from mcf.kernels.factoriser import Factoriser
from mcf.kernels.fold import Fold
from mcf.kernels.row_tasks import RowTask

# Number of elements whose squares are summed at a time. It bounds the temporary memory, and on a
# CPU keeps it in cache.
BLOCK = {"cpu": 1 << 14}
DEVICE_BLOCK = 1 << 22

# A digit of a long accumulator counts less than 2**DIGIT and is kept in 64 bits.
DIGIT = 32
_MASK = (1 << DIGIT) - 1


class Launch(Protocol):
    """A kernel prepared for rows of known sizes on one device.

    Callers may run it on any tensors of these sizes. It checks nothing: the caller guarantees
    dtypes, sizes, layouts and devices.
    """

    def run(
        self, addresses: Sequence[Sequence[int]], scalars: Any, live: Tensor | None = None
    ) -> Any:
        """Apply the kernel.

        Args:
            addresses: a list for each field with the tensors' addresses in all rows.
            scalars: a float64 NumPy array [rows, scalars], or a tensor; anything where the kernel
                has none.
            live: one number on the device; where it is 0 nothing is written, and the sums are 0.
                None for 1.

        Returns:
            The sums, float64 [rows, terms], as an array or a tensor; None where there are none.
        """

    def row(self, scalars: Any) -> Callable[[list[int]], Any]:
        """Return a function that applies the kernel to one row, given the addresses of its tensors.

        Args:
            scalars: as in `run`; the same in all calls.

        Returns:
            The function, which returns the row's sums, or None where there are none.
        """

        def call(addresses: list[int]) -> Any:
            sums = self.run([(a,) for a in addresses], scalars)
            return None if sums is None else sums[0]

        return call

    def in_place(self, scalars: Any) -> Callable[[list[int]], Sequence[range]] | None:
        """Return `row` for a kernel whose results may overwrite operands; None if there is none.

        Args:
            scalars: as in `row`.

        Returns:
            A function of the addresses: an operand of so many elements may be a result, too, but
            none may share memory with one otherwise. It returns which elements have not been
            written, since some of each range need a step that the kernel lacks.
        """
        return None


class Executor(Factoriser, abc.ABC):
    """Run declared kernels on tensors.

    All executors give the same bits; they differ in devices and speed.

    Attributes:
        name: the name that `mcf.set_executor` accepts.
        devices: the device types it supports; empty for all.
        tensors: a description of those tensors, for messages.
        longest: the largest number of arithmetic operations in a fused program; 0 if one kernel is
            no faster than several.
        crowded: whether each statement of a program is placed next to its use, which keeps few
            values alive, and not next to independent statements, which run in parallel.
        native: whether a prepared launch of one row is a native call of addresses.
        small: whether long formulas read and write numbers of 16 bits, whatever the registers.
    """

    name: ClassVar[str]
    devices: ClassVar[tuple[str, ...]] = ()
    tensors: ClassVar[str] = "all tensors"
    longest: ClassVar[int] = 0
    crowded: ClassVar[bool] = False
    native: ClassVar[bool] = False
    small: ClassVar[bool] = False

    @abc.abstractmethod
    def run(
        self,
        spec: Elementwise,
        rows: Sequence[Sequence[Tensor]],
        scalars: Tensor,
        live: Tensor | None = None,
    ) -> Tensor | None:
        """Apply a kernel to each row of tensors.

        Args:
            spec: the kernel.
            rows: per row one dense tensor for each field, all of one size and layout.
            scalars: float64, shape [len(rows), len(spec.scalars)]; rounded once to the registers.
            live: one number on the device of the rows; where it is 0 nothing is written, and the
                sums are 0. None for 1.

        Returns:
            The sums, float64 of shape [len(rows), spec.sum_count], or None where there are none.
        """

    @abc.abstractmethod
    def fold(self, spec: Fold, operands: list[list[Tensor]]) -> Tensor:
        """Fold each row of the operands' components, [M, K]; see `mcf.kernels.fold`.

        Returns:
            The partial sums, float64 [spec.state, M].
        """

    def fold_within(
        self, spec: Fold, operands: list[list[Tensor]], least: float, most: float
    ) -> tuple[Tensor, bool] | None:
        """Fold float64 numbers and test whether the first operand's magnitudes are in a range.

        Returns:
            The partial sums, and whether all magnitudes that are not 0 are in a range; None where
            it has none, or none that is worth it.
        """
        return None

    def fold_columns(self, spec: Fold, x: list[Tensor], count: int, inner: int) -> Tensor | None:
        """Fold rows along the middle of contiguous [M / inner, count, inner]; None if unsupported.

        Returns:
            The partial sums, float64 [spec.state, M]; None where it has none.
        """
        return None

    def fold_deviations(
        self, spec: Fold, x: list[Tensor], centre: list[Tensor], count: int, inner: int
    ) -> Tensor | None:
        """Fold rows together with one number per row, `centre`, as described by `Fold.fixed`.

        Rows are along the middle of contiguous [M / inner, count, inner].

        Returns:
            The partial sums, float64 [spec.state, M]; None where it has no loop for it.
        """
        return None

    @abc.abstractmethod
    def product(self, spec: Fold, left: list[Tensor], right: list[Tensor]) -> Tensor:
        """Fold the inner dimension of [B, M, K] and [B, K, N] as one lane.

        Returns:
            The partial sums, float64 [spec.state, B, M, N].
        """

    def prepare(
        self, spec: Elementwise, sizes: Sequence[int], device: torch.device
    ) -> Launch | None:
        """Prepare a launch of a kernel on rows of these sizes; return None if unsupported."""
        return None

    def prepare_fold(
        self, spec: Fold, rows: int, length: int, device: torch.device
    ) -> Callable[[list[int], int], None] | None:
        """Prepare a fold of `rows` rows of `length` elements; return None if unsupported.

        Returns:
            A function of the addresses of the components, contiguous [rows, length], and of that of
            the partial sums, float64 [spec.state, rows], which it writes.
        """
        return None

    def prepare_product(
        self, spec: Fold, shape: tuple[int, int, int, int], device: torch.device
    ) -> Callable[[list[int], int], None] | None:
        """Prepare a product [batch, rows, inner] by [batch, inner, columns]; None if unsupported.

        Returns:
            A function of the addresses of the components, contiguous, and of that of the partial
            sums, float64 [spec.state, batch, rows, columns], which it writes.
        """
        return None

    def rows(self, task: RowTask, shape: tuple[int, int], tensors: Sequence[Tensor]) -> bool:
        """Run a task of `mcf.kernels.row_tasks`, if the executor has a loop for it.

        Returns:
            False where it has none, and has done nothing.
        """
        return False

    def prepare_rows(
        self, task: RowTask, shape: tuple[int, int], device: torch.device
    ) -> Callable[[list[int]], None] | None:
        """Prepare a task on small rows as a function of addresses; return None if unsupported."""
        return None

    def add_digits(self, x: Tensor, exponent: Tensor, digits: Tensor, base: int) -> None:
        """Add numbers x 2**exponent to rows of digits, exactly.

        Args:
            x: float64 [M, k], all finite.
            exponent: integers [M, k].
            digits: int64 [M, n], contiguous; digit j counts 2**(32 j + base), and must be
                able to hold the sum.
            base: the exponent of digit 0.
        """
        fraction, e = torch.frexp(x)
        mantissa = (fraction * 2.0**53).long()
        place = (e + exponent).long() - 53 - base
        place = torch.where(mantissa == 0, 0, place)
        digit, shift = place >> 5, place & 31
        low = (mantissa & _MASK) << shift
        high = (mantissa >> DIGIT) << shift
        digits.scatter_add_(1, digit, low & _MASK)
        digits.scatter_add_(1, digit + 1, (low >> DIGIT) + (high & _MASK))
        digits.scatter_add_(1, digit + 2, high >> DIGIT)

    def picked(self, x: Sequence[Tensor], mask: Tensor) -> list[Tensor] | None:
        """Return the elements of tensors for which a mask of their shape holds, as vectors.

        Returns:
            None without a loop for them, or where a search for their indices is faster.
        """
        return None

    def replaced(
        self, x: Sequence[Tensor], mask: Tensor, source: Sequence[Tensor]
    ) -> list[Tensor] | None:
        """Return copies of tensors with a source's elements, in order, where a mask holds.

        Returns:
            None without a loop for them, or if the source has too few elements.
        """
        return None

    def square_sums(
        self, t: Tensor, first: Tensor, second: Tensor, high: int, low: int
    ) -> tuple[Tensor, Tensor]:
        """Return sums of squares as integers, which do not depend on the order of the elements.

        Split each (t first second)^2 into h 2**-high + l 2**-(high + low) + rest. The results are
        the sums of h (rounded down) and of l (rounded to nearest, ties to even).

        Args:
            t: a contiguous floating-point tensor.
            first: a power of two, float64 on the tensor's device.
            second: another power of two; with both, |t first second| < 1.
            high: an integer of at most 28.
            low: an integer of at most 30.

        Returns:
            Two zero-dimensional int64 tensors on the tensor's device.
        """
        total = [torch.zeros((), dtype=torch.int64, device=t.device) for _ in range(2)]
        for part in t.detach().reshape(-1).split(BLOCK.get(t.device.type, DEVICE_BLOCK)):
            x = part.to(torch.float64, copy=True).mul_(first).mul_(second)
            x = x.mul_(x).mul_(2.0**high)
            whole = x.floor()
            # Sums of at most 2**22 integers below 2**30: exact in float64.
            total[0] += whole.sum().long()
            total[1] += x.sub_(whole).mul_(2.0**low).round_().sum().long()
        return total[0], total[1]
