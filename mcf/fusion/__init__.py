"""Compile programs on expansions to few kernels, through `torch.compile`."""

from mcf.fusion.backend import fused as fused
