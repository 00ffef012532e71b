"""The algorithms as device functions on bf16 components held in float32 registers."""

from mcf.kernels import algorithms
from mcf.kernels.formats import BF16, FP32
from mcf.kernels.triton.device_functions import binder
from mcf.kernels.triton.dialect import Dialect

_bind = binder(FP32, BF16, (("rc", BF16),), (), Dialect.of_process())

two_sum = _bind(algorithms.two_sum)
fast_two_sum = _bind(algorithms.fast_two_sum)
split = _bind(algorithms.split)
two_prod = _bind(algorithms.two_prod)
grow = _bind(algorithms.grow)
scale = _bind(algorithms.scale)
add = _bind(algorithms.add)
mul = _bind(algorithms.mul)
renormalize = _bind(algorithms.renormalize)
