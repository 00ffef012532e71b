"""Discrete Fourier transforms of expansions, called by `torch.fft`."""

from mcf.fourier import functions as functions

__all__ = ["functions"]
