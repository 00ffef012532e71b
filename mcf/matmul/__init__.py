"""Products of matrices of expansions and of plain tensors, in full expansion arithmetic."""

from mcf.matmul.products import matmul as matmul
