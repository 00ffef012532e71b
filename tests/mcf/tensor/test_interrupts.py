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

import mcf
from mcf.tensor import writing

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


@pytest.mark.parametrize("count", [20, 2048])
@pytest.mark.parametrize("name", WRITES)
def test_no_number_is_half_written(name: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # So that many elements are some blocks of them.
    monkeypatch.setattr(writing, "_BLOCK", 1024)
    y = _numbers(count) / count
    before = _numbers(count) / 3
    after = before.clone()
    WRITES[name](after, y)
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

        def write(target: Any = target, interrupt: Any = interrupt) -> None:
            try:
                sys.setprofile(interrupt)
                WRITES[name](target, y)
            except KeyboardInterrupt:
                pass
            finally:
                sys.setprofile(None)

        # A profiler interrupts before a context's end is called, as no signal does: what torch
        # would be left with, without derivatives say, belongs to a thread that ends.
        thread = threading.Thread(target=write)
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
        "    o.add_(y); o.copy_(x); o.mul_(y)\n"
        "    os._exit(0)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "0", found.stderr
