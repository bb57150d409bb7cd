"""Guarded runs: predict before the start, re-plan when memory runs out, leave nothing behind."""
