"""The processes of a run under torchrun: who they are, and how they decide things together."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import distributed

from pretraining.errors import InputError, RunError

T = TypeVar("T")

# How long a process waits for another, which may be compiling kernels or writing a file.
PATIENCE = timedelta(minutes=10)


class World:
    """All processes of a run; one, where torchrun did not start it.

    Attributes:
        rank: this process's number; the first one speaks, writes and keeps the folder.
        size: how many there are.
        local: this process's number on its machine.
    """

    def __init__(self) -> None:
        """What torchrun says; nothing is set up yet."""
        self.rank = int(os.environ.get("RANK", "0"))
        self.size = int(os.environ.get("WORLD_SIZE", "1"))
        self.local = int(os.environ.get("LOCAL_RANK", "0"))
        self._started = False

    def start(self, device: torch.device) -> None:
        """Set torch.distributed up where torchrun is there, unless somebody has."""
        if "RANK" not in os.environ or distributed.is_initialized():
            return
        # A machine's own name may lead nowhere.
        if os.environ.get("MASTER_ADDR") in ("localhost", "127.0.0.1"):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        backend = "nccl" if device.type == "cuda" else "gloo"
        distributed.init_process_group(backend, timeout=PATIENCE, **self._store())
        self._started = True

    def _store(self) -> dict[str, Any]:
        """Where processes find each other, if not in torch's own way."""
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            return {}
        # torchrun keeps one store through all its restarts, in which gloo would find the addresses
        # of processes that are gone.
        store = distributed.TCPStore(
            os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False
        )
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        mine = distributed.PrefixStore(f"attempt {attempt}", store)
        return {"store": mine, "rank": self.rank, "world_size": self.size}

    def stop(self) -> None:
        """Undo `start`."""
        if self._started:
            # A reducer in a circle, freed after its group, would wait for the group's threads with
            # the interpreter's lock, which those may want.
            gc.collect()
            distributed.destroy_process_group()

    @property
    def first(self) -> bool:
        """Whether this is the process that speaks for all."""
        return self.rank == 0

    def once(self, work: Callable[[], T]) -> T:
        """What `work` returns in the first process, in all; its errors too.

        Only the first process says what went wrong.
        """
        found: list[Any] = [None, None]
        if self.first:
            try:
                found = [None, work()]
            except (InputError, RunError, OSError) as error:
                found = [error, None]
        if self.size > 1:
            distributed.broadcast_object_list(found, src=0)
        error = found[0]
        if error is not None:
            raise told(error)
        result: T = found[1]
        return result

    def agree(self, problem: str | None) -> list[str | None]:
        """What each process found wrong, the same list in all."""
        found: list[Any] = [problem]
        if self.size > 1:
            found = [None] * self.size
            distributed.all_gather_object(found, problem)
        return found

    def gather(self, numbers: list[float], device: torch.device) -> list[list[float]]:
        """Every process's numbers, as many of each."""
        mine = torch.tensor(numbers, dtype=torch.float64, device=device)
        if self.size == 1:
            return [mine.tolist()]
        found = [torch.empty_like(mine) for _ in range(self.size)]
        distributed.all_gather(found, mine)
        return [t.tolist() for t in found]


def told(error: BaseException) -> BaseException:
    """Mark an error that all processes raise alike, so that one of them says it."""
    error.everywhere = True  # type: ignore[attr-defined]
    return error
