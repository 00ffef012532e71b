"""Complex expansions: pairs of expansion tensors, one file a topic."""

from mcf.complexes import arithmetic as arithmetic
from mcf.complexes import complex_elementary as complex_elementary
from mcf.complexes import each_part as each_part
from mcf.complexes import factors as factors
from mcf.complexes import products as products
from mcf.complexes import spectral as spectral
from mcf.complexes.creation import complex as complex
from mcf.complexes.creation import complex_tensor as complex_tensor
from mcf.complexes.tensor import MCFComplexTensor as MCFComplexTensor
