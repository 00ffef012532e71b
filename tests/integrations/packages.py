"""Other projects' packages for the tests of how they use our optimizers; skips where they are not.

`make test-integrations` installs them in an environment of their own.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import warnings
from typing import Any

import pytest
import torch

# Read while the packages are imported: nothing is downloaded, nothing reported.
for _name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "DO_NOT_TRACK"):
    os.environ.setdefault(_name, "1")

_DEFINED: list[torch.library.Library] = []


def package(name: str, module: str = "") -> Any:
    """A package, or one of its modules; without it the test, or its file, skips and says so."""
    with warnings.catch_warnings():
        # What these packages say of each other while they are imported is no fault of ours.
        warnings.simplefilter("ignore")
        if importlib.util.find_spec(name) is None:
            pytest.skip(
                f"package {name} is not installed (make test-integrations does)",
                allow_module_level=True,
            )
        if importlib.util.find_spec("torchvision") is not None:
            _vision()
        return importlib.import_module(module or name)


def _vision() -> None:
    """Import torchvision, which timm, transformers and Lightning do.

    The wheels of the public index are made for torch with CUDA. Beside torch for CPUs their own
    operators do not load, and the import fails because it describes two of them. Models of these
    tests use none.
    """
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "nms does not exist" not in str(error):
            raise
        for loaded in [m for m in sys.modules if m.split(".")[0] == "torchvision"]:
            del sys.modules[loaded]
        library = torch.library.Library("torchvision", "FRAGMENT")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _DEFINED.append(library)
        importlib.import_module("torchvision")
