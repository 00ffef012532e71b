"""Constants and tables of constants as expansions, computed once and cached per device.

Every number is rounded from an exact one (`mcf.elementary.fixed`): component by component to
nearest, so that the first m components of a row are the row of m components.
A table takes up to two seconds to compute, from integers of hundreds of bits, and depends only on
this package's source. So it is cached in the cache of compiled loops: a machine computes it once.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import mcf.kernels
from mcf.convert.numbers import components_of
from mcf.elementary import fixed
from mcf.elementary.format import left_out, working
from mcf.kernels import cache_files
from mcf.kernels.components import Components as Components
from mcf.kernels.formats import FP32, FP64, Format

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


# The largest number of components in any computation.
TERMS = 4
# Components kept in tables; pow needs more of some than it computes with.
_KEPT = TERMS + 1


def rows(values: Sequence[Fraction], terms: int = _KEPT) -> Tensor:
    """Return the components of each value, [terms, len(values)]."""
    return _rows([(v.numerator, v.denominator) for v in values], terms)


def _rows(quotients: Sequence[tuple[int, int]], terms: int = _KEPT) -> Tensor:
    """Return the components of quotients, which need not be in lowest terms."""
    numbers = [fixed.parts(*q, terms) for q in quotients]
    return torch.tensor(numbers, dtype=torch.float64, device="cpu").T


def table_of(series: Iterable[Sequence[int]], bits: int, count: int | None = None) -> Tensor:
    """Return the first `count` numbers of each series of integers in units of 2**-bits."""
    return _rows([(c, 1 << bits) for row in series for c in row[:count]])


def zero_table(zero: Fraction, floats: int = 8) -> Tensor:
    """Return a number as a one-dimensional table of floats that sum to it."""
    return _rows([zero.as_integer_ratio()], floats)[:, 0]


Maker = Callable[[], Tensor]
_makers: dict[str, Maker] = {}


def register_tables(**makers: Maker) -> None:
    """Register what makes each table, by its name."""
    _makers.update(makers)


# The names of tables on the CPU, by their addresses; see `mcf.elementary.formula_recording`.
named: dict[int, str] = {}


def table(name: str, device: torch.device) -> Tensor:
    """Return the table of a maker's name, in the working format."""
    return _table_in(name, device, working().format)


@functools.cache
def _table_in(name: str, device: torch.device, fmt: Format) -> Tensor:
    made = kept(name, _makers[name])
    if fmt is FP32 and made.dtype is torch.float64:
        # Five float64 components have more bits than those of float32, so this rounds once.
        narrow = torch.ops.mcf.convert(list(made.unbind()), torch.float32, len(made))
        made = torch.stack(narrow)
    found = made.to(device)
    if found.device.type == "cpu":
        named[found.untyped_storage().data_ptr()] = name
    return found


def lookup(name: str, index: Tensor, terms: int) -> Components:
    """Return rows of a table: `terms` components of the entries at an int64 index."""
    t = table(name, index.device)
    return tuple(entries(t[k], index) for k in range(terms))


def entries(t: Tensor, index: Tensor) -> Tensor:
    """Return entries at an int64 index, clamped, since components need not be normalised.

    While a formula is recorded, its statement clamps the index (`Writer.entry`).
    """
    return t[index if left_out.get() is not None else index.clamp(0, len(t) - 1)]


def constant(value: Fraction, terms: int, device: torch.device) -> Components:
    """Return a number as `terms` zero-dimensional tensors, in the working format."""
    return _constant_in(value, terms, device, working().format)


@functools.cache
def _constant_in(value: Fraction, terms: int, device: torch.device, fmt: Format) -> Components:
    numbers = (
        fixed.parts(*value.as_integer_ratio(), terms)
        if fmt is FP64
        else components_of(value, fmt, terms)
    )
    return tuple(torch.tensor(c, dtype=fmt.dtype, device=device) for c in numbers)


def _chunks(value: Fraction, shift: int, bits: int, count: int) -> Tensor:
    """Split a number below 2**-shift into `count` parts of `bits` bits."""
    parts, scale = [], Fraction(2) ** (bits + shift)
    for _ in range(count):
        part = round(value * scale) / scale
        parts.append(float(part))
        value -= part
        scale *= 2**bits
    return torch.tensor(parts, dtype=torch.float64, device="cpu")
