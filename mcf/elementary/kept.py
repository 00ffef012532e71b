"""Cache tables in the cache of compiled loops, so that a machine computes each once.

A table is computed from integers of hundreds of bits, in up to two seconds. Its numbers depend only
on this package's source.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import mcf.kernels
from mcf.kernels import cache_files

_MAGIC = b"mcf table 1\n"
# The files are little endian.
_TYPES = {"float64": np.dtype("<f8"), "int64": np.dtype("<i8")}


def _files() -> str:
    """Return the digest of the files that determine the tables, "" if they cannot be read."""
    package, kernels = Path(__file__).parents[1], Path(mcf.kernels.__path__[0])
    found = hashlib.sha256(sys.version.encode())
    try:
        other = [kernels / "formats.py", kernels / "cache_files.py"]
        tables = [*package.glob("elementary/*.py"), *package.glob("convert/*.py")]
        for path in sorted([*tables, *other]):
            data = path.read_bytes()
            found.update(b"%s %d:" % (path.name.encode(), len(data)) + data)
    except OSError:
        return ""
    return found.hexdigest()


_at_import = _files()


def kept(name: str, make: Callable[[], Tensor]) -> Tensor:
    """Return a contiguous table on the CPU, read from its file, or computed and stored now."""
    key = hashlib.sha256(f"{_at_import} {name}".encode()).hexdigest()
    content = cache_files.read(key) if _at_import and cache_files.root() is not None else None
    found = None if content is None else cache_files.unpacked(_MAGIC, key, content)
    if found is not None:
        header, data = found
        numbers = np.frombuffer(data, _TYPES[header["type"]]).reshape(header["shape"])
        return torch.from_numpy(numbers.astype(numbers.dtype.newbyteorder("="), copy=True))
    made = make().contiguous()
    kind = str(made.dtype).removeprefix("torch.")
    # Files that were overwritten since import do not describe the code in memory.
    if _at_import and kind in _TYPES and cache_files.root() is not None and _files() == _at_import:
        data = made.numpy().astype(_TYPES[kind]).tobytes()
        header = {"type": kind, "shape": list(made.shape)}
        cache_files.write(key, cache_files.packed(_MAGIC, key, header, data))
    return made
