"""Layers and functions of neural networks with expansions as parameters."""

from mcf.nn import functional as functional
from mcf.nn import heads as heads
from mcf.nn.modules import MCFEmbedding as MCFEmbedding
from mcf.nn.modules import MCFLayerNorm as MCFLayerNorm
from mcf.nn.modules import MCFLinear as MCFLinear
