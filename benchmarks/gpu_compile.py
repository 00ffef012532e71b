"""Compile the kernels of a GPU day beforehand, on all cores, into Triton's cache.

Each case of a section runs on small tensors of the CPU, in Triton's interpreter, and each of its
launches is compiled as a launch on the GPU would be. On a machine without a GPU they are compiled
for sm_90, so that a rehearsal shows which kernels do not compile.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from gpu_cases import CASES
from gpu_measure import SMALL, Row, Size, short

import mcf
import mcf.report

CPU = torch.device("cpu")
# The self-test of `mcf.report` has no cases.
BITS = "bits"
STEPPING = ("steps", "training", "many")


def tasks(sections: Iterable[str], size: Size) -> list[tuple[str, str]]:
    """Return the section and the name of each case that launches our kernels."""
    found = []
    for section in sections:
        if section == BITS:
            found += [(section, work) for work in mcf.report.WORK]
        elif section in CASES:
            found += [(section, case.name) for case in CASES[section](CPU, size) if case.ours]
    return found


def compiled(task: tuple[str, str], target: Any, size: Size) -> tuple[set[str], str]:
    """Compile the kernels of a case; return their hashes, and what went wrong."""
    from mcf.kernels.triton import stand_in

    section, name = task
    torch.set_num_threads(1)
    stand_in.TARGET = target
    found: list[Any] = []
    error = ""
    try:
        # Constants of functions are computed by kernels, and become text of other kernels: so the
        # interpreter runs each launch as well.
        with mcf.executor("triton"), stand_in.gpu_launches(run=True) as found:
            _called(section, name, size)
    except Exception as problem:
        # The compiler's own error is the cause of the one that names the launch.
        error = short(problem.__cause__ or problem)
    return {kernel.hash for kernel in found}, error


def _called(section: str, name: str, size: Size) -> None:
    if section == BITS:
        for _ in mcf.report.WORK[name][0]("cpu"):
            pass
    else:
        call = next(c for c in CASES[section](CPU, size) if c.name == name).make().call
        # The second step of an optimizer is another path than the first.
        for _ in range(2 if section in STEPPING else 1):
            call()


def target_of(device: torch.device) -> Any:
    """Return what Triton compiles for: the GPU that is there, or sm_90."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    return (
        driver.active.get_current_target() if device.type == "cuda" else GPUTarget("cuda", 90, 32)
    )


def compiling(sections: Iterable[str], device: torch.device) -> Iterator[Row]:
    """Compile the cases of some sections by a pool of processes; yield what failed and how long."""
    start = time.perf_counter()
    target = target_of(device)
    name = f"{target.backend} {target.arch}"
    if target.backend != "cuda":
        yield Row(name, "left out", "launches are compiled beforehand for NVIDIA GPUs alone")
        return
    hashes: set[str] = set()
    workers = max(1, os.cpu_count() or 1)
    # Processes that have not used torch: a fork of one that has may wait for threads for ever.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, context) as pool:
        waiting = {pool.submit(compiled, t, target, SMALL): t for t in tasks(sections, SMALL)}
        for future in concurrent.futures.as_completed(waiting):
            section, case = waiting[future]
            try:
                own, error = future.result()
            except concurrent.futures.process.BrokenProcessPool as problem:
                own, error = set(), short(problem)
            hashes |= own
            if error:
                yield Row(f"{section}: {case}", "error", error)
    yield Row(name, "kernels", len(hashes))
    yield Row(name, "processes", workers)
    yield Row(name, "s", time.perf_counter() - start)
