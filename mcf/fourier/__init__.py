"""Discrete Fourier transforms of expansions; `torch.fft` calls them."""

from mcf.fourier import functions as functions

__all__ = ["functions"]
