"""The opaque operator that runs a registered kernel on tensors; `torch.compile` leaves it alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mcf.kernels import registry
from mcf.kernels.elementwise import Elementwise

_kernels: dict[str, Elementwise] = {}


def registered(spec: Elementwise) -> Elementwise:
    """Register a kernel so that `update_` finds it; return the kernel."""
    _kernels[f"{spec.name}_{spec.serial}"] = spec
    return spec


_library = torch.library.Library("mcf", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(  # type: ignore[no-untyped-call]
    "update_(str kernel, Tensor(a!)[] written, Tensor[] read, Tensor scalars, "
    "Tensor? live=None, int[] first=[]) -> Tensor"
)


def _update(
    name: str,
    written: list[Tensor],
    read: list[Tensor],
    scalars: Tensor,
    live: Tensor | None = None,
    first: Sequence[int] = (),
) -> Tensor:
    spec = _kernels[name]
    sources = {True: iter(written), False: iter(read)}
    rows = [[next(sources[f.written]) for f in spec.fields] for _ in range(scalars.shape[0])]
    sums = registry.run(spec, rows, scalars, live, first)
    if sums is None:
        sums = written[0].new_empty((scalars.shape[0], 0), dtype=torch.float64)
    return sums


def _fake(
    name: str,
    written: list[Tensor],
    read: list[Tensor],
    scalars: Tensor,
    live: Tensor | None = None,
    first: Sequence[int] = (),
) -> Tensor:
    count = _kernels[name].sum_count
    return written[0].new_empty((scalars.shape[0], count), dtype=torch.float64)


_library.impl("update_", _update, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
torch.library.register_fake("mcf::update_", _fake, lib=_library)


def update_(
    spec: Elementwise,
    rows: Sequence[Sequence[Tensor]],
    scalars: Tensor,
    live: Tensor | None = None,
    first: Sequence[int] = (),
) -> Tensor:
    """Step every row of tensors in place in one opaque operator (`mcf.kernels.registry.run`).

    Returns:
        The metrics' sums, float64 of shape [len(rows), spec.sum_count], on the rows' device.
    """
    written = [t for row in rows for f, t in zip(spec.fields, row, strict=True) if f.written]
    read = [t for row in rows for f, t in zip(spec.fields, row, strict=True) if not f.written]
    sums: Tensor = torch.ops.mcf.update_(
        f"{spec.name}_{spec.serial}", written, read, scalars, live, list(first)
    )
    torch.autograd.graph.increment_version(written)
    return sums
