"""What is asked for so often that it is worth a kernel of its own.

Few numbers have another way, integers on the host, which is over sooner than a kernel of hundreds
of operations is compiled, and takes longer than it from then on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

# From which time on that a kind is asked for.
OFTEN = 256
_asked: Counter[Hashable] = Counter()


def often(kind: Hashable) -> bool:
    """Whether a kind has been asked for that often, this time included."""
    _asked[kind] += 1
    return _asked[kind] >= OFTEN
