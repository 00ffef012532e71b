"""What is installed here without any `mcf`, for tests of where Python and type checkers find it."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path


def packages_without_mcf(folder: Path) -> Path:
    """Make `folder`, of links to every installed package but this one, and return it."""
    folder.mkdir()
    # Both kinds of packages, and those that .pth files name.
    places = [sysconfig.get_path(kind) for kind in ("purelib", "platlib")]
    for place in [*places, *(each for each in sys.path if each.endswith("site-packages"))]:
        for entry in Path(place).iterdir():
            mine = entry.name.startswith(("mcf", "__editable__", "__pycache__"))
            if not mine and entry.suffix != ".pth" and not (folder / entry.name).exists():
                (folder / entry.name).symlink_to(entry)
    return folder
