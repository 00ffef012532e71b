"""Checkpoints: files of `torch.save` that carry a seal, in two generations.

A checkpoint is a zip archive as torch writes it, so that `torch.load(path, weights_only=True)`
reads it anywhere; the seal is the archive's comment:

    JSON | its length, 8 hexadecimal digits | SHA-256 of all before, 64 digits | "mcf-seal"

The JSON names the format and its version, the training (strategy, seed), the digest of the run's
options and data, the step, and the versions of what computed. It is compared and the digest
verified before torch reads a byte.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

from pretraining import console, files
from pretraining.errors import RunError

FORMAT, VERSION = "mcf-pretrain-checkpoint", 2
_MAGIC = b"mcf-seal"
_FOOTER = 8 + 64 + len(_MAGIC)
_CHUNK = 1 << 22


class Unusable(Exception):
    """A checkpoint that must not be taken, with the reason."""


@dataclass(frozen=True)
class Training:
    """Which training's checkpoints, and where.

    Attributes:
        strategy, seed: the training.
        run: digest of the run's options and data.
        folder: the run's folder.
    """

    strategy: str
    seed: int
    run: str
    folder: Path

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.strategy}, seed {self.seed}"

    @property
    def path(self) -> Path:
        """The newest checkpoint."""
        return self._file("")

    @property
    def older(self) -> Path:
        """The one before."""
        return self._file(".previous")

    def unusable(self) -> Path:
        """Return a free name for a file that was found in the place of a checkpoint."""
        path, number = self._file(".unusable"), 1
        while os.path.lexists(path):
            number += 1
            path = self._file(f".unusable-{number}")
        return path

    def _file(self, mark: str) -> Path:
        return self.folder / "checkpoints" / f"{self.strategy}-seed{self.seed}{mark}.pt"

    def seal(self) -> dict[str, Any]:
        """What a seal must say."""
        job = {"strategy": self.strategy, "seed": self.seed}
        return {"format": FORMAT, "version": VERSION, "job": job, "run": self.run}


def save(training: Training, state: dict[str, Any], versions: Mapping[str, str]) -> None:
    """Write `state` as the newest checkpoint; the newest until now becomes the older one.

    Raises:
        RunError: where it cannot be written; the checkpoints are then as they were, or the newest
            one has only become the older one.
    """
    seal = training.seal() | {"step": state["step"], "versions": dict(versions)}
    text = json.dumps(seal).encode()
    buffer = io.BytesIO()
    torch.save(state, buffer)
    # An archive ends with the length of its comment, and torch writes none.
    buffer.seek(-22, os.SEEK_END)
    end = buffer.read()
    if end[:4] != b"PK\5\6" or end[-2:] != b"\0\0":
        raise AssertionError("torch.save writes other archives than it did")
    buffer.seek(-2, os.SEEK_END)
    buffer.write(struct.pack("<H", len(text) + _FOOTER) + text + b"%08x" % len(text))
    buffer.write(hashlib.sha256(buffer.getbuffer()).hexdigest().encode() + _MAGIC)
    files.write_atomically(training.path, buffer.getbuffer(), keep=training.older)


def restore(training: Training, device: torch.device) -> dict[str, Any] | None:
    """Return the newest usable state, or None where there is no checkpoint at all.

    Where the newest cannot be used the older one is, and a line says so; the file that cannot be
    used is kept under another name.

    Raises:
        RunError: where there are checkpoints and none can be used.
    """
    try:
        return _read(training.path, training, device)
    except FileNotFoundError:
        if not os.path.lexists(training.older):
            return None
        problem = "is missing"
    except Unusable as error:
        problem = str(error)
    try:
        state = _read(training.older, training, device)
    except (FileNotFoundError, Unusable) as error:
        second = str(error) if isinstance(error, Unusable) else "is missing"
        raise RunError(
            f"{training.path} {problem}, and the older {training.older.name} {second}; to train "
            f"{training.name} again from its start, move both away"
        ) from None
    kept = ""
    if os.path.lexists(training.path):
        with files.explained("rename", training.path):
            unusable = training.unusable()
            os.rename(training.path, unusable)
        kept = f" (kept as {unusable.name})"
    console.tell(
        f"note: {training.path} {problem}{kept}: {training.name} goes on from the older "
        f"checkpoint, step {state['step']}"
    )
    return state


def _read(path: Path, training: Training, device: torch.device) -> dict[str, Any]:
    """Verify and load one file.

    Raises:
        FileNotFoundError: where there is none.
        Unusable: where it is not a whole checkpoint of this training.
    """
    try:
        descriptor = files.open_regular(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Unusable(f"cannot be read ({files.reason(error)})") from None
    with os.fdopen(descriptor, "rb") as file:
        try:
            seal, length, digest = _seal(file)
            _compare(seal, training.seal())
            if _digest(file, length) != digest:
                raise Unusable("is damaged (its checksum does not fit)")
            file.seek(0)
        except OSError as error:
            raise Unusable(f"cannot be read ({files.reason(error)})") from None
        try:
            state: dict[str, Any] = torch.load(file, map_location=device, weights_only=True)
        except MemoryError:
            raise
        except Exception as error:
            # The bytes are those that were written: another version of torch wrote them.
            wrote = seal["versions"].get("torch", "unknown")
            raise Unusable(
                f"of torch {wrote} cannot be loaded by torch {torch.__version__} "
                f"({str(error).splitlines()[0] if str(error) else type(error).__name__})"
            ) from None
    return state


def _seal(file: IO[bytes]) -> tuple[dict[str, Any], int, bytes]:
    """Return a file's seal, the length of what its digest covers, and that digest."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _FOOTER))
    footer = file.read()
    if footer[-len(_MAGIC) :] != _MAGIC:
        file.seek(0)
        other = (
            "is cut short, or of an older pretrain.py" if file.read(2) == b"PK" else "is damaged"
        )
        raise Unusable(f"{other} (it has no seal)" if size else "is empty")
    try:
        length = int(footer[:8], 16)
        file.seek(max(0, size - _FOOTER - length))
        seal = json.loads(file.read(length))
    except (ValueError, RecursionError):
        seal = None
    if not isinstance(seal, dict):
        raise Unusable("is damaged (its seal cannot be read)")
    return seal, size - len(_MAGIC) - 64, footer[8:72]


def _compare(seal: dict[str, Any], expected: dict[str, Any]) -> None:
    if seal.get("format") != expected["format"]:
        raise Unusable("is damaged (its seal is of another kind)")
    if seal.get("version") != expected["version"]:
        raise Unusable(
            f"has format {seal.get('version')!r}, and this pretrain.py knows {expected['version']}"
        )
    if seal.get("job") != expected["job"]:
        job = seal.get("job")
        raise Unusable(f"is another training's checkpoint ({json.dumps(job)})")
    if seal.get("run") != expected["run"]:
        raise Unusable("is a checkpoint of other options or data")


def _digest(file: IO[bytes], length: int) -> bytes:
    found = hashlib.sha256()
    file.seek(0)
    while length > 0:
        chunk = file.read(min(_CHUNK, length))
        if not chunk:
            break
        found.update(chunk)
        length -= len(chunk)
    return found.hexdigest().encode()
