"""Parameters and gradients on their way between an accelerator and the CPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from mcf.optim.parameters import randomness
from mcf.optim.parameters.expansions import is_expansion
from mcf.optim.sharding.shards import is_sharded
from mcf.optim.step import rewritten

# A function that waits until a copy to the CPU has arrived.
Arrival = Callable[[], None]


class Transfers:
    """Copies on their own stream, which begin when the device's work so far is done.

    If a device has no streams, copies are synchronous.
    """

    def __init__(self) -> None:
        """Begin without streams; a device's stream is created with its first copy."""
        self._streams: dict[torch.device, Any] = {}

    def is_away(self, p: Tensor) -> bool:
        """Return whether a tensor is on a device other than the CPU."""
        return p.device.type != "cpu"

    def host_like(self, t: Tensor) -> Tensor:
        """Return CPU memory for a tensor, in its layout; pinned if there are streams."""
        made = torch.empty_like(t, device="cpu", memory_format=torch.preserve_format)
        return made.pin_memory() if self._stream(t.device) is not None else made

    def download(self, there: Tensor, here: Tensor) -> Arrival:
        """Begin to copy a tensor from the device; the tensor may be freed meanwhile."""
        stream = self._stream(there.device)
        if stream is None:
            here.copy_(there)
            return _nothing
        of = torch.get_device_module(there.device)
        stream.wait_stream(of.current_stream(there.device))
        with of.stream(stream):
            here.copy_(there, non_blocking=True)
            event = of.Event()
            event.record(stream)
        there.record_stream(stream)
        arrived: Arrival = event.synchronize
        return arrived

    def upload(self, here: Tensor, there: Tensor) -> None:
        """Begin to copy a tensor to the device; work after `join` finds it there."""
        stream = self._stream(there.device)
        if stream is None:
            there.copy_(here)
            return
        of = torch.get_device_module(there.device)
        stream.wait_stream(of.current_stream(there.device))
        with of.stream(stream):
            there.copy_(here, non_blocking=True)

    def join(self) -> None:
        """Make later work of the devices wait for all uploads; the CPU does not wait."""
        for device, stream in self._streams.items():
            if stream is not None:
                torch.get_device_module(device).current_stream(device).wait_stream(stream)

    def settle(self) -> None:
        """Wait until all copies are done, before the CPU writes to their sources."""
        for stream in self._streams.values():
            if stream is not None:
                stream.synchronize()

    def _stream(self, device: torch.device) -> Any:
        if device not in self._streams:
            of = torch.get_device_module(device) if device.type != "cpu" else None
            made = getattr(of, "Stream", None)
            self._streams[device] = None if made is None else made(device)
        return self._streams[device]


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
