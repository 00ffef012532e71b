"""The algorithms as device functions on fp16 components held in float32 registers."""

from mcf.kernels.formats import FP16
from mcf.kernels.triton.device_functions import transforms

two_sum, fast_two_sum, split, two_prod, grow, scale, add, mul, renormalize = transforms(FP16)
