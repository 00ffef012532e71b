"""The arithmetic, written once as straight-line formulas that executors bind."""

from mcf.kernels.algorithms.pairs import add as add
from mcf.kernels.algorithms.pairs import grow as grow
from mcf.kernels.algorithms.pairs import mul as mul
from mcf.kernels.algorithms.pairs import renormalize as renormalize
from mcf.kernels.algorithms.pairs import scale as scale
from mcf.kernels.algorithms.transforms import fast_two_sum as fast_two_sum
from mcf.kernels.algorithms.transforms import split as split
from mcf.kernels.algorithms.transforms import two_prod as two_prod
from mcf.kernels.algorithms.transforms import two_sum as two_sum
from mcf.kernels.algorithms.words import join8 as join8
from mcf.kernels.algorithms.words import join16 as join16
from mcf.kernels.algorithms.words import split8 as split8
from mcf.kernels.algorithms.words import split16 as split16
from mcf.kernels.algorithms.words import stochastic as stochastic
from mcf.kernels.algorithms.words import stochastic8_high as stochastic8_high
from mcf.kernels.algorithms.words import stochastic8_low as stochastic8_low
