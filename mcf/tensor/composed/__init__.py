"""Functions of torch that are written in other functions of expansion tensors, one file a topic.

Their derivatives are those of what they are written in, so they have all components.
"""

from mcf.tensor.composed import constants as constants
from mcf.tensor.composed import convolution as convolution
from mcf.tensor.composed import distances as distances
from mcf.tensor.composed import losses as losses
from mcf.tensor.composed import matrices as matrices
from mcf.tensor.composed import pointwise as pointwise
from mcf.tensor.composed import quantiles as quantiles
from mcf.tensor.composed import scans as scans
