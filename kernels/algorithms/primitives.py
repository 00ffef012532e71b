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


def linear(x, a, b):
    """a x + b, rounded, where it does not matter whether a x is rounded before.

    It is exact, or what is lost is far below the last bit of b. One FMA where a processor has that.
    """
    _unbound("linear")


def neg(x):
    """-x, the sign of a zero turned too (Triton computes `-x` as 0 - x, which does not)."""
    _unbound("neg")


def signed(x):
    """Whether the sign bit of a register is set, that of a zero or a NaN too."""
    _unbound("signed")


def div(a, b):
    """The quotient, correctly rounded in the register."""
    _unbound("div")


def sqrt(x):
    """The square root, correctly rounded in the register."""
    _unbound("sqrt")


def where(condition, a, b):
    """`a` where the condition holds, `b` elsewhere."""
    _unbound("where")


def lesser(a, b):
    """`a` where it is less than `b`, else `b`; one instruction where a processor has that.

    `b` is NaN only where `a` is, and they are not zeros of different signs.
    """
    _unbound("lesser")


def greater(a, b):
    """`a` where it is greater than `b`, else `b`; see `lesser`."""
    _unbound("greater")


def unless_payload(x, rounded, quiet):
    """`rounded` where x is a number, `quiet` where it is NaN.

    They are words whose upper halves are x rounded to bf16. Executors that know that x cannot be a
    NaN with a payload in the bits that bf16 does not keep may take `rounded` for all: with those
    bits 0 its upper half is that of x.
    """
    _unbound("unless_payload")


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


# A long has the bits of a register, 64 beside float64 and 32 beside float32, where it is a word: an
# integer in two's complement. Python's `+`, `-`, `*`, `&`, `|`, `<<`, `>>` (with copies of the
# sign) and comparisons work on it, modulo 2**64 or 2**32.


def const(x):
    """A literal as a register."""
    _unbound("const")


def whole(k):
    """An integer literal as a long."""
    _unbound("whole")


def bits64(x):
    """The long with the bits of a float64 register."""
    _unbound("bits64")


def from_bits64(w):
    """The float64 register with the bits of a long."""
    _unbound("from_bits64")


def long(x):
    """A register that holds an integer, as a long."""
    _unbound("long")


def floating(w):
    """A long of at most 53 bits (24 in float32) and a sign as a register."""
    _unbound("floating")


def floor(x):
    """The largest integer at most x, as a register."""
    _unbound("floor")


def rint(x):
    """The integer nearest to x, the even one of two, with the sign of x; as a register."""
    _unbound("rint")


def absolute(x):
    """|x|, the sign bit turned off."""
    _unbound("absolute")


def gather(table, index):
    """The entry of a table (`Field.table`) at a long, which is inside it."""
    _unbound("gather")


def invert(condition):
    """Whether the condition does not hold."""
    _unbound("invert")


def narrow(x):
    """Round to nearest even in the format that stores results, where that is not the arithmetic's.

    The register keeps its width.
    """
    _unbound("narrow")


# Veltkamp's constant 2**ceil(p/2) + 1 of the arithmetic's format.
SPLITTER = None

# The register's 0 and 1; a literal would be a float64 on some executors.
ZERO = None
ONE = None

# The largest finite number of the format of `rv`.
LARGEST = None
