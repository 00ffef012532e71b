"""The folder of the repository, which makes `import mcf` work beside a clone that is called `mcf`.

Python started in the folder that holds such a clone finds this file under the name of the package.
It loads the package, `mcf/__init__.py`, in its own place. It is in no wheel.
"""

import importlib.util
import os.path
import sys

_root = os.path.dirname(os.path.abspath(__file__))

if __name__ == "mcf":
    _package = os.path.join(_root, "mcf")
    _spec = importlib.util.spec_from_file_location(
        "mcf", os.path.join(_package, "__init__.py"), submodule_search_locations=[_package]
    )
    assert _spec is not None
    assert _spec.loader is not None
    # The import system returns what stands in sys.modules when this file is done.
    sys.modules["mcf"] = _module = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(_module)


def __getattr__(name: str) -> object:
    raise AttributeError(
        f"{__name__!r} is the folder of a repository ({_root}), not the package, and has no "
        f"{name!r}: use `import mcf`, after `pip install` of that folder or with it in sys.path"
    )
