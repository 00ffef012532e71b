"""Torch's own test helpers make another profile of hypothesis the current one when imported."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import hypothesis


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Put the current profile back at the end; warnings of the import are none of ours."""
    profile = hypothesis.settings.get_current_profile_name()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    hypothesis.settings.load_profile(profile)
