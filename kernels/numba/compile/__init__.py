"""Compilation of algorithms and loops to machine code by LLVM."""
