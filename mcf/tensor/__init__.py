"""The expansion tensor."""

from mcf.tensor import dispatch as dispatch
from mcf.tensor.conversion import from_components as from_components
from mcf.tensor.creation import tensor as tensor
from mcf.tensor.dispatch.registry import UnsupportedError as UnsupportedError
from mcf.tensor.tensor import MCFTensor as MCFTensor
