"""The inputs with which torch tests its own optimizers: helpers of its, not a public interface.

Importing them makes another profile of hypothesis the current one; it is put back.
"""

from __future__ import annotations

import warnings

import hypothesis

_profile = hypothesis.settings.get_current_profile_name()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_optimizers import OptimizerErrorEnum as OptimizerErrorEnum
    from torch.testing._internal.common_optimizers import optim_db as optim_db
hypothesis.settings.load_profile(_profile)
