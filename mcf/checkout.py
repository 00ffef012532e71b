"""Where `mcf.kernels` and `mcf.optim` are in a checkout: their folders stand beside this one.

They are found there whether or not anything is installed. Links to these files (an editable
install) lead back to the checkout, so that files which came after the install are found too. An
installed package holds both folders itself, and nothing changes.
"""

import os.path
import sys

_folder = os.path.dirname(os.path.realpath(__file__))
_root = os.path.dirname(_folder)

if not os.path.isdir(os.path.join(_folder, "kernels")):
    # Not in another project's folder, whose `kernels` would be another package.
    if os.path.isfile(os.path.join(_root, "pyproject.toml")):
        sys.modules["mcf"].__path__ = [_folder, _root]
