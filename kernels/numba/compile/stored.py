"""Compiled loops from the cache of files, or compiled now and kept there."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from mcf.kernels import cache_files
from mcf.kernels.numba.cache import keys, objects
from mcf.kernels.numba.cache.objects import Code, Native
from mcf.kernels.numba.compile import emitted, rewrite

# How many loops this process has compiled.
compiled = 0

lock = threading.RLock()


def _after_fork() -> None:
    # Another thread of the parent may have held it.
    global lock
    lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def native(parts: tuple[Any, ...], make: Callable[[], tuple[Any, str]]) -> Native:
    """The function that is made of some parts, see `keys.key`.

    Args:
        parts: what it is made of, beside this package, versions and processor.
        make: compiles it: Numba's library and the function's name there. Called only where the
            cache has no such function.
    """
    global compiled
    with lock:
        key = keys.key(*parts) if cache_files.root() is not None else ""
        data = cache_files.read(key) if key else None
        code = objects.unpacked(key, data) if data is not None else None
        found = objects.load(code) if code is not None else None
        if found is not None:
            return found
        compiled += 1
        library, symbol = make()
        code = _code(library, symbol)
        # What is kept runs here too: the same code with and without the cache.
        found = objects.load(code) if code is not None else None
        if code is None or found is None:
            return Native(library.get_pointer_to_function(symbol), library)
        if key and keys.holds():
            cache_files.write(key, objects.packed(key, code))
        return found


Maker = TypeVar("Maker", bound=Callable[..., Any])


def once(make: Maker) -> Maker:
    """A function whose results are kept, of which each is made by one thread alone.

    Others wait for it: code that they would get for themselves would be given back while tables
    have its address. What is kept is found without the lock, which an interrupt would leave taken.
    """
    made: dict[tuple[Any, ...], Any] = {}

    @functools.wraps(make)
    def found(*key: Any) -> Any:
        try:
            return made[key]
        except KeyError:
            with lock:
                if key not in made:
                    made[key] = make(*key)
                return made[key]

    return found  # type: ignore[return-value]


def _code(library: Any, symbol: str) -> Code | None:
    """What Numba compiled; None where it needs Python or has addresses of this process in it."""
    if library.has_dynamic_globals:
        return None
    text = library.get_llvm_str()
    code = Code(symbol, emitted.emit(rewrite.without_errors(text, symbol) or text))
    needed = objects.undefined(code.elf)
    return code if needed is not None and needed <= objects.CALLABLE else None
