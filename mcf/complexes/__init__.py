"""Complex expansions: pairs of expansion tensors, one file a topic."""

from mcf.complexes import arithmetic as arithmetic
from mcf.complexes import complex_elementary as complex_elementary
from mcf.complexes import composed as composed
from mcf.complexes import each_part as each_part
from mcf.complexes import factors as factors
from mcf.complexes import hermitian as hermitian
from mcf.complexes import inverses as inverses
from mcf.complexes import matrix_functions as matrix_functions
from mcf.complexes import orthogonal as orthogonal
from mcf.complexes import polar_factors as polar_factors
from mcf.complexes import products as products
from mcf.complexes import questions as questions
from mcf.complexes import running_products as running_products
from mcf.complexes import spectral as spectral
from mcf.complexes import text as text
from mcf.complexes.creation import complex as complex
from mcf.complexes.creation import complex_tensor as complex_tensor
from mcf.complexes.tensor import MCFComplexTensor as MCFComplexTensor
