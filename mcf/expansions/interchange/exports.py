"""Methods that export values as other types of numbers."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mcf.convert import export

# `tolist` adds the components of up to this number of elements one by one.
_FEW = 32


class Exports:
    """Conversion of an `MCFTensor` to Fractions, mpmath numbers, NumPy arrays, plain tensors."""

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
        if self.requires_grad and torch.is_grad_enabled() and not force:
            raise RuntimeError("numpy of a tensor that requires grad; use x.detach().numpy()")
        out = export.array(self.components, np.float64 if dtype is None else dtype)
        if dtype is None:
            rest = self.detach() - torch.from_numpy(out).to(self.device)
            if np.any(export.array(rest.components, np.float64)[np.isfinite(out)]):
                raise ValueError(
                    "numpy: float64 does not hold these values; pass dtype=numpy.float64 or "
                    "numpy.longdouble to round to nearest, dtype=object for exact Fractions"
                )
        return out

    def __array__(
        self: Any, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        """Implement `np.asarray(x)`: the `dtype`, else float64 if exact, else exact Fractions."""
        if copy is False:
            raise ValueError("an array of an expansion tensor is always a copy")
        try:
            return self.numpy(dtype)  # type: ignore[no-any-return]
        except ValueError:
            # Round only on request.
            return export.array(self.components, object)

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
