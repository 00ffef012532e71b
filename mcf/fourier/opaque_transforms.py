"""Register transforms and their roots as opaque operators, which `torch.compile` does not trace.

Tables of roots are cached between calls, so tracing must not create them: it would cache tensors
without numbers, which are invalid outside the tracing mode.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from mcf.fourier import transform as _transforms
from mcf.fourier.transform import roots
from mcf.kernels.components import Components

_library = torch.library.Library("mcf", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("fourier(Tensor[] x, int sign) -> Tensor[]")  # type: ignore[no-untyped-call]
_library.define("fourier_turns(Tensor[] like, int n, int sign) -> Tensor[]")  # type: ignore[no-untyped-call]


def _transform(x: list[Tensor], sign: int) -> list[Tensor]:
    found = _transforms.transform(tuple(x), sign)
    # A transform of length 1 may return its argument, so it must be copied.
    return [c.clone() if x[0].shape[1] == 1 else c.contiguous() for c in found]


def _transform_shapes(x: list[Tensor], sign: int) -> list[Tensor]:
    return [c.new_empty(2, *c.shape[1:]) for c in x]


@functools.lru_cache(maxsize=16)
def _kept_turns(n: int, sign: int, form: _transforms.Format) -> Components:
    cosine, sine = ([c[k, : n // 2 + 1, None] for c in roots(n, *form)] for k in (0, 1))
    parts = zip(sine, cosine, strict=True)
    return tuple(torch.stack((-s, c if sign > 0 else -c)) for s, c in parts)


def _turns(like: list[Tensor], n: int, sign: int) -> list[Tensor]:
    # Copy, since a CUDA graph might write to the cached tensors.
    form = like[0].dtype, len(like), like[0].device
    return [c.clone() for c in _kept_turns(n, sign, form)]


def _turns_shapes(like: list[Tensor], n: int, sign: int) -> list[Tensor]:
    return [c.new_empty(2, n // 2 + 1, 1) for c in like]


for _name, _run, _fake in (
    ("fourier", _transform, _transform_shapes),
    ("fourier_turns", _turns, _turns_shapes),
):
    _library.impl(_name, _run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"mcf::{_name}", _fake, lib=_library)


def transform(x: Sequence[Tensor], sign: int) -> Components:
    """Transform as one operator; see `mcf.fourier.transform`."""
    return tuple(torch.ops.mcf.fourier(list(x), sign))


def turns(like: Sequence[Tensor], n: int, sign: int) -> Components:
    """Return sign i exp(sign 2 pi i k / n), k = 0 ...

    n / 2, as [2, n / 2 + 1, 1] in `like`'s format.
    """
    return tuple(torch.ops.mcf.fourier_turns(list(like), n, sign))
