"""What a strategy costs: bytes stored, peak memory, time of the optimizer's step."""

from __future__ import annotations

import ctypes
import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_M_MMAP_THRESHOLD = -3  # malloc.h


def stored_bytes(optimizer: Optimizer) -> int:
    """Bytes that live from step to step: parameters, gradients and every state tensor.

    Counted on the tensors themselves. Call it after a backward pass and a step.
    """
    tensors: list[Tensor] = []
    for group in optimizer.param_groups:
        for weight in group["params"]:
            tensors += [weight, weight.grad] if weight.grad is not None else [weight]
            tensors += [x for x in optimizer.state[weight].values() if isinstance(x, Tensor)]
    return sum(x.numel() * x.element_size() for x in tensors)


def peak_bytes(work: Callable[[], None], device: torch.device) -> int | None:
    """Growth of memory while `work` runs, in bytes; None where it cannot be known.

    On a GPU it is the allocator's peak of allocated bytes. On Linux it is how far the peak of the
    process's resident memory (VmHWM) rises after a reset through /proc/self/clear_refs, which sets
    it to what is resident then. Elsewhere that peak cannot be reset, and there is no number.

    Resident memory is not memory in use. It misses what `work` takes from pages that were resident
    and free: those that glibc keeps for other threads' arenas (`malloc_trim` hands back the free
    pages between allocations, and the end of the main thread's arena only). It misses as much as
    the kernel reclaims meanwhile, cold pages of files mapped by the process above all. And it
    counts what other threads of the process do. In a young process whose other threads rest, the
    error is a fraction of a MiB.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        start = torch.cuda.memory_allocated(device)
        work()
        return torch.cuda.max_memory_allocated(device) - start
    if sys.platform != "linux":
        return None
    with _unbuffered_malloc():
        try:
            _CLEAR.write_text("5")
        except OSError:
            return None
        # Not VmRSS of before: what is reclaimed in between would hide as much of the rise.
        before = _resident("VmHWM")
        work()
        after = _resident("VmHWM")
    return None if before is None or after is None else after - before


def machine_bytes(device: torch.device) -> int | None:
    """Memory of the device, used or not; None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


@contextmanager
def _unbuffered_malloc() -> Iterator[None]:
    """Let glibc hand freed tensors back at once, so that resident memory is memory in use.

    It keeps them otherwise, in amounts that depend on all that ran before; but handing back costs
    time, so this is not for the training itself.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        yield
        return
    libc.mallopt(_M_MMAP_THRESHOLD, 1 << 16)
    libc.malloc_trim(0)
    try:
        yield
    finally:
        # The value to which glibc's own adjustment rises.
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 25)


def _resident(key: str) -> int | None:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith(key + ":")]
    return int(found[0]) * 1024 if found else None


def step_nanoseconds(
    model: nn.Module,
    optimizers: dict[str, Callable[[Iterable[nn.Parameter]], Optimizer]],
    *,
    rounds: int = 40,
) -> dict[str, float]:
    """Median time of one optimizer step in ns per parameter, for each of `optimizers`.

    Each steps copies of the model's parameters with the same random gradients; they take turns,
    so that a change of the machine's load meets all of them. Times of a model this small are
    mostly the cost of calling a kernel for each tensor; `benchmarks/` measures large ones.
    """
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(0)
    gradients = [
        torch.randn(p.shape, generator=generator).mul_(1e-3).to(device=device, dtype=p.dtype)
        for p in model.parameters()
    ]
    count = sum(p.numel() for p in model.parameters())
    made = {}
    for name, make in optimizers.items():
        copies = [nn.Parameter(p.detach().clone()) for p in model.parameters()]
        for copy, gradient in zip(copies, gradients, strict=True):
            copy.grad = gradient.clone()
        made[name] = make(copies)
    times: dict[str, list[float]] = {name: [] for name in made}
    # The first rounds build states and compile kernels.
    for turn in range(-3, rounds):
        for name, optimizer in made.items():
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            start = time.perf_counter()
            optimizer.step()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if turn >= 0:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) * 1e9 / count for name, values in times.items()}
