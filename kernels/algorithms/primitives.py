"""The primitives from which algorithms are built; each executor binds its own versions.

The algorithms import these names and use `+`, `-`, `*` and comparisons on registers. A register
holds one number in float32 or float64 (`Format.register`); each executor replaces every name
below by its own version (see `mcf.kernels.bind`). On names of a recording they record themselves
(`mcf.kernels.statements.recorded`); otherwise they raise while they are unbound.
"""


class _Literal:
    """A number in recorded formulas, as source text."""

    def __init__(self, text):
        self.text = text

    def __mul__(self, other):
        if isinstance(other, _Literal):
            return _Literal(f"({self.text} * {other.text})")
        return NotImplemented

    def __sub__(self, other):
        if isinstance(other, _Literal):
            return _Literal(f"({self.text} - {other.text})")
        return NotImplemented


def _primitive(form):
    """Return a function that records itself on names of `mcf.kernels.statements` alone."""
    name = form.__name__

    def apply(*given):
        for x in given:
            if hasattr(x, "owner"):
                return x.owner.apply(name, *given)
        if name in ("const", "whole"):
            # Python has no literal of infinity.
            return _Literal(f"{name}({given[0]!r})".replace("inf", "1e999"))
        if given and all(isinstance(x, _Literal) for x in given):
            return _Literal(f"{name}({', '.join(x.text for x in given)})")
        raise TypeError(
            f"{name} is a primitive: bind the algorithm to an executor before calling it"
        )

    apply.__name__, apply.__doc__, apply.__wrapped__ = name, form.__doc__, form
    return apply


def rn(x):
    """Round to nearest even in the arithmetic's format; written around every operation.

    The identity where registers are the arithmetic's own format.
    """


def rx(x):
    """Round like `rn`, or keep a wider register: the algorithm's results are the same.

    For the inside of error-free transforms, where the theorem holds either way. The 16-bit formats
    leave their float32 registers alone, which also avoids the overflow of an intermediate result;
    that the results are the same is proved by trying all pairs of numbers.
    """


def rc(x):
    """Round to nearest even in the format of an expansion's components.

    The same as `rn` in strict arithmetic; differs where registers are wider than components.
    """


def rv(x):
    """Round to nearest even in the format that stores a second moment.

    The same as `rc` but for fp16 parameters, whose second moment needs the range of bf16.
    """


def fms(a, b, c):
    """RN(a * b - c), rounded once, in the arithmetic's format."""


def linear(x, a, b):
    """Return a x + b, rounded once; whether a x is rounded first must not matter.

    The result is exact, or the rounding error is far below the last bit of b. One FMA where a
    processor has it.
    """


def neg(x):
    """Return -x, also for zeros (Triton computes `-x` as 0 - x, which turns 0 into +0)."""


def signed(x):
    """Return whether the sign bit of a register is set, also for a zero or a NaN."""


def div(a, b):
    """Return a / b, correctly rounded in the register."""


def sqrt(x):
    """Return the square root of x, correctly rounded in the register."""


def where(condition, a, b):
    """Return `a` where the condition holds, `b` elsewhere."""


def lesser(a, b):
    """Return `a` where it is less than `b`, else `b`: one instruction on some processors.

    `b` is NaN only where `a` is, and the two are not zeros of different signs.
    """


def greater(a, b):
    """Return `a` where it is greater than `b`, else `b`; see `lesser`."""


def unless_payload(x, rounded, quiet):
    """Return `rounded` where x is a number, `quiet` where it is NaN.

    The upper halves of these words are x rounded to bf16. An executor may take `rounded` for all x
    if it knows that no NaN has a payload in the bits that bf16 does not keep: with those bits 0 the
    upper half of `rounded` is that of x.
    """


# A word has 32 bits: those of a float32 register, or an integer in two's complement. Sums,
# differences and products are modulo 2**32. Integer literals are in [-2**31, 2**31).


def bits(x):
    """Return the word with the bits of a float32 register."""


def from_bits(w):
    """Return the float32 register with the bits of a word."""


def word(x):
    """Convert a register that holds an integer of at most 24 bits to a word."""


def number(w):
    """Convert a signed word of at most 24 bits to a register that holds the integer."""


def wadd(a, b):
    """Return a + b of words."""


def wsub(a, b):
    """Return a - b of words."""


def wmul(a, b):
    """Return a * b of words."""


def wand(a, b):
    """Return the bitwise and of two words."""


def wor(a, b):
    """Return the bitwise or of two words."""


def wxor(a, b):
    """Return the bitwise exclusive or of two words."""


def wshl(a, count):
    """Return a word shifted left by 0 to 31 bits."""


def wshr(a, count):
    """Return a word shifted right by 0 to 31 bits, filled with zeros."""


def wsar(a, count):
    """Return a word shifted right by 0 to 31 bits, filled with copies of its sign."""


# A long is an integer in two's complement with the width of the registers: 64 bits for float64, 32
# for float32 (a word). It supports Python's `+`, `-`, `*`, `&`, `|`, `<<`, arithmetic `>>` and
# comparisons, modulo 2**64 or 2**32.


def const(x):
    """Return a literal as a register."""


def whole(k):
    """Return an integer literal as a long."""


def bits64(x):
    """Return the long with the bits of a float64 register."""


def from_bits64(w):
    """Return the float64 register with the bits of a long."""


def long(x):
    """Convert a register that holds an integer to a long."""


def floating(w):
    """Convert a signed long of at most 53 bits (24 in float32) to a register."""


def floor(x):
    """Return the largest integer at most x, as a register."""


def rint(x):
    """Return the integer nearest to x, ties to even, with the sign of x; as a register."""


def absolute(x):
    """Return |x|, with the sign bit cleared."""


def gather(table, index):
    """Return the entry of a table (`Field.table`) at a long, which must be in range."""


def invert(condition):
    """Return the negation of a condition."""


def narrow(x):
    """Round to nearest even in the format that stores results, if the arithmetic has another.

    The register keeps its width.
    """


# Veltkamp's constant 2**ceil(p/2) + 1 of the arithmetic's format.
SPLITTER = _Literal("SPLITTER")

# The register's 0 and 1; a literal would be a float64 on some executors.
ZERO = _Literal("ZERO")
ONE = _Literal("ONE")

# The largest finite number of the format of `rv`.
LARGEST = _Literal("LARGEST")

for _name, _form in [*globals().items()]:
    if callable(_form) and not _name.startswith("_"):
        globals()[_name] = _primitive(_form)
