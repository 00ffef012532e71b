"""Files of a run: atomic writes, the growing metrics log, and checkpoints."""

from __future__ import annotations

import io
import json
import math
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import torch

from pretraining.errors import InputError


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a file so that at every moment its name holds either the old or the new content.

    The temporary file stands beside it (a rename is atomic only within one file system) and
    reaches the disk before it takes the name.
    """
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def save(path: Path, state: dict[str, Any]) -> None:
    """`torch.save`, atomically."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_atomically(path, buffer.getbuffer())


def load(path: Path, device: torch.device) -> dict[str, Any] | None:
    """Return what `save` wrote, or None where there is no such file.

    Raises:
        InputError: where the file is no checkpoint.
    """
    if not path.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, LookupError, pickle.UnpicklingError):
        raise InputError(
            f"--resume: {path} is not a readable checkpoint; delete it to run that part again"
        ) from None
    return state


class MetricsLog:
    """`metrics.jsonl`: one JSON object a line, appended; truncated to `offset` when opened.

    Nothing in it depends on the clock, so that two runs of one configuration write equal bytes.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        size = path.stat().st_size if path.exists() else 0
        if size < offset:
            raise InputError(
                f"--resume: {path} is shorter ({size} bytes) than its checkpoint says ({offset}); "
                "use --overwrite to begin again"
            )
        self._file: IO[bytes] = path.open("r+b" if size else "wb")
        self._file.truncate(offset)
        self._file.seek(offset)

    def write(self, row: dict[str, Any]) -> None:
        """Append one line; a NaN or an infinity, which JSON has not, becomes null."""
        clean = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in row.items()
        }
        self._file.write(json.dumps(clean, allow_nan=False).encode() + b"\n")

    def flush(self) -> int:
        """Bring all lines to the disk and return the length of the file."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a metrics file as dictionaries; null values become NaN."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield {k: math.nan if v is None else v for k, v in json.loads(line).items()}
