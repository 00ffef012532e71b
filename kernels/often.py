"""Count how often a kernel is requested, and compile it once that pays.

Small inputs have another path, integer arithmetic on the CPU. It is faster than compiling a kernel
of hundreds of operations, and slower than running the compiled kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

# Number of requests from which on a kernel is compiled.
OFTEN = 256
_asked: Counter[Hashable] = Counter()


def often(kind: Hashable) -> bool:
    """Count a request with this signature and return whether there were OFTEN of them."""
    _asked[kind] += 1
    return _asked[kind] >= OFTEN
