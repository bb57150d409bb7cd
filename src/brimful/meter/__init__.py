"""Meter: what the GPU really does, measured in the training loop and by its driver."""
