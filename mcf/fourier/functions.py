"""Compute `torch.fft` of expansion tensors, real and complex.

A real sequence of even length n = 2m is transformed as a complex one of length m. With z_j = x_2j +
i x_(2j+1), Z its transform, Z_m = Z_0 and w = exp(-2 pi i / n) the transform of x begins with X_k =
(Z_k + conj(Z_(m-k)) - i w^k (Z_k - conj(Z_(m-k)))) / 2, k = 0 ... m; and back, 2 Z_k = X_k +
conj(X_(m-k)) + i w^-k (X_k - conj(X_(m-k))).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import torch

from mcf.complexes.tensor import MCFComplexTensor, gradient, implements, pair
from mcf.expansions.creation import tensor
from mcf.expansions.dispatch import registry
from mcf.expansions.tensor import wrap
from mcf.fourier.transform import opaque_transform, turns
from mcf.kernels.components import Components

# From this length on the shorter transform and its postprocessing are faster than the full one.
HALVED = 4096

# A transform of [m, columns] with exp(sign 2 pi i / m).
Transform = Callable[[Any, Any, int], tuple[Any, Any]]


def halved(n: int) -> bool:
    """Return whether a real sequence of this length is transformed as a complex one."""
    return n % 2 == 0 and n >= HALVED


def _turns(n: int, sign: int, like: Components) -> Any:
    """Return sign i exp(sign 2 pi i k / n) for k = 0 ... n / 2, as a column, rounded once."""
    found = turns(list(like), n, sign)
    return pair(*(wrap([c[k] for c in found]) for k in (0, 1)))


def _mixed(z: Any, n: int, sign: int) -> Any:
    """Return z_k + conj(z_(m-k)) + sign i w (z_k - conj(z_(m-k))) for k = 0 ... m."""
    mirror = torch.conj(torch.flip(z, (0,)))
    part = (z - mirror) * _turns(n, sign, z.real.components)
    return (z + mirror) + part


def forward_halves(x: Any, transform: Transform) -> Any:
    """Return the first m + 1 numbers of the transform of x [n, columns]."""
    n, columns = x.shape
    real, imag = (p.contiguous() for p in x.reshape(n // 2, 2, columns).unbind(1))
    found: Any = pair(*transform(real, imag, -1))
    whole: Any = torch.cat((found, found[:1]))
    return _mixed(whole, n, -1) * 0.5


def backward_halves(x: Any, n: int, transform: Transform) -> Any:
    """Return n times the real [n, columns] whose transform begins with x [m + 1, columns]."""
    zero = torch.zeros_like(x.imag[:1])
    # The first and the last number have no imaginary part.
    z = pair(x.real, torch.cat((zero, x.imag[1:-1], zero)))
    both = _mixed(z, n, 1)[:-1]
    real, imag = transform(both.real.contiguous(), both.imag.contiguous(), 1)
    whole: Any = torch.stack((real, imag), 1)
    return whole.reshape(n, x.shape[1])


# The `norm` argument of the inverse direction that has the same scale.
_SWAPPED = {None: "forward", "backward": "forward", "forward": "backward", "ortho": "ortho"}


class _Transform(torch.autograd.Function):
    """Differentiable Fourier transform of [n, columns]; imag is None for real input."""

    @staticmethod
    def forward(ctx: Any, real: Any, imag: Any, sign: int) -> Any:
        ctx.sign, ctx.is_real = sign, imag is None
        ctx.set_materialize_grads(False)
        parts = (real,) if imag is None else (real, imag)
        stacked = [torch.stack(p) for p in zip(*(v.components for v in parts), strict=True)]
        found = opaque_transform(stacked, sign)
        return wrap([c[0] for c in found]), wrap([c[1] for c in found])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        # The conjugate transpose of the matrix has the other sign.
        g = gradient(grads)
        real, imag = _Transform.apply(g.real, g.imag, -ctx.sign)  # type: ignore[no-untyped-call]
        return real, None if ctx.is_real else imag, None


def _parts(x: Any) -> tuple[Any, Any]:
    return (x.real, x.imag) if isinstance(x, MCFComplexTensor) else (x, None)


def _along(x: Any, n: int | None, dim: int, sign: int) -> MCFComplexTensor:
    """Return the transform along a dimension of x, cut or padded with zeros to n."""
    count = _length(x, n, dim)
    real, imag = (None if p is None else _sized(p.movedim(dim, 0), count) for p in _parts(x))
    assert real is not None
    shape = real.shape
    columns = [None if p is None else p.reshape(count, -1) for p in (real, imag)]
    found = _Transform.apply(*columns, sign)  # type: ignore[no-untyped-call]
    return MCFComplexTensor(*(p.reshape(shape).movedim(0, dim) for p in found))


def _length(x: Any, n: int | None, dim: int) -> int:
    """Return n, or the size of the dimension if n is None."""
    if not -max(1, x.ndim) <= dim < max(1, x.ndim):
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-x.ndim}, {x.ndim - 1}], but "
            f"got {dim})"
        )
    count: int = x.shape[dim] if n is None else n
    if count < 1:
        raise RuntimeError(f"Invalid number of data points ({count}) specified")
    return count


def _sized(x: Any, count: int) -> Any:
    """Return the first `count` elements of a dimension, padded with zeros."""
    have = x.shape[0]
    if have >= count:
        return x[:count]
    return torch.cat((x, torch.zeros_like(x[:1]).expand(count - have, *x.shape[1:])))


@functools.cache
def _root(count: int) -> Fraction:
    """Return 1 / sqrt(count) to 500 bits."""
    return Fraction(1, 1) / Fraction(math.isqrt(count << 1000), 1 << 500)


def _scaled(z: Any, count: int, norm: str | None, inverse: bool) -> Any:
    """Return z over count, over its root, or unchanged."""
    if norm not in _SWAPPED:
        raise RuntimeError(
            f'Invalid normalization mode: "{norm}"; use "backward", "forward" or "ortho"'
        )
    if norm == "ortho":
        real = z.real if isinstance(z, MCFComplexTensor) else z
        return z * tensor(_root(count), real.terms, real.dtype, real.device)
    return z / count if (norm == "forward") != inverse else z


def _dims(x: Any, s: Sequence[int] | None, dim: Any) -> tuple[list[int], list[int | None]]:
    """Return the dimensions, counted from the first, and the lengths wanted for them."""
    if isinstance(dim, int):
        dim = (dim,)
    if dim is None:
        dim = range(x.ndim) if s is None else range(x.ndim - len(s), x.ndim)
    dims = [d % x.ndim if -x.ndim <= d < x.ndim else d for d in dim]
    for d in dims:
        if not 0 <= d < x.ndim:
            raise IndexError(f"Dimension out of range: {d} of a tensor of {x.ndim} dimensions")
    if len(set(dims)) != len(dims):
        raise RuntimeError(f"FFT dims must be unique, got {list(dim)}")
    if s is not None and len(s) != len(dims):
        raise RuntimeError(
            f"When given, dim and shape arguments must have the same length, got dim {list(dim)} "
            f"and s {list(s)}"
        )
    return dims, [None if n == -1 else n for n in s] if s is not None else [None] * len(dims)


def _count(x: Any, dims: Sequence[int], lengths: Sequence[int | None]) -> int:
    return math.prod(x.shape[d] if n is None else n for d, n in zip(dims, lengths, strict=True))


def fft(x: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Any:
    """Compute `torch.fft.fft`; the 2-norm error is `mcf.bound("fft", terms, dtype, count=n)`."""
    z = _along(x, n, dim, -1)
    return _scaled(z, z.shape[dim], norm, False)


def ifft(x: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Any:
    """Compute `torch.fft.ifft`."""
    z = _along(x, n, dim, 1)
    return _scaled(z, z.shape[dim], norm, True)


def _real_only(x: Any, name: str) -> None:
    if isinstance(x, MCFComplexTensor):
        raise RuntimeError(f"{name} expects a real input tensor, but got complex expansions")


def rfft(x: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Any:
    """Compute `torch.fft.rfft`: the first n / 2 + 1 numbers of the transform of a real sequence.

    The error is `mcf.bound("rfft", terms, dtype, count=n)` in the 2-norm of the whole spectrum.
    """
    _real_only(x, "rfft")
    count = _length(x, n, dim)
    if not halved(count):
        z = fft(x, n, dim, norm)
        return z.narrow(dim, 0, z.shape[dim] // 2 + 1)
    real = _sized(x.movedim(dim, 0), count)
    found = forward_halves(real.reshape(count, -1), _Transform.apply)
    found = found.reshape(count // 2 + 1, *real.shape[1:]).movedim(0, dim)
    return _scaled(found, count, norm, False)


def irfft(x: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Any:
    """Compute `torch.fft.irfft`; like PyTorch it ignores the imaginary part of the first number."""
    return _scaled(*_halved(x, n, dim), norm, True)


def _halved(x: Any, n: int | None, dim: int) -> tuple[Any, int]:
    """Return n times the real sequence whose transform begins with x, and n."""
    count = 2 * (x.shape[dim] - 1) if n is None else n
    if count < 1:
        raise RuntimeError(f"Invalid number of data points ({count}) specified")
    real, imag = (None if p is None else p.movedim(dim, 0) for p in _parts(x))
    real = _sized(real, count // 2 + 1)
    imag = torch.zeros_like(real) if imag is None else _sized(imag, count // 2 + 1)
    if halved(count):
        z = pair(*(p.reshape(len(p), -1) for p in (real, imag)))
        found = backward_halves(z, count, _Transform.apply)
        return found.reshape(count, *real.shape[1:]).movedim(0, dim), count
    tail = slice(1, (count + 1) // 2)
    whole = MCFComplexTensor(
        torch.cat((real, real[tail].flip(0))),  # type: ignore[arg-type]
        torch.cat((imag, -imag[tail].flip(0))),  # type: ignore[arg-type]
    )
    return _along(whole, None, 0, 1).real.movedim(0, dim), count


def hfft(x: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Any:
    """Compute `torch.fft.hfft`: the real transform of a sequence whose second half is conjugate."""
    return irfft(x.conj(), n, dim, _SWAPPED.get(norm, norm))


def ihfft(x: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Any:
    """Compute `torch.fft.ihfft`."""
    return torch.conj(rfft(x, n, dim, _SWAPPED.get(norm, norm)))


def _several(x: Any, s: Any, dim: Any, norm: str | None, sign: int) -> Any:
    """Return the transform over several dimensions, the last one first."""
    dims, lengths = _dims(x, s, dim)
    count = _count(x, dims, lengths)
    for d, n in zip(reversed(dims), reversed(lengths), strict=True):
        x = _along(x, n, d, sign)
    return _scaled(x, count, norm, sign > 0)


def fftn(x: Any, s: Any = None, dim: Any = None, norm: str | None = None) -> Any:
    """Compute `torch.fft.fftn`."""
    return _several(x, s, dim, norm, -1)


def ifftn(x: Any, s: Any = None, dim: Any = None, norm: str | None = None) -> Any:
    """Compute `torch.fft.ifftn`."""
    return _several(x, s, dim, norm, 1)


def rfftn(x: Any, s: Any = None, dim: Any = None, norm: str | None = None) -> Any:
    """Compute `torch.fft.rfftn`."""
    _real_only(x, "rfftn")
    dims, lengths = _dims(x, s, dim)
    count = _count(x, dims, lengths)
    z = rfft(x, lengths[-1], dims[-1])
    for d, n in zip(reversed(dims[:-1]), reversed(lengths[:-1]), strict=True):
        z = _along(z, n, d, -1)
    return _scaled(z, count, norm, False)


def irfftn(x: Any, s: Any = None, dim: Any = None, norm: str | None = None) -> Any:
    """Compute `torch.fft.irfftn`."""
    dims, lengths = _dims(x, s, dim)
    last = 2 * (x.shape[dims[-1]] - 1) if lengths[-1] is None else lengths[-1]
    count = _count(x, dims, [*lengths[:-1], last])
    for d, n in zip(dims[:-1], lengths[:-1], strict=True):
        x = _along(x, n, d, 1)
    found, _ = _halved(x, last, dims[-1])
    return _scaled(found, count, norm, True)


def hfftn(x: Any, s: Any = None, dim: Any = None, norm: str | None = None) -> Any:
    """Compute `torch.fft.hfftn`."""
    return irfftn(x.conj(), s, dim, _SWAPPED.get(norm, norm))


def ihfftn(x: Any, s: Any = None, dim: Any = None, norm: str | None = None) -> Any:
    """Compute `torch.fft.ihfftn`."""
    return torch.conj(rfftn(x, s, dim, _SWAPPED.get(norm, norm)))


def _over_two(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a transform with the last two dimensions as its default."""

    def call(x: Any, s: Any = None, dim: Any = (-2, -1), norm: str | None = None) -> Any:
        return function(x, s, dim, norm)

    return call


FUNCTIONS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (fft, ifft, rfft, irfft, hfft, ihfft, fftn, ifftn, rfftn, irfftn, hfftn, ihfftn)
}
for _name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"):
    FUNCTIONS[f"{_name}2"] = _over_two(FUNCTIONS[f"{_name}n"])
for _name, _function in FUNCTIONS.items():
    registry.implements(getattr(torch.fft, _name))(_function)
    implements(f"fft_{_name}")(_function)
