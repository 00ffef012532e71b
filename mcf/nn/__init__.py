"""Neural network layers and functions with expansions as parameters; 16-bit models."""

from mcf.nn import functional as functional
from mcf.nn import heads as heads
from mcf.nn.float32_modules import NORMS as NORMS
from mcf.nn.float32_modules import keep_float32 as keep_float32
from mcf.nn.modules import MCFEmbedding as MCFEmbedding
from mcf.nn.modules import MCFLayerNorm as MCFLayerNorm
from mcf.nn.modules import MCFLinear as MCFLinear
from mcf.public import public as _public

__all__ = _public(globals(), ("functional", "heads"))


def __dir__() -> list[str]:
    """Return the public names, which editors complete."""
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
