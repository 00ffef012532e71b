"""Linear algebra on expansion tensors, in full expansion arithmetic.

Every function is `torch.linalg`'s of the same name: the same arguments, shapes, batches, results,
errors and derivatives, for real matrices of up to a few hundred rows. `torch.linalg`'s own
functions do the same on expansion tensors. With the unit roundoff u**terms and n rows:

- `lu`, `cholesky`, `qr`, `solve`, `inv`, `det` have the backward errors of the textbook algorithms
  (Higham 2002, Accuracy and Stability of Numerical Algorithms, 2nd ed.,
  doi:10.1137/1.9780898718027): residuals of A x - b relative to |A||x| are a few n u**terms, and
  the error of x is that times the condition number. `qr` of narrower formats than float64 works in
  two components of that and rounds once, as the functions below do.
- `eigh` and `svd` give |A V - V diag(w)| and |A V - U diag(s)| of at most 160 n u**terms |A|, n the
  lesser of rows and columns, and |V^T V - I| and |U^T U - I| of at most 160 n u**terms (Frobenius
  norms), for clusters, equal eigenvalues and deficient ranks too (`eigh` 208 n where rotations end
  it; `docs/numerics.md` lists the proofs; the observed factors are some n, and 34 n next to
  multiples of the identity); |A - U diag(s) V^T| is within that too; w and s are off by about as
  much. Components that a format's smallest number cuts off are lost besides, here and in
  multipliers of `lu`. The algorithm is one-sided Jacobi, first in float64 arithmetic and then all
  rotations at once as matrix products (Ogita, Aishima 2018, doi:10.1007/s13160-018-0310-3), or one
  by one in expansions where they are not small; no LAPACK, so that the bits are the same
  everywhere. Eigenvectors have either sign. A matrix that is not finite raises `LinAlgError`.
- `pinv`, `matrix_rank`, `cond` and norms by singular values follow from these. The default `rtol`
  is max(m, n) times 2 u**terms, the epsilon of the expansion and not of its components.
- `lstsq` without a driver solves by QR where R's diagonal says full rank, otherwise by singular
  values, for the solution of least norm. `driver="gels"` is QR alone, and raises for a column of
  zeros; "gelsy", "gelsd" and "gelss" are singular values, with `rcond` and a rank.
- `matrix_exp` is scaling and squaring with a Taylor polynomial whose degree fits the format:
  an error of at most c n (1 + |A|) u**terms e**|A| in the 1-norm.

`torch.compile` takes each decomposition as one operator, whose bits are the eager ones; `lstsq` by
"gelsd" or "gelss" of more rows than columns has results whose shapes depend on the rank, and is
not traced.

The derivatives are torch's formulas in the same arithmetic. `eig` and `eigvals` of general matrices
have complex results (`mcf.complexes`), with |A v - w v| of at most 16 n u**terms |A| and |v| = 1.
"""

import torch
from torch.linalg import LinAlgError as LinAlgError  # type: ignore[attr-defined]
from torch.linalg import cholesky as cholesky
from torch.linalg import cholesky_ex as cholesky_ex
from torch.linalg import cond as cond
from torch.linalg import cross as cross
from torch.linalg import det as det
from torch.linalg import diagonal as diagonal
from torch.linalg import eig as eig
from torch.linalg import eigh as eigh
from torch.linalg import eigvals as eigvals
from torch.linalg import eigvalsh as eigvalsh
from torch.linalg import householder_product as householder_product
from torch.linalg import inv as inv
from torch.linalg import inv_ex as inv_ex
from torch.linalg import ldl_factor as ldl_factor
from torch.linalg import ldl_factor_ex as ldl_factor_ex
from torch.linalg import ldl_solve as ldl_solve
from torch.linalg import lstsq as lstsq
from torch.linalg import lu as lu
from torch.linalg import lu_factor as lu_factor
from torch.linalg import lu_factor_ex as lu_factor_ex
from torch.linalg import lu_solve as lu_solve
from torch.linalg import matmul as matmul
from torch.linalg import matrix_exp as matrix_exp
from torch.linalg import matrix_norm as matrix_norm
from torch.linalg import matrix_power as matrix_power
from torch.linalg import matrix_rank as matrix_rank
from torch.linalg import multi_dot as multi_dot
from torch.linalg import norm as norm
from torch.linalg import pinv as pinv
from torch.linalg import qr as qr
from torch.linalg import slogdet as slogdet
from torch.linalg import solve as solve
from torch.linalg import solve_ex as solve_ex
from torch.linalg import solve_triangular as solve_triangular
from torch.linalg import svd as svd
from torch.linalg import svdvals as svdvals
from torch.linalg import tensorinv as tensorinv
from torch.linalg import tensorsolve as tensorsolve
from torch.linalg import vander as vander
from torch.linalg import vecdot as vecdot
from torch.linalg import vector_norm as vector_norm

if hasattr(torch.linalg, "polar"):  # torch 2.14
    from torch.linalg import matrix_sqrth as matrix_sqrth  # type: ignore[attr-defined]
    from torch.linalg import polar as polar  # type: ignore[attr-defined]
from mcf.public import public as _public

__all__ = _public(globals())


def __dir__() -> list[str]:
    """Return the public names, which editors complete."""
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
