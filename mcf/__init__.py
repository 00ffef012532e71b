"""Multi-component floats: numbers kept as unevaluated sums of a few low-precision floats."""

# These two imports come first: they locate the packages and check the environment.
from mcf import checkout as checkout
from mcf import kernels as kernels

# isort: split
from mcf import fourier as fourier
from mcf import linalg as linalg
from mcf import nn as nn
from mcf.accurate import dot as dot
from mcf.accurate import mean as mean
from mcf.accurate import norm as norm
from mcf.accurate import std as std
from mcf.accurate import sum as sum
from mcf.accurate import var as var
from mcf.bounds import bound as bound
from mcf.complexes import MCFComplexTensor as MCFComplexTensor
from mcf.complexes import complex as complex
from mcf.complexes import complex_tensor as complex_tensor
from mcf.constants import e as e
from mcf.constants import pi as pi
from mcf.expansions import MCFTensor as MCFTensor
from mcf.expansions import UnsupportedError as UnsupportedError
from mcf.expansions import arange as arange
from mcf.expansions import eye as eye
from mcf.expansions import flatten_state as flatten_state
from mcf.expansions import from_components as from_components
from mcf.expansions import full as full
from mcf.expansions import full_like as full_like
from mcf.expansions import linspace as linspace
from mcf.expansions import ones as ones
from mcf.expansions import ones_like as ones_like
from mcf.expansions import rand as rand
from mcf.expansions import rand_like as rand_like
from mcf.expansions import randn as randn
from mcf.expansions import randn_like as randn_like
from mcf.expansions import set_printoptions as set_printoptions
from mcf.expansions import tensor as tensor
from mcf.expansions import unflatten_state as unflatten_state
from mcf.expansions import zeros as zeros
from mcf.expansions import zeros_like as zeros_like
from mcf.explaining import explain as explain
from mcf.functions import acos as acos
from mcf.functions import acosh as acosh
from mcf.functions import add as add
from mcf.functions import airy_ai as airy_ai
from mcf.functions import asin as asin
from mcf.functions import asinh as asinh
from mcf.functions import atan as atan
from mcf.functions import atan2 as atan2
from mcf.functions import atanh as atanh
from mcf.functions import ceil as ceil
from mcf.functions import cos as cos
from mcf.functions import cosh as cosh
from mcf.functions import digamma as digamma
from mcf.functions import div as div
from mcf.functions import erf as erf
from mcf.functions import erfc as erfc
from mcf.functions import erfcx as erfcx
from mcf.functions import erfinv as erfinv
from mcf.functions import exp as exp
from mcf.functions import expm1 as expm1
from mcf.functions import floor as floor
from mcf.functions import fma as fma
from mcf.functions import fmod as fmod
from mcf.functions import gelu as gelu
from mcf.functions import gelu_tanh as gelu_tanh
from mcf.functions import hypot as hypot
from mcf.functions import i0 as i0
from mcf.functions import i0e as i0e
from mcf.functions import i1 as i1
from mcf.functions import i1e as i1e
from mcf.functions import j0 as j0
from mcf.functions import j1 as j1
from mcf.functions import k0 as k0
from mcf.functions import k0e as k0e
from mcf.functions import k1 as k1
from mcf.functions import k1e as k1e
from mcf.functions import lgamma as lgamma
from mcf.functions import log as log
from mcf.functions import log1p as log1p
from mcf.functions import log2 as log2
from mcf.functions import log10 as log10
from mcf.functions import log_ndtr as log_ndtr
from mcf.functions import log_softmax as log_softmax
from mcf.functions import logsumexp as logsumexp
from mcf.functions import mul as mul
from mcf.functions import ndtri as ndtri
from mcf.functions import normal_cdf as normal_cdf
from mcf.functions import normal_pdf as normal_pdf
from mcf.functions import pow as pow
from mcf.functions import reciprocal as reciprocal
from mcf.functions import remainder as remainder
from mcf.functions import round as round
from mcf.functions import rsqrt as rsqrt
from mcf.functions import sigmoid as sigmoid
from mcf.functions import sin as sin
from mcf.functions import sinh as sinh
from mcf.functions import softmax as softmax
from mcf.functions import spherical_bessel_j0 as spherical_bessel_j0
from mcf.functions import sqrt as sqrt
from mcf.functions import square as square
from mcf.functions import sub as sub
from mcf.functions import tan as tan
from mcf.functions import tanh as tanh
from mcf.functions import trigamma as trigamma
from mcf.functions import trunc as trunc
from mcf.functions import y0 as y0
from mcf.functions import y1 as y1
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
from mcf.transforms import fast_two_sum as fast_two_sum
from mcf.transforms import grow as grow
from mcf.transforms import renormalize as renormalize
from mcf.transforms import scale as scale
from mcf.transforms import split as split
from mcf.transforms import two_prod as two_prod
from mcf.transforms import two_sum as two_sum

__version__ = "0.1.0"

__all__ = _public(globals(), ("fourier", "kernels", "linalg", "nn", "optim"))


def __dir__() -> list[str]:
    """Return the public names, which editors complete."""
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
