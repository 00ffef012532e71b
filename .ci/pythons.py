"""The Pythons that mcf is for, and where this machine has them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")


def interpreter(version: str) -> str | None:
    """A Python of that version, on the path, of pyenv or of uv."""
    roots = [Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"]
    candidates = [shutil.which(f"python{version}")]
    candidates += [str(p) for root in roots for p in sorted(root.glob(f"{version}.*/bin/python"))]
    if uv := shutil.which("uv"):
        found = subprocess.run([uv, "python", "find", version], capture_output=True, text=True)
        candidates += found.stdout.split()
    for candidate in candidates:
        # pyenv's shims are on the path for every version, and refuse those that are not chosen.
        code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
        if candidate:
            run = subprocess.run([candidate, "-c", code], capture_output=True, text=True)
            if run.stdout.strip() == version:
                return candidate
    return None
