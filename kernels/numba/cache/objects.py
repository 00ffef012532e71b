"""Object code of loops: what is kept of them in files, and how it comes back without Numba."""

from __future__ import annotations

import contextlib
import struct
from typing import Any, NamedTuple

import llvmlite.binding as llvm

from mcf.kernels import sealed_files

# What object code may call: functions of the C library and of the compiler's own, whose names say
# what they compute. LLVM ends the process where it does not find one.
CALLABLE = frozenset(
    "memcpy memmove memset fma fmaf rint rintf sqrt sqrtf "
    "__extendhfsf2 __truncsfhf2 __gnu_h2f_ieee __gnu_f2h_ieee".split()
)
_MAGIC = b"mcf loop 1\n"
# e_type of a relocatable file, sh_type of a table of symbols.
_RELOCATABLE, _SYMBOLS = 1, 2


class Code(NamedTuple):
    """A function `void(uint64)` in object code.

    Args:
        symbol: its name there.
        elf: the object file.
    """

    symbol: str
    elf: bytes


class Native(NamedTuple):
    """A function that can be called.

    Args:
        address: of the function.
        keep: the function goes with this object.
    """

    address: int
    keep: Any


def packed(key: str, code: Code) -> bytes:
    """A file's content, see `sealed`."""
    return sealed_files.packed(_MAGIC, key, {"symbol": code.symbol}, code.elf)


def unpacked(key: str, data: bytes) -> Code | None:
    """What `packed` was given; None of anything else, and of what another key was given for."""
    found = sealed_files.unpacked(_MAGIC, key, data)
    return None if found is None else Code(found[0]["symbol"], found[1])


def undefined(elf: bytes) -> set[str] | None:
    """The names that object code needs from elsewhere; None of what is no ELF of 64 bits."""
    try:
        magic, kind = struct.unpack_from("<6s10xH", elf)
        if magic != b"\x7fELF\x02\x01" or kind != _RELOCATABLE:
            return None
        (table,) = struct.unpack_from("<Q", elf, 0x28)
        size, count = struct.unpack_from("<HH", elf, 0x3A)
        sections = [struct.unpack_from("<IIQQQQIIQQ", elf, table + k * size) for k in range(count)]
        names = set()
        for _, what, _, _, start, length, link, _, _, each in sections:
            if what != _SYMBOLS:
                continue
            strings = sections[link][4]
            # The first symbol is none.
            for place in range(start + each, start + length, each):
                name, _, _, section = struct.unpack_from("<IBBH", elf, place)
                if section == 0:
                    end = elf.index(b"\0", strings + name)
                    names.add(elf[strings + name : end].decode())
        return names
    except (struct.error, IndexError, ValueError, ZeroDivisionError):
        return None


def target() -> Any:
    """LLVM's target for this process."""
    # Older ones want it, newer ones refuse it.
    with contextlib.suppress(RuntimeError):
        llvm.initialize()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_triple(llvm.get_process_triple())


def load(code: Code) -> Native | None:
    """Object code as a function; None where it needs what it may not, or what is not there."""
    needed = undefined(code.elf)
    if needed is None or not needed <= CALLABLE:
        return None
    machine = target().create_target_machine(jit=True)
    # One of its own for each: in all processes together names are not unique. Its memory is one
    # block, since code may address constants by a distance of 32 bits.
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine, use_lmm=True)
    if any(llvm.address_of_symbol(name) is None for name in needed):
        return None
    engine.add_object_file(llvm.ObjectFileRef.from_data(code.elf))
    engine.finalize_object()
    address = engine.get_function_address(code.symbol)
    return Native(address, engine) if address else None
