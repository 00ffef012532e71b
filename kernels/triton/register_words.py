"""Operations on words for Triton: int32 tensors if registers are float32."""

import triton.language as tl


def _bits(x):
    return x.to(tl.int32, bitcast=True)


def _from_bits(w):
    return w.to(tl.float32, bitcast=True)


def _word(x):
    return x.to(tl.int32)


def _number(w):
    return w.to(tl.float32)


def _wadd(a, b):
    return a + b


def _wsub(a, b):
    return a - b


def _wmul(a, b):
    return a * b


def _wand(a, b):
    return a & b


def _wor(a, b):
    return a | b


def _wxor(a, b):
    return a ^ b


def _wshl(a, count):
    return a << count


def _wshr(a, count):
    return (a.to(tl.uint32, bitcast=True) >> count).to(tl.int32, bitcast=True)


def _wsar(a, count):
    return a >> count


WORDS = {
    "bits": _bits,
    "from_bits": _from_bits,
    "word": _word,
    "number": _number,
    "wadd": _wadd,
    "wsub": _wsub,
    "wmul": _wmul,
    "wand": _wand,
    "wor": _wor,
    "wxor": _wxor,
    "wshl": _wshl,
    "wshr": _wshr,
    "wsar": _wsar,
}
