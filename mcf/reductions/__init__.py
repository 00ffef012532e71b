"""Accurate sums on components: in a fixed order, or exact."""

from mcf.reductions.cumulative import cumprod as cumprod
from mcf.reductions.cumulative import cumsum as cumsum
from mcf.reductions.cumulative import prod as prod
from mcf.reductions.norms import norm as norm
from mcf.reductions.sums import dot as dot
from mcf.reductions.sums import mean as mean
from mcf.reductions.sums import std as std
from mcf.reductions.sums import sum as sum
from mcf.reductions.sums import var as var
from mcf.reductions.sums import var_mean as var_mean
