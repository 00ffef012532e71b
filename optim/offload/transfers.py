"""Copies between an accelerator and pinned memory, beside the work of both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Waits until a copy to the host is there.
Arrival = Callable[[], None]


class Transfers:
    """Copies on a stream of their own, which begin when the device's work so far is done.

    Where a device has no streams copies are made at once.
    """

    def __init__(self) -> None:
        """Streams are made for a device with its first copy."""
        self._streams: dict[torch.device, Any] = {}

    def is_away(self, p: Tensor) -> bool:
        """Whether a tensor is where the CPU does not compute."""
        return p.device.type != "cpu"

    def host_like(self, t: Tensor) -> Tensor:
        """Memory of the CPU for a tensor, in its layout; pinned where there are streams."""
        made = torch.empty_like(t, device="cpu", memory_format=torch.preserve_format)
        return made.pin_memory() if self._stream(t.device) is not None else made

    def download(self, there: Tensor, here: Tensor) -> Arrival:
        """Begin to copy a tensor of the device, which may be freed meanwhile."""
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
        """Begin to copy a tensor to the device; it is there for what follows `join`."""
        stream = self._stream(there.device)
        if stream is None:
            there.copy_(here)
            return
        of = torch.get_device_module(there.device)
        stream.wait_stream(of.current_stream(there.device))
        with of.stream(stream):
            there.copy_(here, non_blocking=True)

    def join(self) -> None:
        """Let what the devices do from now on come after all uploads; the host does not wait."""
        for device, stream in self._streams.items():
            if stream is not None:
                torch.get_device_module(device).current_stream(device).wait_stream(stream)

    def settle(self) -> None:
        """Wait until all copies are made, before the host writes what they read."""
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
