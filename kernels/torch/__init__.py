"""The reference executor: plain torch operations on any device, readable and slow."""
