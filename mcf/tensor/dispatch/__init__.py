"""What each torch operator does on expansion tensors, one file a topic."""

from mcf.tensor.dispatch import accumulate as accumulate
from mcf.tensor.dispatch import activations as activations
from mcf.tensor.dispatch import adjoint as adjoint
from mcf.tensor.dispatch import arithmetic as arithmetic
from mcf.tensor.dispatch import compare as compare
from mcf.tensor.dispatch import copies as copies
from mcf.tensor.dispatch import derivatives as derivatives
from mcf.tensor.dispatch import elementary as elementary
from mcf.tensor.dispatch import linalg as linalg
from mcf.tensor.dispatch import matmul as matmul
from mcf.tensor.dispatch import movement as movement
from mcf.tensor.dispatch import neighbours as neighbours
from mcf.tensor.dispatch import order as order
from mcf.tensor.dispatch import random as random
from mcf.tensor.dispatch import reductions as reductions
from mcf.tensor.dispatch import search as search
from mcf.tensor.dispatch import views as views
from mcf.tensor.dispatch.registry import UnsupportedError as UnsupportedError
from mcf.tensor.dispatch.registry import implements as implements
