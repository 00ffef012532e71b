"""The CPU's copies of an accelerator's parameters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from mcf.optim.offload.transfers import Transfers
from mcf.optim.parameters import randomness
from mcf.optim.parameters.expansions import is_expansion
from mcf.optim.sharding.shards import is_sharded
from mcf.optim.step import rewritten


class Copies:
    """Parameters on the CPU, each a copy of one on another device.

    Attributes:
        of: the copy of each parameter that has one.
    """

    def __init__(self, transfers: Transfers, minimal_size: int) -> None:
        """Begin without copies; parameters with fewer than `minimal_size` elements get none."""
        self.of: dict[Tensor, Parameter] = {}
        self._transfers, self._minimal_size = transfers, minimal_size
        # The `mark` of each parameter when it and its copy were last equal.
        self._left: dict[Tensor, tuple[int, int]] = {}

    def stepped(self, given: Any) -> Any:
        """Return the tensor to step for a parameter, or for a name and one: its copy, or itself.

        Raises:
            TypeError: for DTensors and expansion tensors.
        """
        if isinstance(given, tuple):
            return given[0], self.stepped(given[1])
        p = given
        if not isinstance(p, Tensor):
            return p
        if is_sharded(p) or is_expansion(p):
            what = "a DTensor" if is_sharded(p) else "an expansion tensor"
            where = f"a parameter of shape {list(p.shape)}"
            raise TypeError(f"{where} is {what}; allowed are plain tensors")
        small = p.numel() < self._minimal_size or not p.is_floating_point()
        if small or not p.requires_grad or not self._transfers.is_away(p):
            return p
        if p not in self.of:
            host = self._transfers.host_like(p.detach())
            host.copy_(p.detach())
            self.of[p] = Parameter(host)
            self._left[p] = rewritten.mark(p)
            randomness.mark_as(self.of[p], p)
        return self.of[p]

    def drop(self, kept: Iterable[Tensor]) -> None:
        """Drop the copies of all other parameters."""
        some = set(kept)
        self.of = {p: host for p, host in self.of.items() if p in some}

    def send_back(self, p: Tensor) -> None:
        """Begin to send back a copy that was stepped."""
        self._transfers.upload(self.of[p].detach(), p)
        self._left[p] = rewritten.mark(p)

    def follow(self, params: Iterable[Tensor], *, anyway: bool = False) -> None:
        """Copy the weights that other code wrote, or all of them, to the CPU."""
        written = [p for p in params if anyway or self._left.get(p) != rewritten.mark(p)]
        if written:
            self._transfers.settle()
        for p in written:
            with torch.no_grad():
                self.of[p].copy_(p)
            self._left[p] = rewritten.mark(p)
