"""Peak memory of a step: it grows by less than 1 % of the parameters' size after the first one.

Measured in a process of its own as the high-water mark of resident memory (VmHWM), which Linux
resets on request, after what the allocator keeps was given back: nothing is missed, neither torch's
tensors nor NumPy's nor the compiler's. The same measurement sees a temporary of 2 % of the
parameters (`test_the_measurement_sees_it`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# In bf16 64 MB, of which 1 % is 164 pages: Linux counts resident pages in batches for each CPU, 64
# pages off on two of them. A step needs .2 % for its lists of work.
N = 8 * 1024 * 1024
SIZE = 2 * N

CHILD = """
import ctypes, gc, json, sys
import torch
import mcf
from mcf.optim import SGD, AdamW

torch.set_num_threads(2)
# Where pages are huge (PR_SET_THP_DISABLE) a few bytes count as 2 MB.
if hasattr(ctypes.CDLL(None), "prctl"):
    ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)

def status(name):
    with open("/proc/self/status") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name + ":"))

def growth(n, make, gradient="dense", temporary=0.0, **options):
    if "compute_dtype" in options:
        options["compute_dtype"] = getattr(torch, options["compute_dtype"])
    # One large tensor, and many small ones.
    shapes = [(n // 2,)] + [(n // 128,)] * 64
    params = [torch.nn.Parameter(torch.zeros(s, dtype=torch.bfloat16)) for s in shapes]
    for p in params:
        whole = p.shape if gradient == "dense" else (1,)
        p.grad = torch.full(whole, 1e-3, dtype=torch.bfloat16).expand_as(p)
    optimizer = {"AdamW": AdamW, "SGD": SGD}[make](params, **options)
    # States are made, kernels compiled, threads started.
    for _ in range(2):
        optimizer.step()
    gc.collect()
    if hasattr(ctypes.CDLL(None), "malloc_trim"):
        ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")
    # What the reset made of the mark. Resident memory may shrink meanwhile, and would hide a rise.
    before = status("VmHWM")
    optimizer.step()
    if temporary:
        torch.ones(int(temporary * n), dtype=torch.bfloat16)
    return status("VmHWM") - before

with mcf.executor("numba"):
    try:
        print(json.dumps({k: growth(**o) for k, o in json.loads(sys.argv[1]).items()}))
    except PermissionError as error:
        print(json.dumps({"refused": str(error)}))
"""

RUNS: dict[str, dict[str, Any]] = {
    "plus": {"make": "AdamW"},
    # A quarter of the elements: what it may take does not grow with them.
    "strided": {"make": "AdamW", "gradient": "expanded", "n": N // 4},
    "with a temporary": {"make": "AdamW", "temporary": 0.02},
}
MORE: dict[str, dict[str, Any]] = {
    "plus with metrics": {"make": "AdamW", "track_metrics": True},
    "plus in bf16 arithmetic": {"make": "AdamW", "compute_dtype": "bfloat16"},
    "master": {"make": "AdamW", "precision": "master"},
    "SGD": {"make": "SGD", "momentum": 0.9},
}


def measured(runs: dict[str, dict[str, Any]]) -> dict[str, int]:
    """Bytes by which a step of each run raises the high-water mark."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the high-water mark of memory can be reset on Linux only")
    argument = json.dumps({name: {"n": N, **options} for name, options in runs.items()})
    run = subprocess.run(
        [sys.executable, "-c", CHILD, argument],
        # Each tensor gets pages of its own, which go back when it is freed.
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    found: dict[str, int] = json.loads(run.stdout)
    if "refused" in found:
        pytest.skip(f"the high-water mark of memory cannot be reset here: {found['refused']}")
    print(found)
    return found


@pytest.fixture(scope="module")
def growths() -> dict[str, int]:
    return measured(RUNS)


@pytest.mark.slow
def test_growth_of_more() -> None:
    assert max(measured(MORE).values()) < SIZE // 100


@pytest.mark.slow
def test_growth(growths: dict[str, int]) -> None:
    assert growths["plus"] < SIZE // 100


@pytest.mark.slow
def test_strided_gradients_are_copied_in_slabs(growths: dict[str, int]) -> None:
    # Six tensors' slabs of 65536 bf16 elements are .8 MB; the large tensor's gradient is 8 MB.
    assert growths["strided"] < 2_000_000


@pytest.mark.slow
def test_the_measurement_sees_it(growths: dict[str, int]) -> None:
    assert growths["with a temporary"] > SIZE // 100
