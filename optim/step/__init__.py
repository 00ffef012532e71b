"""How a step is made: buckets of parameters in, updated tensors out; no optimizer is known."""
