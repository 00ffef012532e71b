"""The exact executor: the algorithms over rational numbers, for tests and for reading."""

from mcf.kernels.exact.bind import bind as bind
from mcf.kernels.exact.rounding import Number as Number
from mcf.kernels.exact.rounding import is_finite as is_finite
from mcf.kernels.exact.rounding import rounding as rounding
from mcf.kernels.exact.rounding import square_root as square_root
