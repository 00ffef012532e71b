"""Locate `mcf.kernels` and `mcf.optim` in a checkout, where their folders are next to this one.

They are found whether or not anything is installed. Links to these files (an editable install)
resolve to the checkout, so that files added after the install are found too. An installed package
contains both folders, and nothing changes.
"""

import os.path
import sys

_folder = os.path.dirname(os.path.realpath(__file__))
_root = os.path.dirname(_folder)

if not os.path.isdir(os.path.join(_folder, "kernels")):
    # Only in this project's folder: another project's `kernels` would be another package.
    if os.path.isfile(os.path.join(_root, "pyproject.toml")):
        sys.modules["mcf"].__path__ = [_folder, _root]
