"""GNU MPFR in compiled loops: its functions by address, correctly rounded at any precision.

The library is the one that python-flint's wheel carries (FLINT needs it), or the system's. A number
is 32 bytes of ours (precision, sign, exponent, address of its digits), which `init2` fills; what is
passed about is their address.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import flint

# A number, as a row of an int64 array.
WORDS = 4
_ADDRESS, _LONG, _INT, _DOUBLE = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_double
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "init2": (None, _ADDRESS, _LONG),
    "clear": (None, _ADDRESS),
    "set_d": (_INT, _ADDRESS, _DOUBLE, _INT),
    "add_d": (_INT, _ADDRESS, _ADDRESS, _DOUBLE, _INT),
    "sub_d": (_INT, _ADDRESS, _ADDRESS, _DOUBLE, _INT),
    "get_d": (_DOUBLE, _ADDRESS, _INT),
    "mul_d": (_INT, _ADDRESS, _ADDRESS, _DOUBLE, _INT),
    "d_div": (_INT, _ADDRESS, _DOUBLE, _ADDRESS, _INT),
    "neg": (_INT, _ADDRESS, _ADDRESS, _INT),
    "sqrt": (_INT, _ADDRESS, _ADDRESS, _INT),
    "const_pi": (_INT, _ADDRESS, _INT),
    "mul_2si": (_INT, _ADDRESS, _ADDRESS, _LONG, _INT),
}
BINARY = ("add", "mul", "div", "atan2", "pow", "hypot")
_UNARY = (
    *("exp", "expm1", "log", "log1p", "log2", "log10", "sin", "cos", "tan", "asin", "acos"),
    *("atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc"),
)
_SIGNATURES |= {name: (_INT, _ADDRESS, _ADDRESS, _INT) for name in _UNARY}
_SIGNATURES |= {name: (_INT, _ADDRESS, _ADDRESS, _ADDRESS, _INT) for name in BINARY}


def _candidates() -> Iterator[str]:
    package = Path(flint.__file__).parent
    for folder in (package.parent / "python_flint.libs", package / ".dylibs"):
        yield from sorted(str(path) for path in folder.glob("libmpfr*"))
    found = ctypes.util.find_library("mpfr")
    if found:
        yield found


@functools.cache
def _library() -> ctypes.CDLL | str:
    """The library, or why there is none."""
    if ctypes.sizeof(_LONG) != 8 or ctypes.sizeof(_ADDRESS) != 8:
        return "MPFR is called with 64-bit longs and addresses, which this platform does not have"
    tried = list(_candidates())
    for path in tried:
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        if all(hasattr(library, f"mpfr_{name}") for name in _SIGNATURES):
            return library
    return (
        "no usable libmpfr: python-flint's wheels carry one, Debian has it as libmpfr6; tried "
        f"{', '.join(tried) or 'nothing'}"
    )


def missing() -> str | None:
    """Why MPFR cannot be called, None if it can: a reason to skip."""
    library = _library()
    return library if isinstance(library, str) else None


def function(name: str) -> Callable[..., Any]:
    """mpfr_<name> for Numba, without the prefix; numbers are passed as addresses."""
    library = _library()
    if isinstance(library, str):
        raise RuntimeError(library)
    returned, *arguments = _SIGNATURES[name]
    pointer: Callable[..., Any] = ctypes.CFUNCTYPE(returned, *arguments)((f"mpfr_{name}", library))
    return pointer
