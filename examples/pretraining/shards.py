"""Checkpoints of several processes: torch.distributed.checkpoint's files, sealed by a manifest.

    checkpoints/step-00000012/    .metadata, __0_0.distcp, ...   what torch writes
                                  metrics.jsonl                  the lines until this step
                                  manifest.json                  written last: what it belongs to,
                                                                 each file's size and SHA-256

A folder has a temporary name until all of it is on the disk. The last two are kept. Any number of
processes in any layout reads what any other wrote.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import distributed, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import Optimizer

from pretraining import console, files, identity
from pretraining.errors import RunError
from pretraining.world import World, told

FORMAT, VERSION = "mcf-pretrain-shards", 1
MANIFEST, LINES = "manifest.json", "metrics.jsonl"
_NAME = re.compile(r"step-(\d{8})")
_CHUNK = 1 << 22
_MOST = 1 << 26
# By name and flat: any layout and any grouping of parameters fits.
_HOW = StateDictOptions(flatten_optimizer_state_dict=True)


class Shards:
    """The checkpoints of one run.

    Args:
        world: the run's processes.
        folder: the run's folder, which all of them see.
        run: digest of the run's options and data.
        versions: of what computes.
    """

    def __init__(self, world: World, folder: Path, run: str, versions: Mapping[str, str]) -> None:
        """See the class."""
        self._world = world
        self._folder = folder / "checkpoints"
        self._run = run
        self._versions = dict(versions)

    def save(self, step: int, model: nn.Module, optimizer: Optimizer, lines: str) -> None:
        """Write a checkpoint; all processes call it.

        Raises:
            RunError: in all, where any process cannot write; earlier ones are as they were.
        """
        mark = self._world.once(lambda: secrets.token_hex(8))
        path = self._folder / f"step-{step:08}"
        temporary = self._folder / f".{path.name}.{mark}.tmp"
        problem, hashes = None, {}
        try:
            problem = self._write(temporary, model, optimizer)
            if problem is None:
                hashes = _hashes(temporary, lambda name: name.startswith(f"__{self._world.rank}_"))
        except OSError as error:
            problem = files.reason(error)
        problems = [p for p in self._world.agree(problem) if p]
        if problems:
            self._world.once(lambda: shutil.rmtree(temporary, ignore_errors=True))
            raise told(RunError(f"cannot write {path}: {problems[0]}"))
        found: dict[str, Any] = {}
        for some in self._all(hashes):
            found |= some
        self._world.once(lambda: self._seal(temporary, path, step, lines, found))

    def _write(self, path: Path, model: nn.Module, optimizer: Optimizer) -> str | None:
        try:
            checkpoint.save(
                _states(model, optimizer),
                storage_writer=checkpoint.FileSystemWriter(path, sync_files=True),
                no_dist=not distributed.is_initialized(),
            )
        except checkpoint.CheckpointException as error:
            return _first(error)
        except (OSError, RuntimeError) as error:
            return _line(error)
        return None

    def _all(self, mine: dict[str, Any]) -> list[dict[str, Any]]:
        found: list[Any] = [mine]
        if self._world.size > 1:
            found = [None] * self._world.size
            distributed.all_gather_object(found, mine)
        return found

    def _seal(
        self, temporary: Path, path: Path, step: int, lines: str, hashes: dict[str, Any]
    ) -> None:
        """Say what is in it, and give it its name; in the first process."""
        try:
            files.write_atomically(temporary / LINES, lines)
            hashes |= _hashes(temporary, lambda name: name not in hashes)
            content = {"format": FORMAT, "version": VERSION, "run": self._run, "step": step}
            content |= {"versions": self._versions, "files": dict(sorted(hashes.items()))}
            files.write_atomically(temporary / MANIFEST, identity.sealed(content))
            if path.exists():
                # One that could not be used, or the same step of another number of processes.
                shutil.rmtree(path)
            with files.explained("write", path):
                os.rename(temporary, path)
            files.sync_folder(self._folder)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        for old in self._kept()[2:]:
            shutil.rmtree(old, ignore_errors=True)

    def _kept(self) -> list[Path]:
        """Those that have their name, the newest first."""
        names = sorted(name for name in os.listdir(self._folder) if _NAME.fullmatch(name))
        return [self._folder / name for name in reversed(names)]

    def restore(self, model: nn.Module, optimizer: Any) -> tuple[int, str]:
        """Take the newest usable checkpoint; return its step and lines, (0, "") where is none.

        One that cannot be used gets another name, and a line says so.

        Raises:
            RunError: in all, where there are some and none can be used.
        """
        problems = []
        for path in self._world.once(self._kept):
            problem, step, lines = self._look(path)
            if problem is None:
                for before in problems:
                    self._say(f"note: {before}: going on from the older {path.name}")
                self._read(path, model, optimizer)
                return step, lines
            problems.append(f"{path} {problem}")
        if problems:
            raise told(
                RunError(
                    f"{'; '.join(problems)}; to train again from the start, move "
                    f"{'it' if len(problems) == 1 else 'them'} away"
                )
            )
        return 0, ""

    def _say(self, text: str) -> None:
        if self._world.first:
            console.tell(text)

    def _look(self, path: Path) -> tuple[str | None, int, str]:
        """What is wrong with a checkpoint; its step and lines. Each process reads some files."""

        def manifest() -> tuple[str | None, dict[str, Any]]:
            try:
                found = identity.unsealed(files.read_start(path / MANIFEST, _MOST))
            except OSError as error:
                return f"has no manifest that can be read ({files.reason(error)})", {}
            except ValueError as error:
                return f"has a damaged manifest ({error})", {}
            if (found.get("format"), found.get("version")) != (FORMAT, VERSION):
                return "is of another format", {}
            if found.get("run") != self._run:
                return "is a checkpoint of other options or data", {}
            return None, found

        problem, found = self._world.once(manifest)
        if problem is not None:
            return problem, 0, ""
        names = sorted(found["files"])[self._world.rank :: self._world.size]
        wrong = None
        for name in names:
            wrong = wrong or _damage(path / name, *found["files"][name])
        problems = [p for p in self._world.agree(wrong) if p]
        if problems:
            return problems[0], 0, ""
        lines = self._world.once(lambda: (path / LINES).read_text())
        return None, int(found["step"]), lines

    def _read(self, path: Path, model: nn.Module, optimizer: Any) -> None:
        # A new optimizer has no states yet to read into.
        optimizer.init_state()
        states = _states(model, optimizer)
        problem = None
        try:
            reader = checkpoint.FileSystemReader(path)
            alone = not distributed.is_initialized()
            checkpoint.load(states, storage_reader=reader, no_dist=alone)
            set_model_state_dict(model, states["model"])
            set_optimizer_state_dict(model, optimizer, states["optimizer"], options=_HOW)
        except checkpoint.CheckpointException as error:
            problem = _first(error)
        except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
            problem = _line(error)
        problems = [p for p in self._world.agree(problem) if p]
        if problems:
            raise told(RunError(f"{path} does not fit this version of the library ({problems[0]})"))


def _states(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    optimized = get_optimizer_state_dict(model, optimizer, options=_HOW)
    return {"model": get_model_state_dict(model), "optimizer": optimized}


def _hashes(folder: Path, wanted: Any) -> dict[str, Any]:
    """Size and SHA-256 of some of a folder's files."""
    found = {}
    for name in os.listdir(folder):
        if wanted(name):
            path = folder / name
            found[name] = [path.stat().st_size, _sha256(path)]
    return found


def _damage(path: Path, size: int, digest: str) -> str | None:
    try:
        if path.stat().st_size != size:
            return f"has {path.stat().st_size} bytes of {size} in {path.name}"
        if _sha256(path) != digest:
            return f"is damaged (the checksum of {path.name} does not fit)"
    except FileNotFoundError:
        return f"has lost {path.name}"
    except OSError as error:
        return f"has {path.name}, which cannot be read ({files.reason(error)})"
    return None


def _sha256(path: Path) -> str:
    found = hashlib.sha256()
    with os.fdopen(files.open_regular(path), "rb") as file:
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()


def _first(error: Any) -> str:
    """The first of what several processes raised."""
    for rank, (one, _) in sorted(error.failures.items()):
        return f"process {rank}: {_line(one)}"
    return _line(error)


def _line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).split("\n")[0] or type(error).__name__
