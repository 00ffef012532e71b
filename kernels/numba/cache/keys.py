"""Keys of compiled loops: equal if and only if compilation would yield the same code.

A loop depends on its generated source and the algorithms that this calls, and on this package's
primitives and rewrites. It also depends on the versions of Python, Numba and LLVM, and on the
processor. Algorithms are hashed as code objects in memory, since tests and users create them at any
time. The package is hashed by its files, since most of it is not imported when a loop is loaded.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from mcf.kernels.bind import PRIMITIVE_NAMES, Algorithm
from mcf.kernels.formats import Format
from mcf.kernels.numba.runtime import processor

# Numba variables that do not affect the compiled code.
_SILENT = ("NUMBA_CACHE_", "NUMBA_NUM_THREADS", "NUMBA_THREADING_LAYER")


def _files() -> str:
    """Return the digest of this package's files, "" if they cannot be read."""
    numba = Path(__file__).parents[1]
    try:
        others = ("bind.py", "cache_files.py", "statements.py")
        paths = [*sorted(numba.rglob("*.py")), *(numba.parent / name for name in others)]
        named = [(path.relative_to(numba.parent).as_posix(), path.read_bytes()) for path in paths]
        return digest(named)
    except OSError:
        return ""


def digest(*parts: Any) -> str:
    """Return the SHA-256 of strings, bytes, numbers, formats, code objects or their collections."""
    found = hashlib.sha256()
    for part in parts:
        _add(found, part)
    return found.hexdigest()


def _add(found: Any, part: Any) -> None:
    # Every part states its type and length, so that no two lists of parts have the same bytes.
    if isinstance(part, (tuple, list)):
        found.update(b"(%d" % len(part))
        for each in part:
            _add(found, each)
        return
    if isinstance(part, frozenset):
        _add(found, ["frozenset", *sorted(digest(each) for each in part)])
        return
    if isinstance(part, CodeType):
        _add(found, _of_code(part))
        return
    if isinstance(part, Format):
        _add(found, [part.name, part.p, part.emin, part.emax, str(part.dtype)])
        return
    if not isinstance(part, (str, bytes, bool, int, float, complex, type(None), type(...))):
        raise TypeError(f"no digest of {type(part).__name__}")
    data = part if isinstance(part, bytes) else repr(part).encode()
    found.update(b"%s %d:" % (type(part).__name__.encode(), len(data)))
    found.update(data)


def _of_code(code: CodeType) -> list[Any]:
    """List all that determines the result of a code object, without file names and line numbers."""
    return [
        "code",
        [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags],
        [code.co_code, getattr(code, "co_exceptiontable", b"")],
        [code.co_consts, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars],
    ]


def algorithm(function: Algorithm, slots: Iterable[tuple[str, Algorithm]] = ()) -> str:
    """Return the digest of an algorithm and its callees, resolved as by `mcf.kernels.bind.Binder`.

    Nothing is cached between calls: names may be rebound.
    """
    open_names = dict(slots)
    places: dict[Algorithm, int] = {}
    parts: list[Any] = []
    waiting = [function]
    places[function] = 0

    def place(callee: Algorithm) -> int:
        if callee not in places:
            places[callee] = len(places)
            waiting.append(callee)
        return places[callee]

    while waiting:
        current = waiting.pop(0)
        assert isinstance(current, FunctionType)
        bound: list[tuple[str, int]] = []
        for name in current.__code__.co_names:
            if name in open_names:
                bound.append((name, place(open_names[name])))
            elif name not in PRIMITIVE_NAMES and isinstance(
                current.__globals__.get(name), FunctionType
            ):
                bound.append((name, place(current.__globals__[name])))
        parts.append((current.__code__, bound))
    return digest(parts)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return str(importlib.import_module(package).__version__)


@functools.cache
def _versions() -> tuple[str, ...]:
    return (
        sys.version,
        str(sys.implementation.cache_tag),
        llvmlite.__version__,
        *(str(number) for number in llvm.llvm_version_info),
        llvm.get_process_triple(),
        # Importing Numba checks NumPy's version.
        *(_version(package) for package in ("numba", "numpy")),
    )


def _settings(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return Numba's environment variables and the settings file in the current folder."""
    found = [
        (name, value)
        for name, value in sorted(environment.items())
        if name.startswith("NUMBA_") and not name.startswith(_SILENT)
    ]
    try:
        return [*found, ("file", Path(".numba_config.yaml").read_text())]
    except (OSError, UnicodeError):
        return found


# Numba reads its settings when it is imported.
_told = _settings(os.environ)
_at_import = _files()


def key(*parts: Any) -> str:
    """Return the key of a loop from its parts, "" if the package's files cannot be read."""
    if not _at_import:
        return ""
    mcf_version = str(getattr(sys.modules.get("mcf"), "__version__", ""))
    target = [processor.name(), processor.features(), processor.both_pipes()]
    return digest(_at_import, _versions(), mcf_version, target, _told, parts)


def holds() -> bool:
    """Return whether this package's files are unchanged since import."""
    return _files() == _at_import
