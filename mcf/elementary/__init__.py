"""Elementary functions on expansions: tuples of 1 to 4 tensors, largest component first."""

from mcf.elementary.functions import acos as acos
from mcf.elementary.functions import acosh as acosh
from mcf.elementary.functions import asin as asin
from mcf.elementary.functions import asinh as asinh
from mcf.elementary.functions import atan as atan
from mcf.elementary.functions import atan2 as atan2
from mcf.elementary.functions import atanh as atanh
from mcf.elementary.functions import cos as cos
from mcf.elementary.functions import cosh as cosh
from mcf.elementary.functions import erf as erf
from mcf.elementary.functions import erfc as erfc
from mcf.elementary.functions import exp as exp
from mcf.elementary.functions import expm1 as expm1
from mcf.elementary.functions import gelu as gelu
from mcf.elementary.functions import gelu_tanh as gelu_tanh
from mcf.elementary.functions import hypot as hypot
from mcf.elementary.functions import log as log
from mcf.elementary.functions import log1p as log1p
from mcf.elementary.functions import log2 as log2
from mcf.elementary.functions import log10 as log10
from mcf.elementary.functions import pow as pow
from mcf.elementary.functions import sigmoid as sigmoid
from mcf.elementary.functions import sin as sin
from mcf.elementary.functions import sinh as sinh
from mcf.elementary.functions import tan as tan
from mcf.elementary.functions import tanh as tanh
