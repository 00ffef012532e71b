"""Implement torch functions on expansion tensors, one folder per subject."""

import importlib
import pkgutil

# Each module registers its functions.
for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
    importlib.import_module(_module.name)
