"""Processes for tests of what several do together: started once, used by all tests of a run."""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

import pytest

# How long one function may take, on a busy machine: who waits for another that has given up waits
# for ever.
PATIENCE = 240.0

ROOT = Path(__file__).resolve().parents[2]


class World:
    """Processes that run the same function together, with torch.distributed over gloo."""

    def __init__(self) -> None:
        self._template: Any = None
        self._members: list[Any] = []
        self._runs = 0
        self._folder = tempfile.TemporaryDirectory()
        self._listener = Listener(str(Path(self._folder.name) / "socket"), "AF_UNIX")
        atexit.register(self.end)

    def run(self, size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
        """What a function of a module returns on each of some processes; all are of one group.

        Results are pickled: numbers, texts, bytes. An error of any raises here with its traceback.
        """
        while len(self._members) < size:
            self._members.append(self._started())
        self._runs += 1
        store = str(Path(self._folder.name) / str(self._runs))
        name = function.__module__, function.__qualname__
        for rank, (_, pipe) in enumerate(self._members[:size]):
            pipe.send((*name, pickle.dumps(args), rank, size, store))
        deadline = time.monotonic() + PATIENCE
        found: list[Any] = []
        for number, pipe in self._members[:size]:
            try:
                ready = pipe.poll(max(0.0, deadline - time.monotonic()))
                found.append(pipe.recv() if ready else (False, "no answer"))
            except (EOFError, OSError):
                found.append((False, f"ended with status {self._asked('status', number)}"))
            if found[-1][0] is False:
                # Those that wait for it need not wait long.
                deadline = min(deadline, time.monotonic() + 10)
        bad = [f"process {rank}: {text}" for rank, (ok, text) in enumerate(found) if not ok]
        if bad:
            self.close()
            raise AssertionError("\n".join(bad))
        return [value for _, value in found]

    def _started(self) -> tuple[int, Any]:
        """One more process: its number and the pipe to it."""
        if self._template is None:
            # Not by multiprocessing, whose children import the program that runs the tests.
            command = [sys.executable, "-m", __name__, self._listener.address]
            environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
            process = subprocess.Popen(command, cwd=ROOT, env=environment)
            self._template = process, self._listener.accept()
        return self._asked("start"), self._listener.accept()

    def _asked(self, *request: Any) -> Any:
        _, control = self._template
        control.send(request)
        if not control.poll(30):
            raise AssertionError(f"the process that starts others does not answer {request}")
        return control.recv()

    def close(self) -> None:
        """End all processes; the next run starts others."""
        for number, pipe in self._members:
            with contextlib.suppress(OSError):
                pipe.close()
            self._asked("kill", number)
        self._members = []

    def end(self) -> None:
        """End all processes for good."""
        self.close()
        if self._template is not None:
            process, control = self._template
            control.close()
            process.wait()
            self._template = None
        self._listener.close()
        self._folder.cleanup()


def _start_others(address: str) -> None:
    """Import once what all processes need, and be forked whenever another one is asked for."""
    import torch
    import torch._dynamo
    import torch.distributed.fsdp
    import torch.distributed.tensor.parallel

    import mcf.optim  # noqa: F401

    with contextlib.suppress(ImportError):
        import numba  # noqa: F401

    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()
    control = Client(address, "AF_UNIX")
    while True:
        try:
            what, *number = control.recv()
        except (EOFError, OSError):
            return
        if what == "kill":
            with contextlib.suppress(ProcessLookupError):
                os.kill(*number, signal.SIGKILL)
        if what != "start":
            control.send(_status(*number))
            continue
        child = os.fork()
        if not child:
            control.close()
            _serve(Client(address, "AF_UNIX"))
            os._exit(0)
        control.send(child)


def _status(number: int) -> int | None:
    with contextlib.suppress(ChildProcessError):
        return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
    return None


def _serve(pipe: Any) -> None:
    import torch
    from torch import distributed

    # As many as the tests' own: the processes share the machine.
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    while True:
        try:
            module, name, args, rank, size, store = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            several = torch.cuda.device_count()
            if several:
                torch.cuda.set_device(rank % several)
            distributed.init_process_group(
                "cpu:gloo,cuda:nccl" if size <= several else "gloo",
                init_method=f"file://{store}",
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=PATIENCE),
            )
            function = importlib.import_module(module)
            for part in name.split("."):
                function = getattr(function, part)
            value = function(*pickle.loads(args))
            distributed.barrier()
            pipe.send((True, value))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
        finally:
            forget_layouts()
            # Engines are full of circles, which keep their groups: with threads that look for news.
            # A reducer that is freed after its group waits for those with the interpreter's lock,
            # which they may want.
            gc.collect()
            if distributed.is_initialized():
                distributed.destroy_process_group()
            # And what the groups themselves held, before it is frozen.
            gc.collect()
            # What is left, mostly torch's modules, is not looked through again after every run.
            gc.freeze()


def forget_layouts() -> None:
    """Empty DTensor's caches, whose meshes keep threads of groups of processes that are gone."""
    if "torch.distributed.tensor" not in sys.modules:
        return
    from torch.distributed.tensor import _collective_utils, _redistribute, debug

    # Under these names in some versions of torch.
    topology = getattr(_collective_utils, "MeshTopoInfo", None)
    for owner, name in (
        (debug, "_clear_sharding_prop_cache"),
        (_redistribute, "clear_redistribute_planner_cache"),
        (getattr(_redistribute, "_gen_transform_infos", None), "cache_clear"),
        (getattr(topology, "build_from_mesh", None), "cache_clear"),
    ):
        getattr(owner, name, lambda: None)()


@functools.cache
def _world() -> World:
    return World()


@pytest.fixture(scope="session")
def world() -> World:
    """The processes of this run: the same for every file that imports this fixture."""
    return _world()


if __name__ == "__main__":
    _start_others(sys.argv[1])
