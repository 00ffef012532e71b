"""Layers and functions of neural networks with expansions as parameters; 16-bit models."""

from mcf.nn import functional as functional
from mcf.nn import heads as heads
from mcf.nn.float32 import NORMS as NORMS
from mcf.nn.float32 import keep_float32 as keep_float32
from mcf.nn.modules import MCFEmbedding as MCFEmbedding
from mcf.nn.modules import MCFLayerNorm as MCFLayerNorm
from mcf.nn.modules import MCFLinear as MCFLinear
