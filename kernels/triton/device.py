"""The algorithms as device functions on native float32 and float64 values."""

from mcf.kernels import algorithms
from mcf.kernels.formats import FP32
from mcf.kernels.triton.device_functions import binder
from mcf.kernels.triton.dialect import Dialect

# The hardware rounds, so the same functions serve float32 and float64. Only `split` depends on the
# format; it is float32's.
_bind = binder(FP32, FP32, (("rc", FP32),), (), Dialect.of_process())

two_sum = _bind(algorithms.two_sum)
fast_two_sum = _bind(algorithms.fast_two_sum)
split = _bind(algorithms.split)
two_prod = _bind(algorithms.two_prod)
grow = _bind(algorithms.grow)
scale = _bind(algorithms.scale)
add = _bind(algorithms.add)
mul = _bind(algorithms.mul)
renormalize = _bind(algorithms.renormalize)
