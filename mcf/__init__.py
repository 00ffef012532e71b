"""Multi-component floats: numbers kept as unevaluated sums of a few low-precision floats."""

# The first two before all others: where the packages are, and whether the environment is ours.
from mcf import checkout as checkout
from mcf import kernels as kernels
from mcf import linalg as linalg
from mcf import nn as nn
from mcf.accurate import dot as dot
from mcf.accurate import mean as mean
from mcf.accurate import norm as norm
from mcf.accurate import std as std
from mcf.accurate import sum as sum
from mcf.accurate import var as var
from mcf.arithmetic import div as div
from mcf.arithmetic import fma as fma
from mcf.arithmetic import reciprocal as reciprocal
from mcf.arithmetic import rsqrt as rsqrt
from mcf.arithmetic import sqrt as sqrt
from mcf.arithmetic import square as square
from mcf.arithmetic import sub as sub
from mcf.bounds import bound as bound
from mcf.functions import add as add
from mcf.functions import fast_two_sum as fast_two_sum
from mcf.functions import grow as grow
from mcf.functions import mul as mul
from mcf.functions import renormalize as renormalize
from mcf.functions import scale as scale
from mcf.functions import split as split
from mcf.functions import two_prod as two_prod
from mcf.functions import two_sum as two_sum
from mcf.kernels.registry import ExecutorWarning as ExecutorWarning
from mcf.kernels.registry import executor as executor
from mcf.kernels.registry import get_executor as get_executor
from mcf.kernels.registry import set_executor as set_executor
from mcf.polynomials import polyval as polyval
from mcf.tensor import MCFTensor as MCFTensor
from mcf.tensor import UnsupportedError as UnsupportedError
from mcf.tensor import arange as arange
from mcf.tensor import eye as eye
from mcf.tensor import from_components as from_components
from mcf.tensor import full as full
from mcf.tensor import full_like as full_like
from mcf.tensor import linspace as linspace
from mcf.tensor import ones as ones
from mcf.tensor import ones_like as ones_like
from mcf.tensor import rand as rand
from mcf.tensor import rand_like as rand_like
from mcf.tensor import randn as randn
from mcf.tensor import randn_like as randn_like
from mcf.tensor import set_printoptions as set_printoptions
from mcf.tensor import tensor as tensor
from mcf.tensor import zeros as zeros
from mcf.tensor import zeros_like as zeros_like

__version__ = "0.1.0"
