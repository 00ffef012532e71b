"""The expansion tensor."""

from mcf.convert.printing import set_printoptions as set_printoptions
from mcf.tensor import copying as copying
from mcf.tensor import numpy_functions as numpy_functions
from mcf.tensor import numpy_shapes as numpy_shapes
from mcf.tensor import numpy_ufuncs as numpy_ufuncs
from mcf.tensor import operators as operators
from mcf.tensor import ops as ops
from mcf.tensor import text as text
from mcf.tensor import torch_functions as torch_functions
from mcf.tensor.conversion import from_components as from_components
from mcf.tensor.creation import tensor as tensor
from mcf.tensor.factories import arange as arange
from mcf.tensor.factories import eye as eye
from mcf.tensor.factories import full as full
from mcf.tensor.factories import full_like as full_like
from mcf.tensor.factories import linspace as linspace
from mcf.tensor.factories import ones as ones
from mcf.tensor.factories import ones_like as ones_like
from mcf.tensor.factories import zeros as zeros
from mcf.tensor.factories import zeros_like as zeros_like
from mcf.tensor.random import rand as rand
from mcf.tensor.random import rand_like as rand_like
from mcf.tensor.random import randn as randn
from mcf.tensor.random import randn_like as randn_like
from mcf.tensor.registry import UnsupportedError as UnsupportedError
from mcf.tensor.tensor import MCFTensor as MCFTensor
