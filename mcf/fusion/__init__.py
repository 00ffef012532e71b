"""Programs on expansions as few kernels, through `torch.compile`."""

from mcf.fusion.backend import fused as fused
