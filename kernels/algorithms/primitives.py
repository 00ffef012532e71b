"""The names an executor binds: what the algorithms are made of.

The algorithms import these names and use `+`, `-`, `*` and comparisons on registers. A register
holds one number in float32 or float64 (`Format.register`); each executor replaces every name
below by its own version (see `mcf.kernels.bind`). Called unbound they raise.
"""


def _unbound(name):
    raise TypeError(f"{name} is a primitive: bind the algorithm to an executor before calling it")


def rn(x):
    """Round to nearest even in the arithmetic's format; written around every operation.

    The identity where registers are the arithmetic's own format.
    """
    _unbound("rn")


def rx(x):
    """Round like `rn`, or leave a wider register as it is: the algorithm's results are the same.

    For the inside of error-free transforms, where the theorem holds either way. The 16-bit formats
    leave their float32 registers alone, which also avoids the overflow of an intermediate result;
    that the results are the same is proved by trying all pairs of numbers.
    """
    _unbound("rx")


def rc(x):
    """Round to nearest even in the format of an expansion's components.

    The same as `rn` in strict arithmetic; differs where registers are wider than components.
    """
    _unbound("rc")


def rv(x):
    """Round to nearest even in the format that stores a second moment.

    The same as `rc` but for fp16 parameters, whose second moment needs the range of bf16.
    """
    _unbound("rv")


def fms(a, b, c):
    """RN(a * b - c), rounded once, in the arithmetic's format."""
    _unbound("fms")


def neg(x):
    """-x, the sign of a zero turned too (Triton computes `-x` as 0 - x, which does not)."""
    _unbound("neg")


def div(a, b):
    """The quotient, correctly rounded in the register."""
    _unbound("div")


def sqrt(x):
    """The square root, correctly rounded in the register."""
    _unbound("sqrt")


def where(condition, a, b):
    """`a` where the condition holds, `b` elsewhere."""
    _unbound("where")


# Veltkamp's constant 2**ceil(p/2) + 1 of the arithmetic's format.
SPLITTER = None

# The register's 0 and 1; a literal would be a float64 on some executors.
ZERO = None
ONE = None
