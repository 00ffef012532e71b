"""Multi-component floats: numbers kept as unevaluated sums of a few low-precision floats."""

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
from mcf.tensor import MCFTensor as MCFTensor
from mcf.tensor import UnsupportedError as UnsupportedError
from mcf.tensor import from_components as from_components
from mcf.tensor import tensor as tensor

__version__ = "0.1.0"
