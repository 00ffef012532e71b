"""The expansion tensor."""

from mcf.expansions import operators as operators
from mcf.expansions import ops as ops
from mcf.expansions.dispatch import rounded_derivatives as rounded_derivatives
from mcf.expansions.dispatch import torch_functions as torch_functions
from mcf.expansions.interchange import copying as copying
from mcf.expansions.interchange import numpy_functions as numpy_functions
from mcf.expansions.interchange import numpy_ufuncs as numpy_ufuncs
from mcf.expansions.interchange import text as text
from mcf.expansions.tensor import MCFTensor as MCFTensor
