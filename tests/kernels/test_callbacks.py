"""Compilations leave the garbage collector as they found it, those that fail as well."""

from __future__ import annotations

import gc

import pytest

pytest.importorskip("numba")


@pytest.mark.parametrize("collects", [True, False])
def test_garbage_is_collected_again_after_a_compilation(collects: bool) -> None:
    from numba.core.errors import TypingError

    from mcf.kernels.numba.compile import callbacks

    seen = []

    def refused(table: int) -> None:
        table.nothing  # noqa: B018

    finalize = callbacks.Library._finalize_final_module

    def looked(library: callbacks.Library) -> None:
        seen.append(gc.isenabled())
        finalize(library)

    def nothing(table: int) -> None:
        pass

    was = gc.isenabled()
    try:
        (gc.enable if collects else gc.disable)()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(callbacks.Library, "_finalize_final_module", looked)
            callbacks.compiled(nothing)
        assert gc.isenabled() == collects
        assert seen
        assert not any(seen)
        with pytest.raises(TypingError, match="nothing"):
            callbacks.compiled(refused)
        assert gc.isenabled() == collects
    finally:
        (gc.enable if was else gc.disable)()
