"""The inputs with which torch tests its own optimizers: helpers of its, not a public interface."""

from __future__ import annotations

from tests.helpers import hypothesis_profile

with hypothesis_profile.kept():
    from torch.testing._internal.common_optimizers import OptimizerErrorEnum as OptimizerErrorEnum
    from torch.testing._internal.common_optimizers import optim_db as optim_db
