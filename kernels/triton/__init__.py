"""The GPU executor, and the algorithms as device functions for your own Triton kernels.

`from mcf.kernels.triton import two_sum` gives a function to call inside a `@triton.jit` kernel on
float32 or float64 values. `mcf.kernels.triton.bf16` and `.fp16` hold the versions for 16-bit
components, whose values are float32 registers rounded to the format after each operation. Launch
the kernel with `enable_fp_fusion=False`: by default Triton contracts a multiplication and an
addition into one FMA, which changes the rounding that these functions rely on.
"""

from mcf.kernels.triton import bf16 as bf16
from mcf.kernels.triton import fp16 as fp16
from mcf.kernels.triton.device import add as add
from mcf.kernels.triton.device import fast_two_sum as fast_two_sum
from mcf.kernels.triton.device import grow as grow
from mcf.kernels.triton.device import mul as mul
from mcf.kernels.triton.device import renormalize as renormalize
from mcf.kernels.triton.device import scale as scale
from mcf.kernels.triton.device import split as split
from mcf.kernels.triton.device import two_prod as two_prod
from mcf.kernels.triton.device import two_sum as two_sum
