"""Refuse environments that also hold the other distribution imported as `mcf`."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path


def refuse_shared() -> None:
    """Raise ImportError if the distribution `mcf` (Modified Causal Forest) is installed here too.

    Of two distributions with the package `mcf`, the files of one hide or overwrite the other's,
    and removing one breaks the other. It is called when `mcf.kernels` is imported, which every
    import of ours leads to and no module of the other project: so it is reached where the other's
    `mcf/__init__.py` stands in the place of ours.

    Raises:
        ImportError: the other distribution is there, or `mcf/__init__.py` went away with it.
    """
    for other in importlib.metadata.distributions(name="mcf"):
        summary = str(other.metadata["Summary"])
        # An older build of this project, named `mcf`, may still be installed.
        ours = summary.startswith("Multi-component floats")
        if not ours and Path(str(other.locate_file("mcf/__init__.py"))).is_file():
            raise ImportError(
                "two projects share the import name `mcf` and cannot share an environment: "
                "multi-component floats (distribution mcf-torch, which is being imported) and the "
                f"distribution mcf {other.version} in {other.locate_file('')} "
                f"({summary[:60].strip()}...). Give each an environment of its own, or remove both "
                "and install one again: pip uninstall mcf mcf-torch"
            )
    if getattr(sys.modules.get("mcf"), "__file__", None) is None:
        raise ImportError(
            "mcf/__init__.py of multi-component floats (distribution mcf-torch) is missing, as "
            "after the distribution mcf, another project, was removed from the same environment: "
            "pip install --force-reinstall --no-deps mcf-torch"
        )


refuse_shared()
