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


# A word is 32 bits, the bits of a float32 register or an integer in two's complement; sums,
# differences and products are modulo 2**32. Integer literals among them are in [-2**31, 2**31).


def bits(x):
    """The word with the bits of a float32 register."""
    _unbound("bits")


def from_bits(w):
    """The float32 register with the bits of a word."""
    _unbound("from_bits")


def word(x):
    """A register that holds an integer of at most 24 bits, as a word."""
    _unbound("word")


def number(w):
    """A word of at most 24 bits and a sign, as a register that holds that integer."""
    _unbound("number")


def wadd(a, b):
    """a + b of words."""
    _unbound("wadd")


def wsub(a, b):
    """a - b of words."""
    _unbound("wsub")


def wmul(a, b):
    """a * b of words."""
    _unbound("wmul")


def wand(a, b):
    """The bits that both words have."""
    _unbound("wand")


def wor(a, b):
    """The bits that either word has."""
    _unbound("wor")


def wxor(a, b):
    """The bits that exactly one word has."""
    _unbound("wxor")


def wshl(a, count):
    """A word shifted left by 0 to 31 bits."""
    _unbound("wshl")


def wshr(a, count):
    """A word shifted right by 0 to 31 bits; zeros come in from the left."""
    _unbound("wshr")


def wsar(a, count):
    """A word shifted right by 0 to 31 bits; copies of its sign come in from the left."""
    _unbound("wsar")


# Veltkamp's constant 2**ceil(p/2) + 1 of the arithmetic's format.
SPLITTER = None

# The register's 0 and 1; a literal would be a float64 on some executors.
ZERO = None
ONE = None

# The largest finite number of the format of `rv`.
LARGEST = None
