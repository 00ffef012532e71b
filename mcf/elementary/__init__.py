"""Elementary functions on expansions: tuples of 1 to 4 tensors, largest component first."""

from mcf.elementary import error as _error  # noqa: F401
from mcf.elementary import hyperbolic as _hyperbolic  # noqa: F401
from mcf.elementary import power as _power  # noqa: F401
from mcf.elementary import transcendental as _transcendental  # noqa: F401
from mcf.elementary import trigonometric as _trigonometric  # noqa: F401
