"""Elementary functions on tuples of components.

Every function takes expansions as tuples of 1 to 4 tensors (bfloat16, float16, float32, float64),
largest component first and normalised, of one dtype and device, which broadcast; it returns as many
components as the longest argument, normalised. Special values are those of C99 (Annex F).

The result is computed with some 10 bits more than it has and rounded once, so that its error is
little above that of the rounding itself: `mcf.bound` has the bounds.
Four components of float64 are computed with no more than themselves. Results below the smallest
normal number times u**(1 - n) lose the bits that have no place above the smallest subnormal one;
results beyond the largest number are infinite. All executors give the same bits.

Raises, all of them: `TypeError` for other dtypes, mixed dtypes or devices; `ValueError` for shapes
that do not broadcast or a wrong number of components; `RuntimeError` for tensors that require grad
while grad mode is on: derivatives belong to `mcf.MCFTensor`.
"""

from mcf.elementary import complex_functions as complex_functions
from mcf.elementary import complex_inverses as complex_inverses
from mcf.elementary import complex_logarithms as complex_logarithms
from mcf.elementary.airy import airy_ai as airy_ai
from mcf.elementary.bessel import i0 as i0
from mcf.elementary.bessel import i0e as i0e
from mcf.elementary.bessel import i1 as i1
from mcf.elementary.bessel import i1e as i1e
from mcf.elementary.bessel import spherical_bessel_j0 as spherical_bessel_j0
from mcf.elementary.bessel_jy import j0 as j0
from mcf.elementary.bessel_jy import j1 as j1
from mcf.elementary.bessel_jy import y0 as y0
from mcf.elementary.bessel_jy import y1 as y1
from mcf.elementary.bessel_k import k0 as k0
from mcf.elementary.bessel_k import k0e as k0e
from mcf.elementary.bessel_k import k1 as k1
from mcf.elementary.bessel_k import k1e as k1e
from mcf.elementary.error import erf as erf
from mcf.elementary.error import erfc as erfc
from mcf.elementary.error import gelu as gelu
from mcf.elementary.error import gelu_tanh as gelu_tanh
from mcf.elementary.error import normal_cdf as normal_cdf
from mcf.elementary.error import normal_pdf as normal_pdf
from mcf.elementary.error_slopes import erf_1 as erf_1
from mcf.elementary.gamma import digamma as digamma
from mcf.elementary.gamma import lgamma as lgamma
from mcf.elementary.gamma import trigamma as trigamma
from mcf.elementary.hyperbolic import acosh as acosh
from mcf.elementary.hyperbolic import asinh as asinh
from mcf.elementary.hyperbolic import atanh as atanh
from mcf.elementary.hyperbolic import cosh as cosh
from mcf.elementary.hyperbolic import sigmoid as sigmoid
from mcf.elementary.hyperbolic import sinh as sinh
from mcf.elementary.hyperbolic import tanh as tanh
from mcf.elementary.integral_parts import ceil as ceil
from mcf.elementary.integral_parts import floor as floor
from mcf.elementary.integral_parts import round as round
from mcf.elementary.integral_parts import trunc as trunc
from mcf.elementary.inverse_error import erfinv as erfinv
from mcf.elementary.inverse_error import ndtri as ndtri
from mcf.elementary.polygamma import polygamma_2 as polygamma_2
from mcf.elementary.polygamma import polygamma_3 as polygamma_3
from mcf.elementary.polygamma import polygamma_4 as polygamma_4
from mcf.elementary.power import hypot as hypot
from mcf.elementary.power import pow as pow
from mcf.elementary.remainders import fmod as fmod
from mcf.elementary.remainders import remainder as remainder
from mcf.elementary.scaled_error import erfcx as erfcx
from mcf.elementary.scaled_error import log_ndtr as log_ndtr
from mcf.elementary.softmax import log_softmax as log_softmax
from mcf.elementary.softmax import logsumexp as logsumexp
from mcf.elementary.softmax import softmax as softmax
from mcf.elementary.transcendental import exp as exp
from mcf.elementary.transcendental import expm1 as expm1
from mcf.elementary.transcendental import log as log
from mcf.elementary.transcendental import log1p as log1p
from mcf.elementary.transcendental import log2 as log2
from mcf.elementary.transcendental import log10 as log10
from mcf.elementary.trigonometric import acos as acos
from mcf.elementary.trigonometric import asin as asin
from mcf.elementary.trigonometric import atan as atan
from mcf.elementary.trigonometric import atan2 as atan2
from mcf.elementary.trigonometric import cos as cos
from mcf.elementary.trigonometric import sin as sin
from mcf.elementary.trigonometric import tan as tan
