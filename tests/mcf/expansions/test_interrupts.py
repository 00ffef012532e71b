"""An interrupt between any two calls leaves numbers that are old or new, and none of both.

Caught mutant: components copied in one call each.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import mcf
from mcf.expansions import components
from mcf.expansions.launch import operations as writing
from mcf.kernels import forks

F64 = torch.float64


def _numbers(count: int) -> Any:
    k = torch.arange(1, count + 1, dtype=F64)
    return mcf.from_components([k, k * 2.0**-70])


WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "mul_": lambda o, y: o.mul_(y),
    "exp_": lambda o, y: o.exp_(),
    "copy_": lambda o, y: o.copy_(y),
    "item": lambda o, y: o.__setitem__(slice(None), y),
    "fill_": lambda o, y: o.fill_(0.1),
    "out": lambda o, y: torch.add(y, y, out=o),
}


@pytest.mark.sampled
@pytest.mark.parametrize("count", [20, 2048])
@pytest.mark.parametrize("name", WRITES)
def test_no_number_is_half_written(name: str, count: int) -> None:
    _interrupt(WRITES[name], count)


def test_no_number_that_a_kernel_lacks_is_half_written(monkeypatch: pytest.MonkeyPatch) -> None:
    # Computed in one call here.
    monkeypatch.setattr(writing, "apply", lambda name, x: x)
    _interrupt(lambda o, y: torch.sin(y, out=o), 2048, 2.0**200)


def _interrupt(write: Callable[[Any, Any], Any], count: int, scale: float = 1.0) -> None:
    """Interrupt what writes, in each of its calls in turn."""
    y = _numbers(count) * (scale / count)
    before = _numbers(count) / 3
    after = before.clone()
    write(after, y)
    whole = 0
    for calls in range(1, 4000):
        target, left = before.clone(), calls

        def interrupt(frame: Any, event: str, argument: Any) -> None:
            nonlocal left
            if argument is sys.setprofile:
                return
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

        def interrupted(target: Any = target, interrupt: Any = interrupt) -> None:
            try:
                sys.setprofile(interrupt)
                write(target, y)
            except KeyboardInterrupt:
                pass
            finally:
                sys.setprofile(None)

        # A profiler interrupts before a context's end is called, as no signal does: what torch
        # would be left with, without derivatives say, belongs to a thread that ends.
        thread = threading.Thread(target=interrupted)
        thread.start()
        thread.join()
        old, new = (
            torch.stack([a == b for a, b in zip(target.components, x.components, strict=True)])
            for x in (before, after)
        )
        assert bool((old.all(0) | new.all(0)).all()), calls
        if left > 0:
            break
        whole += 1
    assert whole > 1


class _Sizes(TorchDispatchMode):
    """How many elements each copy has."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "copy" in str(func):
            first = args[0][0] if isinstance(args[0], list | tuple) else args[0]
            self.seen.append(first.numel())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", ["contiguous", "turned", "strided", "number"])
def test_a_forked_child_copies_in_pieces(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Caught mutants: turned ones, and one number for many, in one copy, which asks for threads."""
    monkeypatch.setattr(forks, "_forked", True)
    monkeypatch.setattr(components, "_ALONE", 8)
    target, value = torch.zeros(12, 14, dtype=F64), torch.arange(42, dtype=F64).view(6, 7)
    target = {"turned": target[:7, :6].mT, "strided": target[::2, ::2]}.get(
        kind, torch.zeros(6, 7, dtype=F64)
    )
    given = torch.tensor(3.0, dtype=F64) if kind == "number" else value
    with _Sizes() as sizes:
        components.write([target], [given])
    assert torch.equal(target, given.expand(6, 7))
    assert 0 < max(sizes.seen) <= 8


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked on Unix alone")
@pytest.mark.slow
def test_a_forked_child_waits_for_nobody() -> None:
    import subprocess

    text = (
        "import os, signal, torch, mcf\n"
        "torch.set_num_threads(2)\n"
        "x = mcf.ones(70000, dtype=torch.float64)\n"
        "o, y = x.clone(), x * 3\n"
        "o.add_(y)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    signal.alarm(60)\n"
        "    o.add_(y); o.copy_(x); o.mul_(y); o.fill_(0.5)\n"
        "    o.view(2, -1).mT.copy_(y.view(2, -1).mT)\n"
        "    os._exit(0)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "0", found.stderr
