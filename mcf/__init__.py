"""Multi-component floats: numbers kept as unevaluated sums of a few low-precision floats."""

# These two imports come first: they locate the packages and check the environment.
from mcf import checkout as checkout
from mcf import kernels as kernels

# isort: split
from mcf import fourier as fourier
from mcf import linalg as linalg
from mcf import nn as nn
from mcf.accurate import *  # noqa: F403
from mcf.bounds import bound as bound
from mcf.complexes import MCFComplexTensor as MCFComplexTensor
from mcf.complexes import complex as complex
from mcf.complexes import complex_tensor as complex_tensor
from mcf.constants import e as e
from mcf.constants import pi as pi
from mcf.convert.printing import set_printoptions as set_printoptions
from mcf.expansions.conversion import from_components as from_components
from mcf.expansions.creation import *  # noqa: F403
from mcf.expansions.dispatch.registry import UnsupportedError as UnsupportedError
from mcf.expansions.interchange.flat_state import flatten_state as flatten_state
from mcf.expansions.interchange.flat_state import unflatten_state as unflatten_state
from mcf.expansions.random import *  # noqa: F403
from mcf.expansions.tensor import MCFTensor as MCFTensor
from mcf.explaining import explain as explain
from mcf.functions import *  # noqa: F403
from mcf.fusion import fused as fused
from mcf.kernels.register_choice import get_registers as get_registers
from mcf.kernels.register_choice import registers as registers
from mcf.kernels.register_choice import set_registers as set_registers
from mcf.kernels.registry import ExecutorWarning as ExecutorWarning
from mcf.kernels.registry import executor as executor
from mcf.kernels.registry import get_executor as get_executor
from mcf.kernels.registry import set_executor as set_executor
from mcf.polynomials import polyval as polyval
from mcf.products import matmul as matmul
from mcf.public import public as _public
from mcf.transforms import *  # noqa: F403

__version__ = "0.1.0"

__all__ = _public(globals(), ("fourier", "kernels", "linalg", "nn", "optim"))


def __dir__() -> list[str]:
    """Return the public names, which editors complete."""
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
