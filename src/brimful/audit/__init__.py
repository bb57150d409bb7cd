"""Hindsight: what was paid for, what became of it, and how few GPUs would have been enough."""
