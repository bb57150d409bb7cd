"""Hindsight: what was paid for, where it went, and how few GPUs would have been enough."""
