"""Copies between an accelerator and pinned memory, in parallel with the work of both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

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


def _nothing() -> None:
    pass
