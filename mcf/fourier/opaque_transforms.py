"""Transforms and their roots as opaque operators, which `torch.compile` leaves alone.

Tables of roots are kept from call to call, so nothing that only traces may make them: they would be
tensors without numbers, and kept ones mean nothing to a mode that has none.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from mcf.fourier import transform as _transforms
from mcf.fourier.unity_roots import roots
from mcf.kernels.components import Components

_library = torch.library.Library("mcf", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("fourier(Tensor[] x, int sign) -> Tensor[]")  # type: ignore[no-untyped-call]
_library.define("fourier_turns(Tensor[] like, int n, int sign) -> Tensor[]")  # type: ignore[no-untyped-call]


def _transform(x: list[Tensor], sign: int) -> list[Tensor]:
    found = _transforms.transform(tuple(x), sign)
    # Of one number it may be what was given.
    return [c.clone() if x[0].shape[1] == 1 else c.contiguous() for c in found]


def _transform_shapes(x: list[Tensor], sign: int) -> list[Tensor]:
    return [c.new_empty(2, *c.shape[1:]) for c in x]


@functools.lru_cache(maxsize=16)
def _kept_turns(n: int, sign: int, form: _transforms.Format) -> Components:
    cosine, sine = ([c[k, : n // 2 + 1, None] for c in roots(n, *form)] for k in (0, 1))
    parts = zip(sine, cosine, strict=True)
    return tuple(torch.stack((-s, c if sign > 0 else -c)) for s, c in parts)


def _turns(like: list[Tensor], n: int, sign: int) -> list[Tensor]:
    # Without a copy a graph might write to what is kept.
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
    """See `mcf.fourier.transform`."""
    return tuple(torch.ops.mcf.fourier(list(x), sign))


def turns(like: Sequence[Tensor], n: int, sign: int) -> Components:
    """sign i exp(sign 2 pi i k / n) for k = 0 ... n / 2, [2, n / 2 + 1, 1], as `like`'s format."""
    return tuple(torch.ops.mcf.fourier_turns(list(like), n, sign))
