"""Methods that export values as other types of numbers."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mcf.convert import export

# `tolist` adds the components of up to this number of elements one by one.
_FEW = 32


class Exports:
    """Conversion of an `MCFTensor` to Fractions, mpmath numbers, NumPy arrays, plain tensors."""

    def _plain_components(self: Any, what: str) -> tuple[Tensor, ...]:
        if self.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(f"{what} of a tensor that requires grad; use x.detach().{what}()")
        components: tuple[Tensor, ...] = self.components
        return components

    def to_fractions(self: Any) -> Any:
        """Return nested lists of exact Fractions; infinities, NaN and -0 are floats."""
        return export.nested(export.fractions(self.components), self.shape)

    def to_mpmath(self: Any) -> Any:
        """Return nested lists of mpmath numbers, exact for any `mpmath.mp.prec`."""
        make = export.mpmath_number()
        return export.nested([make(x) for x in export.fractions(self.components)], self.shape)

    @property
    def _mpmath_(self: Any) -> Any:
        """Let `mpmath.mpf(x)` take a tensor of one element, rounded once to mpmath's precision.

        mpmath also looks up this name where a tensor is an operand (`mpf + x`). There the result
        must be a tensor, so only the constructor sees the attribute.
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
        """Return a new NumPy array.

        Args:
            dtype: float16, float32, float64 or longdouble: rounded once to nearest; object: exact
                Fractions. None gives float64 if that is exact, and an error otherwise.
            force: also accept a tensor that requires grad.

        Raises:
            ValueError: without `dtype`, if float64 does not hold every value.
        """
        components = self.components if force else self._plain_components("numpy")
        if dtype is not None:
            return export.array(components, dtype)
        held: npt.NDArray[Any] | None = self._as_float64(components)
        if held is None:
            raise ValueError(
                "numpy: float64 does not hold these values; pass dtype=numpy.float64 or "
                "numpy.longdouble to round to nearest, dtype=object for exact Fractions"
            )
        return held

    def _as_float64(self: Any, components: tuple[Tensor, ...]) -> npt.NDArray[Any] | None:
        """Return the values as float64, or None if one is not exact."""
        out = export.array(components, np.float64)
        rest = export.array(
            (self.detach() - torch.from_numpy(out).to(self.device)).components, np.float64
        )
        exact = not np.any(rest[np.isfinite(out)])
        return out if exact else None

    def __array__(
        self: Any, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        """Implement `np.asarray(x)`: the `dtype`, else float64 if exact, else exact Fractions."""
        if copy is False:
            raise ValueError("an array of an expansion tensor is always a copy")
        if dtype is None:
            # Round only on request.
            held: npt.NDArray[Any] | None = self._as_float64(self._plain_components("numpy"))
            return export.array(self.components, object) if held is None else held
        out: npt.NDArray[Any] = self.numpy(dtype)
        return out

    def to_numpy(self: Any, dtype: npt.DTypeLike = np.float64) -> npt.NDArray[Any]:
        """Return a new NumPy array of the detached values, each rounded once to nearest.

        Plotting libraries call it, as in `plt.plot(x)`.

        Args:
            dtype: float16, float32, float64, longdouble, or object for exact Fractions.
        """
        return export.array(self.detach().components, dtype)

    def __dlpack__(self: Any, **options: Any) -> Any:
        raise NotImplementedError(
            "DLPack exchanges one buffer, an expansion tensor has several; use x.components"
        )

    def storage(self: Any) -> Any:
        """Refuse the call, since each component has its own storage."""
        raise NotImplementedError("an expansion tensor has no storage of its own; use x.components")

    def tolist(self: Any) -> Any:
        """Return nested lists of Python floats, rounded to nearest; `to_fractions` is exact."""
        parts = self.components
        found = export.few_floats(parts) if parts[0].numel() <= _FEW else None
        flat = export.array(parts, np.float64).ravel().tolist() if found is None else found
        return export.nested(flat, parts[0].shape)
