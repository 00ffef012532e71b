"""`pretraining.measure.peak_bytes`, in a process of its own.

Resident memory of a process that ran other tests before is full of freed pages of all threads, and
the kernel takes pages that nothing has read for minutes. A new process has neither.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

import pytest

from tests.examples.tiny import EXAMPLES

MIB = 1 << 20
# In any order: what an earlier and larger use has left does not hide a later one.
SIZES = [48 * MIB, 12 * MIB, 20 * MIB]
ROUNDS = 5

CHILD = """
import json, sys
sys.path.insert(0, sys.argv[1])
import torch
from pretraining import measure

sizes, rounds = json.loads(sys.argv[2])
torch.set_num_threads(1)
cpu = torch.device("cpu")
work = lambda n: (lambda: torch.ones(n, dtype=torch.uint8))
print(json.dumps([[measure.peak_bytes(work(n), cpu) for n in sizes] for _ in range(rounds)]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak can be reset only on Linux")
def test_peak_memory_sees_what_was_freed_again() -> None:
    """Caught mutants: no reset, so that the first peak stays; memory that malloc keeps."""
    run = subprocess.run(
        [sys.executable, "-c", CHILD, str(EXAMPLES), json.dumps([SIZES, ROUNDS])],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    if found[0][0] is None:
        pytest.skip("the peak of resident memory cannot be reset here")
    # The median of the rounds: one of them may meet a moment at which the kernel reclaims pages.
    for size, peaks in zip(SIZES, zip(*found, strict=True), strict=True):
        assert statistics.median(peaks) == pytest.approx(size, abs=4 * MIB), found
