"""Add gradients up over micro-batches, or step in the backward pass."""
