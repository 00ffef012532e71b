"""C99's Annex G: what functions of complex numbers are at zeros, infinities and NaN.

`python -m tests.mcf.complexes.annex_g` lists where `torch.complex128` departs from it here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

# Section G.6 of the standard, with what defect reports 471 and C17 made of ctanh and cacosh beside
# a zero. Words of arguments: x any finite number, x+ one with the sign +, x0 one but zero, x0+ one
# greater than zero. Of results: cos and sin are infinities with the sign of y's, 0cos and 0sin
# zeros; ? leaves a sign open.
TABLE = {
    "acos": """
        0 0 pi/2 -0 | -0 0 pi/2 -0 | 0 nan pi/2 nan | -0 nan pi/2 nan | x inf pi/2 -inf
        x0 nan nan nan | -inf x+ pi -inf | inf x+ 0 -inf | -inf inf 3pi/4 -inf
        inf inf pi/4 -inf | inf nan nan ?inf | -inf nan nan ?inf | nan x nan nan
        nan inf nan -inf | nan nan nan nan""",
    "acosh": """
        0 0 0 pi/2 | -0 0 0 pi/2 | x inf inf pi/2 | 0 nan nan ?pi/2 | x0 nan nan nan
        -inf x+ inf pi | inf x+ inf 0 | -inf inf inf 3pi/4 | inf inf inf pi/4
        inf nan inf nan | -inf nan inf nan | nan x nan nan | nan inf inf nan | nan nan nan nan""",
    "asinh": """
        0 0 0 0 | x+ inf inf pi/2 | x nan nan nan | inf x+ inf 0 | inf inf inf pi/4
        inf nan inf nan | nan 0 nan 0 | nan x0 nan nan | nan inf ?inf nan | nan nan nan nan""",
    "atanh": """
        0 0 0 0 | 0 nan 0 nan | 1 0 inf 0 | x+ inf 0 pi/2 | x0 nan nan nan | inf x+ 0 pi/2
        inf inf 0 pi/2 | inf nan 0 nan | nan x nan nan | nan inf ?0 pi/2 | nan nan nan nan""",
    "cosh": """
        0 0 1 0 | 0 inf nan ?0 | 0 nan nan ?0 | x0 inf nan nan | x0 nan nan nan | inf 0 inf 0
        inf x0+ cos sin | inf inf ?inf nan | inf nan inf nan | nan 0 nan ?0 | nan x0 nan nan
        nan nan nan nan""",
    "sinh": """
        0 0 0 0 | 0 inf ?0 nan | 0 nan ?0 nan | x0 inf nan nan | x0 nan nan nan | inf 0 inf 0
        inf x0+ cos sin | inf inf ?inf nan | inf nan ?inf nan | nan 0 nan 0 | nan x0 nan nan
        nan nan nan nan""",
    "tanh": """
        0 0 0 0 | 0 inf 0 nan | x0 inf nan nan | 0 nan 0 nan | x0 nan nan nan | inf x+ 1 0sin2
        inf inf 1 ?0 | inf nan 1 ?0 | nan 0 nan 0 | nan x0 nan nan | nan nan nan nan""",
    "exp": """
        0 0 1 0 | -0 0 1 0 | x inf nan nan | x nan nan nan | inf 0 inf 0 | -inf x+ 0cos 0sin
        inf x0+ cos sin | -inf inf ?0 ?0 | inf inf ?inf nan | -inf nan ?0 ?0 | inf nan ?inf nan
        nan 0 nan 0 | nan x0 nan nan | nan nan nan nan""",
    "log": """
        -0 0 -inf pi | 0 0 -inf 0 | x inf inf pi/2 | x nan nan nan | -inf x+ inf pi | inf x+ inf 0
        -inf inf inf 3pi/4 | inf inf inf pi/4 | inf nan inf nan | -inf nan inf nan | nan x nan nan
        nan inf inf nan | nan nan nan nan""",
    "sqrt": """
        0 0 0 0 | -0 0 0 0 | x inf inf inf | inf inf inf inf | -inf inf inf inf | nan inf inf inf
        x nan nan nan | -inf x+ 0 inf | inf x+ inf 0 | -inf nan nan ?inf | inf nan inf nan
        nan x nan nan | nan nan nan nan""",
}
ODD, EVEN = ("asinh", "atanh", "sinh", "tanh"), ("cosh",)
# f(z) = -i g(iz), and cos z = cosh(iz).
TURNED = {"asin": "asinh", "atan": "atanh", "sin": "sinh", "tan": "tanh"}

_FINITE = (0.0, -0.0, 0.5, -0.5, 2.5, -2.5, 4.0, 5.5)
_WORDS: dict[str, tuple[float, ...]] = {
    "x": _FINITE,
    "x+": tuple(v for v in _FINITE if math.copysign(1, v) > 0),
    "x0": tuple(v for v in _FINITE if v),
    "x0+": tuple(v for v in _FINITE if v > 0),
}
_ANGLES = {"pi": math.pi, "pi/2": math.pi / 2, "pi/4": math.pi / 4, "3pi/4": 3 * math.pi / 4}
_OF_Y: dict[str, Callable[[float], float]] = {
    "cos": lambda y: math.copysign(math.inf, math.cos(y)),
    "sin": lambda y: math.copysign(math.inf, math.sin(y)),
    "0cos": lambda y: math.copysign(0.0, math.cos(y)),
    "0sin": lambda y: math.copysign(0.0, math.sin(y)),
    "0sin2": lambda y: math.copysign(0.0, math.sin(2 * y)),
}
# A number whose sign is given, or left open.
Expected = tuple[float, bool]
Row = tuple[complex, tuple[Expected, Expected]]


def _result(word: str, y: float) -> Expected:
    if word in _OF_Y:
        return _OF_Y[word](y), False
    bare = word.lstrip("?")
    return _ANGLES[bare] if bare in _ANGLES else float(bare), word != bare


def _times(sign: int, expected: Expected) -> Expected:
    return sign * expected[0], expected[1]


def _symmetric(name: str) -> Iterator[Row]:
    for text in TABLE[name].replace("\n", "|").split("|"):
        if not text.strip():
            continue
        first, second, *words = text.split()
        for x, y in itertools.product(*(_WORDS.get(w) or (float(w),) for w in (first, second))):
            u, v = (_result(w, y) for w in words)
            yield complex(x, y), (u, v)
            yield complex(x, -y), (u, _times(-1, v))
            if name in ODD:
                yield complex(-x, y), (_times(-1, u), v)
                yield complex(-x, -y), (_times(-1, u), _times(-1, v))
            if name in EVEN:
                yield complex(-x, -y), (u, v)
                yield complex(-x, y), (u, _times(-1, v))


def rows(name: str) -> list[Row]:
    """Arguments and results of a function, conjugates and what is odd or even among them."""
    if name == "cos":
        return [(complex(z.imag, -z.real), w) for z, w in _symmetric("cosh")]
    if name in TURNED:
        # With z = -iw: f(z) = -i g(w).
        return [
            (complex(z.imag, -z.real), (v, _times(-1, u))) for z, (u, v) in _symmetric(TURNED[name])
        ]
    return list(_symmetric(name))


NAMES = (*TABLE, *TURNED, "cos")


def departs(found: complex, expected: tuple[Expected, Expected], near: float = 0.0) -> bool:
    """Whether a result is another than the table's; angles may err by so much."""
    for mine, (theirs, is_open) in zip((found.real, found.imag), expected, strict=True):
        if math.isnan(theirs) != math.isnan(mine):
            return True
        if math.isnan(theirs):
            continue
        if is_open:
            mine, theirs = abs(mine), abs(theirs)
        if math.copysign(1, mine) != math.copysign(1, theirs):
            return True
        if mine != theirs and not abs(mine - theirs) <= near:
            return True
    return False


def _torch(name: str, lanes: int) -> list[Any]:
    """Where torch departs, in its loops of one element or of vectors."""
    found = []
    for z, expected in rows(name):
        result = getattr(torch, name)(torch.tensor([z] * lanes, dtype=torch.complex128))
        if departs(result[0].item(), expected, 2.0**-50):
            found.append((z, result[0].item()))
    return found


if __name__ == "__main__":
    print("torch", torch.__version__, "departs from Annex G in")
    for name in NAMES:
        one, many = _torch(name, 1), _torch(name, 64)
        print(f"{name:6} {len(one):3} (in vectors {len(many):3}) of {len(rows(name))}", one[:4])
