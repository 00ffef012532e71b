"""The folder of a run: whose it is, what it was started with, and one process in it at a time."""

from __future__ import annotations

import os
import time
from types import TracebackType
from typing import Any

from pretraining import console, files, identity
from pretraining.errors import InputError, RunError
from pretraining.lock import HOLDER, LOCK, FolderLock
from pretraining.options import Options, flag

FORMAT, VERSION = "mcf-pretrain-run", 2
_MARKER = "run.json"
# Far above any that was written, and no burden to read.
_MOST = 1 << 22


class RunFolder:
    """A folder, opened for one process: new, gone on with, or in place of an earlier one.

    The marker `run.json` says that pretrain.py made a folder. It is written once, first, and never
    changed; without it, or where its checksum does not fit, nothing in a folder is touched.
    """

    def __init__(self, options: Options, device: str, data: str, versions: dict[str, str]) -> None:
        """Open the folder.

        Args:
            options: where it is, what the run is to be, and what to do with an earlier one.
            device: type of the device that "auto" came to.
            data: digest of the data.
            versions: of what computes, see `identity.versions`.

        Raises:
            InputError: where the folder is somebody else's, or a run that was not to be touched or
                had other options.
            RunError: where another process is in it, or it cannot be read or written.
        """
        self.path = options.folder
        self._fixed = {"options": options.fixed() | {"device": device}, "data": data}
        self.digest = identity.digest(self._fixed)
        self._existing = options.existing
        # Before anything is made, so that a folder that stays as it is gets no lock either.
        self._look()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"--out: cannot write {self.path}: {files.reason(error)}") from None
        self._lock = FolderLock(self.path)
        self._lock.acquire()
        try:
            self._open(versions)
        except BaseException:
            self._lock.release(signed=False)
            raise
        try:
            self._lock.sign()
        except BaseException:
            self.close()
            raise

    def _open(self, versions: dict[str, str]) -> None:
        # Once more: before the lock another process may have been at work here.
        saved = self._look()
        if saved is not None and self._existing == "overwrite":
            self._move_aside()
            saved = None
        files.remove_temporaries(self.path)
        if saved is None:
            content = {"format": FORMAT, "version": VERSION, **self._fixed, "versions": versions}
            files.write_atomically(self.path / _MARKER, identity.sealed(content))
        else:
            for difference in identity.differences(saved["versions"], versions):
                console.tell(f"note: since {self.path} was started {difference}: bits may differ")
        # After the marker: a folder with this in it and no marker is somebody else's.
        checkpoints = self.path / "checkpoints"
        with files.explained("write", checkpoints):
            checkpoints.mkdir(exist_ok=True)
        files.remove_temporaries(checkpoints)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let other processes in."""
        self._lock.release()

    def write(self, name: str, content: Any) -> None:
        """Write a JSON value of this run, with its checksum."""
        files.write_atomically(
            self.path / name, identity.sealed({"run": self.digest, "content": content})
        )

    def read(self, name: str) -> Any:
        """Return what `write` wrote; None where it is not there or, with a line, damaged.

        Raises:
            RunError: where it cannot be read.
        """
        path = self.path / name
        try:
            found = identity.unsealed(files.read_start(path, _MOST))
            if found.get("run") != self.digest:
                raise ValueError("it is another run's")
            return found["content"]
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RunError(f"cannot read {path}: {files.reason(error)}") from None
        except ValueError as error:
            console.tell(f"note: {path} cannot be used ({error}) and is made again")
            return None

    def _look(self) -> dict[str, Any] | None:
        """Return the marker of the run that is here, or None where there is none.

        Raises:
            InputError, RunError: where the folder must be left as it is.
        """
        if not os.path.lexists(self.path):
            return None
        if not self.path.is_dir():
            kind = "a broken link" if not self.path.exists() else "not a folder"
            raise InputError(f"--name: {self.path} is {kind}; choose another --name")
        saved = self._read_marker()
        if saved is None:
            return None
        if self._existing == "refuse":
            raise InputError(
                f"--name: {self.path} holds an earlier run; add --resume to go on with it, "
                "--overwrite to begin again (the earlier run is kept under a dated name), or "
                "choose another --name"
            )
        if self._existing == "resume":
            self._refuse_changes(saved)
        return saved

    def _read_marker(self) -> dict[str, Any] | None:
        path = self.path / _MARKER
        try:
            names = os.listdir(self.path)
            if _MARKER not in names:
                # A process that was killed before it wrote the marker left no more than these.
                if all(name in (LOCK, HOLDER) or files.is_temporary(name) for name in names):
                    return None
                raise InputError(
                    f"--name: {self.path} has files in it and no {_MARKER}, so it is not a run of "
                    "pretrain.py and stays as it is; choose another --name"
                )
            saved = identity.unsealed(files.read_start(path, _MOST))
        except OSError as error:
            raise RunError(f"cannot read {path}: {files.reason(error)}") from None
        except ValueError as error:
            raise self._no_marker(str(error)) from None
        if saved.get("format") != FORMAT:
            raise self._no_marker("it is another program's")
        if saved.get("version") != VERSION:
            raise self._no_marker(f"it has format {saved.get('version')!r}; known is {VERSION}")
        return saved

    def _no_marker(self, problem: str) -> RunError:
        if problem == "it has no checksum":
            problem += ", as those of an older pretrain.py, whose runs cannot be gone on with"
        return RunError(
            f"{self.path / _MARKER} is not the file that this pretrain.py writes ({problem}); the "
            "folder stays as it is: choose another --name, or move it away"
        )

    def _refuse_changes(self, saved: dict[str, Any]) -> None:
        was, given = saved["options"], dict(self._fixed["options"])
        changed = [key for key in given if given[key] != was.get(key)]
        if changed:
            differences = "; ".join(
                f"{flag(key)} is {given[key]} and was {was.get(key)}" for key in changed
            )
            raise InputError(
                f"--resume: {self.path} was started with other options: {differences}; use those, "
                "--overwrite or another --name"
            )
        if self._fixed["data"] != saved["data"]:
            raise InputError(
                f"--resume: the data has changed since {self.path} was started; use --overwrite "
                "or another --name"
            )

    def _move_aside(self) -> None:
        """Give the earlier run a dated name, and make and lock a new folder in its place."""
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        aside = self.path.with_name(f"{self.path.name}.until-{stamp}")
        number = 1
        while os.path.lexists(aside):
            number += 1
            aside = self.path.with_name(f"{self.path.name}.until-{stamp}-{number}")
        held = self._lock
        if os.name == "nt":
            # A folder with an open file in it cannot be renamed there.
            held.release(signed=False)
        with files.explained("move aside", self.path):
            os.rename(self.path, aside)
            self.path.mkdir()
            files.sync_folder(self.path.parent)
        console.tell(f"note: the earlier run is now {aside}")
        self._lock = FolderLock(self.path)
        self._lock.acquire()
        held.release(signed=False)
