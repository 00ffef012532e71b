"""Linear algebra on expansion tensors, in full expansion arithmetic.

Every function is `torch.linalg`'s of the same name: the same arguments, shapes, batches, results,
errors and derivatives, for real matrices of up to a few hundred rows. `torch.linalg`'s own
functions do the same on expansion tensors. The backward errors are those of the textbook
algorithms with the unit roundoff u**terms (Higham 2002, Accuracy and Stability of Numerical
Algorithms, 2nd ed., doi:10.1137/1.9780898718027): residuals of A x - b relative to |A||x| are a few
n u**terms, and the error of x is that times the condition number.
"""

from torch.linalg import LinAlgError as LinAlgError  # type: ignore[attr-defined]
from torch.linalg import cholesky as cholesky
from torch.linalg import det as det
from torch.linalg import inv as inv
from torch.linalg import lu as lu
from torch.linalg import lu_factor as lu_factor
from torch.linalg import lu_solve as lu_solve
from torch.linalg import qr as qr
from torch.linalg import slogdet as slogdet
from torch.linalg import solve as solve
from torch.linalg import solve_triangular as solve_triangular
