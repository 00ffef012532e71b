"""The primitives from which algorithms are built; each executor binds its own versions.

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
    """Round like `rn`, or keep a wider register: the algorithm's results are the same.

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
    """Return a x + b, rounded once; whether a x is rounded first must not matter.

    The result is exact, or the rounding error is far below the last bit of b. One FMA where a
    processor has it.
    """
    _unbound("linear")


def neg(x):
    """Return -x, also for zeros (Triton computes `-x` as 0 - x, which turns 0 into +0)."""
    _unbound("neg")


def signed(x):
    """Return whether the sign bit of a register is set, also for a zero or a NaN."""
    _unbound("signed")


def div(a, b):
    """Return a / b, correctly rounded in the register."""
    _unbound("div")


def sqrt(x):
    """Return the square root of x, correctly rounded in the register."""
    _unbound("sqrt")


def where(condition, a, b):
    """Return `a` where the condition holds, `b` elsewhere."""
    _unbound("where")


def lesser(a, b):
    """Return `a` where it is less than `b`, else `b`: one instruction on some processors.

    `b` is NaN only where `a` is, and the two are not zeros of different signs.
    """
    _unbound("lesser")


def greater(a, b):
    """Return `a` where it is greater than `b`, else `b`; see `lesser`."""
    _unbound("greater")


def unless_payload(x, rounded, quiet):
    """Return `rounded` where x is a number, `quiet` where it is NaN.

    The upper halves of these words are x rounded to bf16. An executor may take `rounded` for all x
    if it knows that no NaN has a payload in the bits that bf16 does not keep: with those bits 0 the
    upper half of `rounded` is that of x.
    """
    _unbound("unless_payload")


# A word has 32 bits: those of a float32 register, or an integer in two's complement. Sums,
# differences and products are modulo 2**32. Integer literals are in [-2**31, 2**31).


def bits(x):
    """Return the word with the bits of a float32 register."""
    _unbound("bits")


def from_bits(w):
    """Return the float32 register with the bits of a word."""
    _unbound("from_bits")


def word(x):
    """Convert a register that holds an integer of at most 24 bits to a word."""
    _unbound("word")


def number(w):
    """Convert a signed word of at most 24 bits to a register that holds the integer."""
    _unbound("number")


def wadd(a, b):
    """Return a + b of words."""
    _unbound("wadd")


def wsub(a, b):
    """Return a - b of words."""
    _unbound("wsub")


def wmul(a, b):
    """Return a * b of words."""
    _unbound("wmul")


def wand(a, b):
    """Return the bitwise and of two words."""
    _unbound("wand")


def wor(a, b):
    """Return the bitwise or of two words."""
    _unbound("wor")


def wxor(a, b):
    """Return the bitwise exclusive or of two words."""
    _unbound("wxor")


def wshl(a, count):
    """Return a word shifted left by 0 to 31 bits."""
    _unbound("wshl")


def wshr(a, count):
    """Return a word shifted right by 0 to 31 bits, filled with zeros."""
    _unbound("wshr")


def wsar(a, count):
    """Return a word shifted right by 0 to 31 bits, filled with copies of its sign."""
    _unbound("wsar")


# A long is an integer in two's complement with the width of the registers: 64 bits for float64, 32
# for float32 (a word). It supports Python's `+`, `-`, `*`, `&`, `|`, `<<`, arithmetic `>>` and
# comparisons, modulo 2**64 or 2**32.


def const(x):
    """Return a literal as a register."""
    _unbound("const")


def whole(k):
    """Return an integer literal as a long."""
    _unbound("whole")


def bits64(x):
    """Return the long with the bits of a float64 register."""
    _unbound("bits64")


def from_bits64(w):
    """Return the float64 register with the bits of a long."""
    _unbound("from_bits64")


def long(x):
    """Convert a register that holds an integer to a long."""
    _unbound("long")


def floating(w):
    """Convert a signed long of at most 53 bits (24 in float32) to a register."""
    _unbound("floating")


def floor(x):
    """Return the largest integer at most x, as a register."""
    _unbound("floor")


def rint(x):
    """Return the integer nearest to x, ties to even, with the sign of x; as a register."""
    _unbound("rint")


def absolute(x):
    """Return |x|, with the sign bit cleared."""
    _unbound("absolute")


def gather(table, index):
    """Return the entry of a table (`Field.table`) at a long, which must be in range."""
    _unbound("gather")


def invert(condition):
    """Return the negation of a condition."""
    _unbound("invert")


def narrow(x):
    """Round to nearest even in the format that stores results, if the arithmetic has another.

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
