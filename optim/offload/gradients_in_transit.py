"""Gradients on their way from an accelerator to the CPU."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from mcf.optim.offload.transfers import Arrival, Transfers
from mcf.optim.step import rewritten


@dataclasses.dataclass
class _Parts:
    """The gradients of one parameter that are on their way or have arrived.

    Args:
        parts: gradients not yet added up: the destination of each, and the function that waits for
            it.
        source: the gradient that was last sent, and its version then; None if it was freed.
    """

    parts: list[tuple[Tensor, Arrival]] = dataclasses.field(default_factory=list)
    source: tuple[Tensor, int] | None = None


class Travelling:
    """Gradients of parameters on their way to the CPU, or there, in the order of their arrival.

    Attributes:
        freed: whether each gradient is freed on the accelerator after it was sent. The CPU then
            adds up the gradients of further backward passes; otherwise the accelerator does, and
            sends the sum again.
    """

    def __init__(self, transfers: Transfers, freed: bool) -> None:
        """Begin with no gradient on its way."""
        self.freed = freed
        self._transfers = transfers
        self._parts: dict[Tensor, _Parts] = {}
        # Memory to reuse for further gradients.
        self._free: dict[Tensor, list[Tensor]] = {}

    @property
    def params(self) -> list[Tensor]:
        """The parameters whose gradients are on their way, the first to arrive first."""
        return list(self._parts)

    def hook(self, p: Tensor) -> None:
        """Send a parameter's gradient, when backward has computed it."""
        with torch.no_grad():
            self._send(p)

    def update(self, p: Tensor) -> None:
        """Send a parameter's gradient, unless its present value is already on its way."""
        found, grad = self._parts.get(p), p.grad
        if grad is None:
            if not self.freed:
                # It was set to None since the backward pass.
                self.used(p)
            return
        source = found.source if found is not None else None
        if source is None or source[0] is not grad or source[1] != rewritten.version(grad):
            self._send(p)

    def arrived(self, p: Tensor) -> Tensor:
        """Return a parameter's gradient, after all of it has arrived."""
        self._add(p)
        [(grad, arrival)] = self._parts[p].parts
        arrival()
        return grad

    def used(self, p: Tensor) -> None:
        """Release the gradients of a parameter that were used or are not needed."""
        found = self._parts.pop(p, None)
        if found is not None:
            self._free[p] += [here for here, _ in found.parts]

    def forget(self) -> None:
        """Release all gradients."""
        self._transfers.settle()
        for p in self.params:
            self.used(p)

    def _send(self, p: Tensor) -> None:
        grad = p.grad
        assert grad is not None
        if grad.is_sparse:
            raise TypeError(
                f"a parameter of shape {list(p.shape)} has a sparse gradient; allowed are dense"
            )
        if not self.freed:
            # The whole sum again, at the destination of the previous one: copies keep their order.
            self.used(p)
        found = self._parts.pop(p, None) or _Parts()
        self._parts[p] = found
        free = self._free.setdefault(p, [])
        fits = [t for t in free if t.dtype == grad.dtype and t.stride() == grad.stride()]
        here = fits[0] if fits else self._transfers.host_like(grad)
        self._free[p] = [t for t in free if t is not here]
        found.parts.append((here, self._transfers.download(grad, here)))
        if self.freed:
            p.grad = None
            # The last one is still on its way.
            self._add(p, 2)
        else:
            found.source = grad, rewritten.version(grad)

    def _add(self, p: Tensor, leave: int = 1) -> None:
        """Add up gradients that have arrived, as the accelerator would."""
        parts = self._parts[p].parts
        while len(parts) > leave:
            (first, arrival), (second, other) = parts[:2]
            arrival()
            other()
            first += second
            parts[:2] = [(first, _nothing)]
            self._free[p].append(second)


def _nothing() -> None:
    pass
