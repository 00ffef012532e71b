"""Compile the C++ peers, on the OpenMP library that torch runs on where it has one of its own.

Two such libraries in one process have two teams of threads, and each team waits for its next work
by spinning on the cores that the other needs.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

PEERS = Path(__file__).parent / "peers"
# What a user gets who compiles a program against Debian's library, and what this processor can do.
AS_DEBIAN = ("-O2",)
NATIVE = ("-O3", "-march=native")
LABELS = {AS_DEBIAN: "-O2", NATIVE: "-O3 -march=native"}


def _openmp() -> list[str]:
    """The linker's argument for OpenMP."""
    found = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
    return [str(found[0])] if found else ["-fopenmp"]


def multifloats() -> ctypes.CDLL | str:
    """Zhang's MultiFloats in C++, or why it is missing.

    Its header is part of github.com/dzhang314/MultiprecisionBenchmarks and of no package; the
    variable MULTIFLOATS of the environment names the folder that has MultiFloats.hpp.
    """
    folder = os.environ.get("MULTIFLOATS")
    if folder is None:
        return "MULTIFLOATS=FOLDER says where MultiFloats.hpp is"
    return driver("multifloats.cpp", (*NATIVE, "-isystem", folder), qd=False)


@functools.cache
def driver(source: str, optimise: tuple[str, ...], qd: bool = True) -> ctypes.CDLL | str:
    """A peer as a library, or why there is none.

    Args:
        source: its file in benchmarks/peers.
        optimise: the compiler's flags.
        qd: whether it is compiled with QD, which must be installed (libqd-dev).
    """
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return "no C++ compiler"
    folder = Path(tempfile.mkdtemp(prefix="mcf-bench-"))
    flags = [*optimise, "-std=c++17", "-ffp-contract=off", "-fPIC"]
    target, library = folder / "peer.o", folder / "peer.so"
    compile_ = [compiler, *flags, "-fopenmp", "-c", str(PEERS / source), "-o", str(target)]
    link = [compiler, *flags, "-shared", str(target), "-o", str(library), *_openmp()]
    if qd:
        compile_.append("-DHAVE_QD")
        link.append("-lqd")
    for command in (compile_, link):
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            return next(iter(result.stderr.splitlines()), "the compiler failed")
    return ctypes.CDLL(str(library))
