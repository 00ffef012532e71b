"""The step: from buckets of parameters to updated tensors, independent of optimizer classes."""
