"""The parts of `examples/pretrain.py`: from its options to its plots."""
