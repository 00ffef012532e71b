"""Load compiled loops from the cache of files, or compile and store them.

A first running sum of pairs takes 2.7 s of processor time without the cache, with Numba's import,
and 0.6 s with it; a first exponential 0.57 and 0.02 s. Delete this, `cache` and
`mcf.kernels.cache_files` when Numba's own cache loads code without the import of its compiler.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from mcf.kernels import cache_files
from mcf.kernels.numba.cache import keys, objects
from mcf.kernels.numba.cache.objects import Code, Native
from mcf.kernels.numba.compile import rewrite

# Number of loops that this process has compiled.
compiled = 0

lock = threading.RLock()


def _after_fork() -> None:
    # Another thread of the parent may have held the lock at the fork.
    global lock
    lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def native(parts: tuple[Any, ...], make: Callable[[], tuple[Any, str]]) -> Native:
    """Return the function with these parts, see `keys.key`.

    Args:
        parts: all that determines the function, except this package, versions and processor.
        make: compiles it; returns Numba's library and the function's name there. Called only if the
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
        # Run the stored object code in this process too: same code with and without the cache.
        found = objects.load(code) if code is not None else None
        if code is None or found is None:
            return Native(library.get_pointer_to_function(symbol), library)
        if key and keys.holds():
            cache_files.write(key, objects.packed(key, code))
        return found


Maker = TypeVar("Maker", bound=Callable[..., Any])


def once(make: Maker) -> Maker:
    """Cache the results of a function, each computed by one thread only.

    Other threads wait: a duplicate would be freed while tables hold its address. Cached results are
    looked up without the lock, which an interrupt would leave taken.
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
    """Return the object code; None if it needs Python or holds addresses of this process."""
    if library.has_dynamic_globals:
        return None
    text = library.get_llvm_str()
    code = Code(symbol, rewrite.emit(rewrite.without_errors(text, symbol) or text))
    needed = objects.undefined(code.elf)
    return code if needed is not None and needed <= objects.CALLABLE else None
