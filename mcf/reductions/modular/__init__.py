"""Correctly rounded matrix products by residues: Ozaki's scheme II with a rounding test."""

from mcf.reductions.modular.multiply import exact_matrices as exact_matrices
