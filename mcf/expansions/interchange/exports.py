"""Methods that give the values as other types of numbers."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mcf.convert import export

# Up to so many numbers are added up one by one.
_FEW = 32


class Exports:
    """Conversion of an `MCFTensor` to Fractions, mpmath numbers, NumPy arrays, plain tensors."""

    def _plain_components(self: Any, what: str) -> tuple[Tensor, ...]:
        if self.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(f"{what} of a tensor that requires grad; use x.detach().{what}()")
        components: tuple[Tensor, ...] = self.components
        return components

    def to_fractions(self: Any) -> Any:
        """Nested lists of Fractions, exact; infinities, NaN and -0 are floats."""
        return export.nested(export.fractions(self.components), self.shape)

    def to_mpmath(self: Any) -> Any:
        """Nested lists of mpmath numbers, exact whatever `mpmath.mp.prec` is."""
        make = export.mpmath_number()
        return export.nested([make(x) for x in export.fractions(self.components)], self.shape)

    @property
    def _mpmath_(self: Any) -> Any:
        """Let `mpmath.mpf(x)` take a tensor of one element, rounded once to mpmath's precision.

        mpmath asks for this name also where a tensor is an operand (`mpf + x`); there the result
        has to be a tensor, so the name is not there for anyone but the constructor.
        """
        if sys._getframe(1).f_code.co_name != "mpf_convert_arg":
            raise AttributeError("_mpmath_")
        if self.numel() != 1:
            raise TypeError(
                f"mpmath.mpf takes a tensor of one element, got one of shape {list(self.shape)}; "
                "x.to_mpmath() gives nested lists"
            )
        number = self.detach().reshape(()).to_mpmath()
        return lambda prec, rounding: number

    def numpy(
        self: Any, dtype: npt.DTypeLike | None = None, *, force: bool = False
    ) -> npt.NDArray[Any]:
        """A new NumPy array.

        Args:
            dtype: float16, float32, float64 or longdouble: rounded once to nearest; object: exact
                Fractions. None gives float64 where that is exact and an error elsewhere.
            force: also for a tensor that requires grad.

        Raises:
            ValueError: without `dtype`, if float64 does not hold every value.
        """
        components = self.components if force else self._plain_components("numpy")
        if dtype is not None:
            return export.array(components, dtype)
        held: npt.NDArray[Any] | None = self._as_float64(components)
        if held is None:
            raise ValueError(
                "numpy: float64 does not hold these values; give dtype=numpy.float64 or "
                "numpy.longdouble to round to nearest, dtype=object for exact Fractions"
            )
        return held

    def _as_float64(self: Any, components: tuple[Tensor, ...]) -> npt.NDArray[Any] | None:
        """The values where float64 holds them all."""
        out = export.array(components, np.float64)
        rest = export.array(
            (self.detach() - torch.from_numpy(out).to(self.device)).components, np.float64
        )
        exact = not np.any(rest[np.isfinite(out)])
        return out if exact else None

    def __array__(
        self: Any, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        """`np.asarray(x)`: float64 where that is exact, else exact Fractions; or the `dtype`."""
        if copy is False:
            raise ValueError("an array of an expansion tensor is always a copy")
        if dtype is None:
            # Nothing is rounded that was not asked to be.
            held: npt.NDArray[Any] | None = self._as_float64(self._plain_components("numpy"))
            return export.array(self.components, object) if held is None else held
        out: npt.NDArray[Any] = self.numpy(dtype)
        return out

    def to_numpy(self: Any, dtype: npt.DTypeLike = np.float64) -> npt.NDArray[Any]:
        """A new NumPy array, each number rounded once to nearest, of what is detached.

        Plots, `plt.plot(x)` among them, take this.

        Args:
            dtype: float16, float32, float64, longdouble, or object for exact Fractions.
        """
        return export.array(self.detach().components, dtype)

    def __dlpack__(self: Any, **options: Any) -> Any:
        raise NotImplementedError(
            "DLPack exchanges one memory, an expansion tensor has several; use x.components"
        )

    def storage(self: Any) -> Any:
        """Refused: each component has a storage."""
        raise NotImplementedError("an expansion tensor has no storage of its own; use x.components")

    def tolist(self: Any) -> Any:
        """Nested lists of Python floats, each rounded to nearest; see `to_fractions`."""
        parts = self.components
        found = export.few_floats(parts) if parts[0].numel() <= _FEW else None
        flat = export.array(parts, np.float64).ravel().tolist() if found is None else found
        return export.nested(flat, parts[0].shape)
