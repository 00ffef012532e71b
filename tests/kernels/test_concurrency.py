"""Kernels in forked children and from several Python threads at once.

A forked child inherits the memory of the parent's OpenMP team and thread pool and none of their
threads: without the hook in mcf.kernels.numba.runtime.team it waits for ever for the first large
tensor.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import mcf
from mcf.kernels.numba.compile import stored
from mcf.kernels.numba.loops import native_calls
from mcf.kernels.numba.runtime import team
from mcf.kernels.numba.runtime.team import SERIAL
from tests.helpers import assert_all_same_bits
from tests.helpers.draws import bell

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)
needs_openmp = pytest.mark.skipif(
    team._openmp() is None, reason="this build of torch has no GNU OpenMP"
)
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


def script(text: str, timeout: float = 120) -> str:
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


PARENT = f"""
import os, sys, hashlib
import torch, mcf

torch.set_num_threads(2)
a = torch.arange({4 * SERIAL}, dtype=torch.int32).view(torch.float32)
b = a.flip(0).contiguous()

def digest():
    hi, lo = mcf.two_sum(a, b)
    return hashlib.sha256(hi.numpy().tobytes() + lo.numpy().tobytes()).hexdigest()

before = digest()
"""


# Compilation itself: in a new process, eight threads want the same two kernels at once.
FIRST = """
import threading
import torch, mcf

x = torch.linspace(1, 2, 1000)
barrier = threading.Barrier(8)
results = []

def work(k):
    barrier.wait()
    pair = mcf.two_sum(x, 1e-9 * x) if k % 2 else mcf.two_prod(x, x)
    results.append((k % 2, [t.tolist() for t in pair]))

threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
for t in threads:
    t.start()
for t in threads:
    t.join()
for kind in (0, 1):
    several = [r for k, r in results if k == kind]
    print(len(several), all(r == several[0] for r in several))
"""

THREADS = """
import mcf.kernels.numba.runtime.team as team
a.exp()
threads = len(os.listdir("/proc/self/task")) if team._openmp() is not None else 0
digest()
print(len(os.listdir("/proc/self/task")) - threads if threads else "no OpenMP")
"""

# A child, which runs a kernel too that the parent has not compiled, and the workers of a pool.
FORKS = """
child = os.fork()
if child == 0:
    same = digest() == before
    p, e = mcf.mul((a, b), (b, a))
    os._exit(0 if same and len(e) == len(a) else 3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), digest() == before)

import multiprocessing
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(set(pool.starmap(digest, [()] * 4)) == {before})
"""


@pytest.fixture(scope="module")
def said() -> list[str]:
    """What one new process says of its first calls, its threads and its children, a line each."""
    forks = FORKS if hasattr(os, "fork") else ""
    return script(FIRST + PARENT + THREADS + forks).splitlines()


@pytest.mark.slow
def test_first_calls_from_several_threads_at_once(said: list[str]) -> None:
    assert said[:2] == ["4 True", "4 True"]


@pytest.mark.slow
@needs_openmp
def test_the_team_is_torchs_own(said: list[str]) -> None:
    # No thread beside torch's: after a parallel operation of torch a kernel starts none.
    assert said[2] == "0"


@needs_fork
def test_forked_children_run_kernels(said: list[str]) -> None:
    assert said[3:] == ["0 True", "True"]


# The mutants: the child is given back what the parent had.
KEEP_POOL = "team._forked, team._pool, team._pool_size = True, pool, 2"
KEEP_TEAM = "team._forked = False"


@pytest.mark.slow
@pytest.mark.sampled(every=2)
@needs_fork
@pytest.mark.parametrize("mutant", [KEEP_POOL, pytest.param(KEEP_TEAM, marks=needs_openmp)])
def test_the_parents_threads_would_hang_in_a_child(mutant: str) -> None:
    before = "team._forked = True\ndigest()" if mutant is KEEP_POOL else ""
    text = (
        "import mcf.kernels.numba.runtime.team as team\n"
        + textwrap.dedent(PARENT)
        + before
        + f"""
pool = team._pool
child = os.fork()
if child == 0:
    {mutant}
    digest()
    os._exit(0)
import time
deadline = time.monotonic() + 5
while time.monotonic() < deadline:
    done, status = os.waitpid(child, os.WNOHANG)
    if done:
        break
    time.sleep(0.05)
else:
    os.kill(child, 9)
    os.waitpid(child, 0)
print("finished" if done else "hangs")
"""
    )
    assert script(text).split() == ["hangs"]


def test_without_openmp_the_bits_are_the_same(
    two_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = torch.linspace(-3, 5, 4 * SERIAL + 7)
    expected = mcf.two_prod(a, a)
    monkeypatch.setattr(team, "_openmp", lambda: None)
    assert_all_same_bits(mcf.two_prod(a, a), expected, "pool")


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


# Triton's interpreter patches its language while it runs: without a lock most calls fail.
@pytest.mark.slow
@pytest.mark.parametrize("executor", ["numba", "torch", pytest.param("triton", marks=needs_triton)])
def test_several_python_threads(executor: str, two_threads: None) -> None:
    g = torch.Generator().manual_seed(0)
    sizes = [1, 1000, 3000] if executor == "triton" else [1, 1000, SERIAL + 1, 3 * SERIAL]
    inputs = [[bell(n, g, torch.bfloat16) for _ in range(4)] for n in sizes]

    def everything(x: list[torch.Tensor]) -> list[torch.Tensor]:
        a, b, c, d = x
        return [*mcf.two_sum(a, b), *mcf.grow((a, b), c), *mcf.mul((a, b), (c, d))]

    with mcf.executor(executor):
        expected = [everything(x) for x in inputs]
        rounds = 20 if executor == "numba" else 4
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(everything, inputs * rounds))
    for k, got in enumerate(found):
        assert_all_same_bits(got, expected[k % len(inputs)], f"call {k}")


def test_code_is_made_once_for_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the code of all threads but one is freed, and tables keep its address."""

    def slowly(*_: object) -> object:
        time.sleep(0.02)
        return object()

    monkeypatch.setattr(stored, "native", slowly)
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(native_calls.native, slowly) for _ in range(4)]
        found = [each.result() for each in waiting]
    assert len({*map(id, found)}) == 1
