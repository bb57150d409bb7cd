"""The public API under /v1: one envelope, one error shape, the same for CLI, console and scripts."""
