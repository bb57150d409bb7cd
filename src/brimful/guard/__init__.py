"""Guarded runs: predict before the start, plan again when memory runs out, leave nothing behind."""
