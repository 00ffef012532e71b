"""The algorithms as device functions on native float32 and float64 values."""

from mcf.kernels.formats import FP32
from mcf.kernels.triton.device_functions import transforms

# The hardware rounds, so the same functions serve float32 and float64. Only `split` depends on the
# format; it is float32's.
two_sum, fast_two_sum, split, two_prod, grow, scale, add, mul, renormalize = transforms(FP32)
